"""Triton functions that all kernels share: they work on a tile, a block of queries against a block of keys.

Scores and log-sum-exps are in base 2. `distance_tiles.py` computes the learnable distance.

Clipped tables of relative positions, and biases, have one score per query for all keys of a far tile, which is added to
the query's log-sum-exp. Only tiles near the diagonal look up one score per pair.

Legend: B batch, H query heads, G key heads, N queries, M keys, E width of queries and keys, D width of values,
R = 2 · max_offset + 1 rows of a clipped table. Query i has position q_offset + i, except in `sequence_tiles.py`. A tile
is [BLOCK_N, BLOCK_M] in kernels that loop over keys and [BLOCK_M, BLOCK_N] in kernels that loop over queries. The
functions below work with both by broadcasting: i and tile_i (the index within the tile) are [BLOCK_N, 1] or
[1, BLOCK_N], j and tile_j [1, BLOCK_M] or [BLOCK_M, 1]. x is q · k plus relative scores, s the score, p the weight.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from headwise.attention.triton_backend.sequence_tiles import is_same_sequence, position_range, query_range

LOG2E = tl.constexpr(1.4426950408889634)

#: Where the keys of a tile lie relative to its queries' positions.
FAR_BEFORE, BEFORE, DIAGONAL = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
AFTER, FAR_AFTER = tl.constexpr(3), tl.constexpr(4)
NUM_REGIONS = tl.constexpr(5)


class MaskAndBias(NamedTuple):
    """Everything that masks, biases or limits the scores of one head."""

    key_padding_ptr: Any  # [M]
    mask_ptr: Any  # [N, M]
    stride_mask_n: Any
    stride_mask_m: Any
    bias_ptr: Any  # [N, M]
    stride_bias_n: Any
    stride_bias_m: Any
    seq_starts_ptr: Any  # [N], or with cu_seqlens_k [N + N + M], see `sequence_tiles.py`
    seq_ends_ptr: Any  # [N], or [N + M]
    visited_ptr: Any  # [blocks, 2 · tiles + 1], see `visited_tiles.py`
    window_left: Any  # numbers of positions
    window_right: Any
    softcap: Any  # in base 2
    slope: Any  # in base 2
    relative_bias_ptr: Any  # [R]
    max_offset: Any


@triton.jit
def batch_head_index():
    """Return b · H + h of this program."""
    return tl.program_id(2).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)


@triton.jit
def load_block(
    ptr, stride, rows, columns, num_rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr = False
):  # fmt: skip
    """Load [rows, columns] of a matrix with num_rows rows and WIDTH columns; elements outside of it are 0.

    EVEN states that all rows are inside of it. Loads without a mask need fewer instructions.
    """
    ptrs = ptr + rows[:, None] * stride + columns[None, :]
    if EVEN and WIDTH == BLOCK:
        return tl.load(ptrs)
    if EVEN:
        return tl.load(ptrs, mask=columns[None, :] < WIDTH, other=0.0)
    if WIDTH == BLOCK:
        return tl.load(ptrs, mask=rows[:, None] < num_rows, other=0.0)
    return tl.load(ptrs, mask=(rows[:, None] < num_rows) & (columns[None, :] < WIDTH), other=0.0)


@triton.jit
def load_positions(ptr, stride, rows, num_rows, OPT: tl.constexpr, EVEN: tl.constexpr = False):
    """Load rows of position_q or position_k, [rows, BLOCK_P]."""
    return load_block(ptr, stride, rows, tl.arange(0, OPT.block_p), num_rows, OPT.position_width, OPT.block_p, EVEN)


@triton.jit
def load_block_in_loop(
    ptr, stride, rows, columns, num_rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr
):  # fmt: skip
    """Load as `load_block` does, but rows outside of the matrix are its last row, which needs no mask.

    The weights of these rows have to be 0.
    """
    if not EVEN:
        rows = tl.minimum(rows, num_rows - 1)
    return load_block(ptr, stride, rows, columns, num_rows, WIDTH, BLOCK, True)


@triton.jit
def load_numbers(ptr, index, size, other, EVEN: tl.constexpr):
    """Load the numbers with these indices; those at and after size are other. EVEN states that there are none.

    A limited index and a selection need fewer instructions than a load with a mask.
    """
    if EVEN:
        return tl.load(ptr + index)
    return tl.where(index < size, tl.load(ptr + tl.minimum(index, size - 1)), other)


@triton.jit
def tile_ptrs(ptr, rows, stride, columns, OPT: tl.constexpr):
    """Return the addresses of a tile. Which of two equal forms spills fewer registers depends on OPT.skip_tiles."""
    if OPT.skip_tiles:
        ptrs = ptr + (rows * stride + columns)
    else:
        ptrs = ptr + rows.to(tl.int64) * stride + columns
    return ptrs


@triton.jit
def load_slope(w_ptr, h, OPT: tl.constexpr):
    """Load a head's slope, in base 2."""
    slope = 0.0
    if OPT.slopes:
        slope = tl.load(w_ptr + h) * LOG2E
    return slope


@triton.jit
def load_sink(sinks_ptr, h):
    """Load the score of a head's sink, in base 2."""
    return tl.load(sinks_ptr + h) * LOG2E


@triton.jit
def compute_scores(x, f, i, j, n, m, q_offset, mods, REGION: tl.constexpr, OPT: tl.constexpr):
    """Compute x · F, capped, plus the bias; masked keys score −∞.

    mods is a MaskAndBias. Also returns the derivative of the cap.
    """
    s = x * f
    cap_derivative = 1.0
    if OPT.slopes:
        s += mods.slope * tl.abs(j - i - q_offset).to(tl.float32)
    if OPT.relative_bias and REGION == DIAGONAL:
        row = tl.minimum(tl.maximum(j - i - q_offset, -mods.max_offset), mods.max_offset) + mods.max_offset
        s += tl.load(mods.relative_bias_ptr + row) * LOG2E
    if OPT.softcap:
        t = tanh(s / mods.softcap)
        cap_derivative = 1.0 - t * t
        s = mods.softcap * t
    if OPT.bias:
        inside = (i < n) & (j < m)
        bias = tl.load(mods.bias_ptr + i * mods.stride_bias_n + j * mods.stride_bias_m, mask=inside, other=0.0)
        s += bias.to(tl.float32) * LOG2E
    if not OPT.even_m and not OPT.key_padding:
        s = tl.where(j < m, s, float("-inf"))
    if OPT.causal and REGION == DIAGONAL:
        s = tl.where(j <= i + q_offset, s, float("-inf"))
    if OPT.window:
        relative_position = j - i - q_offset
        is_inside = (relative_position >= -mods.window_left) & (relative_position <= mods.window_right)
        s = tl.where(is_inside, s, float("-inf"))
    if OPT.key_padding:
        s = tl.where(load_numbers(mods.key_padding_ptr, j, m, 0, OPT.even_m) != 0, s, float("-inf"))
    if OPT.mask:
        inside = (i < n) & (j < m)
        allowed = tl.load(mods.mask_ptr + i * mods.stride_mask_n + j * mods.stride_mask_m, mask=inside, other=0)
        s = tl.where(allowed != 0, s, float("-inf"))
    if OPT.cu_seqlens:
        s = tl.where(is_same_sequence(i, j, n, m, mods, OPT), s, float("-inf"))
    return s, cap_derivative


@triton.jit
def tanh(x):
    """Compute tanh(x) by a series where 1 − 2 / (e^2x + 1) would cancel."""
    y = tl.abs(x)
    y2 = y * y
    series = y * (1.0 + y2 * (-1.0 / 3.0 + y2 * (2.0 / 15.0 + y2 * (-17.0 / 315.0 + y2 * (62.0 / 2835.0)))))
    quotient = 1.0 - 2.0 / (tl.exp2(tl.minimum(2.0 * LOG2E * y, 60.0)) + 1.0)
    t = tl.where(y < 0.25, series, quotient)
    return tl.where(x < 0.0, -t, t)


@triton.jit
def sum_far_blocks(prefix_ptr, lo_before, hi_before, lo_after, hi_after, columns, WIDTH: tl.constexpr):
    """Sum the far blocks on both sides, given prefix sums over blocks, [blocks + 1, WIDTH + 1]."""
    mask = columns <= WIDTH
    before = tl.load(prefix_ptr + hi_before * (WIDTH + 1) + columns, mask=mask, other=0.0)
    before -= tl.load(prefix_ptr + lo_before * (WIDTH + 1) + columns, mask=mask, other=0.0)
    after = tl.load(prefix_ptr + hi_after * (WIDTH + 1) + columns, mask=mask, other=0.0)
    return before + (after - tl.load(prefix_ptr + lo_after * (WIDTH + 1) + columns, mask=mask, other=0.0))


@triton.jit
def key_block_range(block_start, n, m, q_offset, head, mods, REGION: tl.constexpr, OPT: tl.constexpr):
    """Return the range of key blocks in a region of the query block that starts at block_start.

    With OPT.skip_tiles it is a range of indices of visited key blocks.
    """
    blocks = tl.cdiv(m, OPT.block_m)
    low, high = q_offset + block_start, q_offset + block_start + OPT.block_n - 1
    if OPT.cu_seqlens_k:
        low, high = position_range(block_start, n, mods, OPT)
    before_end = blocks
    diagonal_end = blocks
    if OPT.distance or OPT.clipped_table or OPT.causal:
        before_end = tl.minimum(low // OPT.block_m, blocks)
        diagonal_end = tl.minimum(high // OPT.block_m + 1, blocks)
    far_before_end = before_end
    after_end = blocks
    if OPT.distance or OPT.clipped_table:
        far_before_end = tl.minimum(tl.maximum(low - head.far_distance + 1, 0) // OPT.block_m, before_end)
        after_end = tl.maximum(tl.minimum(tl.cdiv(high + head.far_distance, OPT.block_m), blocks), diagonal_end)
    if OPT.causal:
        after_end = diagonal_end
        blocks = diagonal_end
    if OPT.clipped_table:  # looks up all near pairs in the diagonal region
        before_end = far_before_end
        diagonal_end = after_end
    if OPT.distance:  # steep heads compute all near pairs in the diagonal region
        before_end = tl.where(head.is_steep, far_before_end, before_end)
        diagonal_end = tl.where(head.is_steep, after_end, diagonal_end)
    if OPT.one_region:  # one loop over all keys
        before_end = 0
        diagonal_end = blocks
    if REGION == FAR_BEFORE:
        lo, hi = 0, far_before_end
    elif REGION == BEFORE:
        lo, hi = far_before_end, before_end
    elif REGION == DIAGONAL:
        lo, hi = before_end, diagonal_end
    elif REGION == AFTER:
        lo, hi = diagonal_end, after_end
    else:
        lo, hi = after_end, blocks
    if OPT.cu_seqlens:
        lo = tl.maximum(lo, tl.load(mods.seq_starts_ptr + block_start) // OPT.block_m)
        last_seq_end = tl.load(mods.seq_ends_ptr + tl.minimum(block_start + OPT.block_n, n) - 1)
        hi = tl.minimum(hi, tl.cdiv(last_seq_end, OPT.block_m))
    if OPT.window:
        lo = tl.maximum(lo, tl.maximum(low - mods.window_left, 0) // OPT.block_m)
        hi = tl.minimum(hi, tl.maximum(high + mods.window_right + OPT.block_m, 0) // OPT.block_m)
    if OPT.skip_tiles:
        lo, hi = visited_range(lo, hi, block_start // OPT.block_n, tl.cdiv(m, OPT.block_m), mods.visited_ptr)
    if OPT.single_tile:
        lo, hi = 0, 1
    return lo, hi


@triton.jit
def query_block_range(block_start, n, m, q_offset, head, mods, REGION: tl.constexpr, OPT: tl.constexpr):
    """Return the range of query blocks for which the key block that starts at block_start is in a region.

    With OPT.skip_tiles it is a range of indices of visited query blocks.
    """
    blocks = tl.cdiv(n, OPT.block_n)
    low, high = block_start - q_offset, block_start + OPT.block_m - 1 - q_offset
    if OPT.cu_seqlens_k:
        query_start, query_end, low, high = query_range(block_start, n, m, mods, OPT)
    after_end = 0
    diagonal_end = 0
    if OPT.distance or OPT.clipped_table or OPT.causal:
        after_end = tl.minimum(tl.maximum(low, 0) // OPT.block_n, blocks)  # these queries come before the keys
        diagonal_end = tl.minimum(tl.maximum(high + OPT.block_n, 0) // OPT.block_n, blocks)
    far_after_end = 0
    before_end = diagonal_end
    if OPT.distance or OPT.clipped_table:
        far_after_end = tl.minimum(tl.maximum(low - head.far_distance + 1, 0) // OPT.block_n, after_end)
        before_end = tl.cdiv(tl.maximum(high + head.far_distance, 0), OPT.block_n)
        before_end = tl.maximum(tl.minimum(before_end, blocks), diagonal_end)
    if OPT.causal:
        far_after_end = after_end
    if OPT.clipped_table:
        diagonal_end = before_end
        after_end = far_after_end
    if OPT.distance:
        diagonal_end = tl.where(head.is_steep, before_end, diagonal_end)
        after_end = tl.where(head.is_steep, far_after_end, after_end)
    if OPT.one_region:  # one loop over all queries that see the keys
        diagonal_end = blocks
        if not OPT.causal:
            after_end = 0
    if REGION == FAR_BEFORE:
        lo, hi = before_end, blocks
    elif REGION == BEFORE:
        lo, hi = diagonal_end, before_end
    elif REGION == DIAGONAL:
        lo, hi = after_end, diagonal_end
    elif REGION == AFTER:
        lo, hi = far_after_end, after_end
    else:
        lo, hi = 0, 0 if OPT.causal else far_after_end
    if OPT.cu_seqlens_k:
        lo, hi = tl.maximum(lo, query_start // OPT.block_n), tl.minimum(hi, tl.cdiv(query_end, OPT.block_n))
    elif OPT.cu_seqlens:
        lo = tl.maximum(lo, tl.load(mods.seq_starts_ptr + block_start) // OPT.block_n)
        last_seq_end = tl.load(mods.seq_ends_ptr + tl.minimum(block_start + OPT.block_m, m) - 1)
        hi = tl.minimum(hi, tl.cdiv(last_seq_end, OPT.block_n))
    if OPT.window:
        lo = tl.maximum(lo, tl.maximum(low - mods.window_right, 0) // OPT.block_n)
        hi = tl.minimum(hi, tl.maximum(high + mods.window_left + OPT.block_n, 0) // OPT.block_n)
    if OPT.skip_tiles:
        lo, hi = visited_range(lo, hi, block_start // OPT.block_m, tl.cdiv(n, OPT.block_n), mods.visited_ptr)
    if OPT.single_tile:
        lo, hi = 0, 1
    return lo, hi


@triton.jit
def first_key_block(block_start, n, m, q_offset, head, mods, OPT: tl.constexpr):
    """Return the first key block that a query block visits, without OPT.skip_tiles."""
    lo = 0
    if OPT.window or OPT.cu_seqlens:
        lo, _ = key_block_range(block_start, n, m, q_offset, head, mods, FAR_BEFORE, OPT)
    return lo


@triton.jit
def visited_range(lo, hi, block, tiles, visited_ptr):
    """Convert a range of tiles to the range of indices of those that are visited."""
    counts_ptr = visited_ptr + block * (2 * tiles + 1)
    lo = tl.minimum(lo, tiles)
    return tl.load(counts_ptr + lo), tl.load(counts_ptr + tl.maximum(lo, hi))


@triton.jit
def visited_tile(index, block, tiles, visited_ptr, OPT: tl.constexpr):
    """Return the tile with this index among the visited ones."""
    if OPT.skip_tiles:
        index = tl.load(visited_ptr + block * (2 * tiles + 1) + (tiles + 1) + index)
    return index
