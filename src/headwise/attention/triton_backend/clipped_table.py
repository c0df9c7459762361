"""Triton functions for clipped tables of relative positions (Shaw et al.), in which all far keys share a row.

Row r + max_offset of a table belongs to relative position r = j − i − q_offset, clipped to [−max_offset, max_offset].
Scores of queries with the keys' table, and sums of weights for the values' table, have one column per row of the table:
[B, H, N, R] with R = 2 · max_offset + 1. Their rows are padded with zeros to a multiple of 8 (`row_stride`), so that
they are aligned. The first and last column, which all far keys share, also lie in [B, H, 2, N]. The legend is in
`tiles.py`.
"""

import triton
import triton.language as tl

from headwise.attention.triton_backend.tiles import FAR_AFTER, LOG2E, load_numbers


@triton.jit
def row_stride(max_offset):
    """Return the length of a row of [B, H, N, R] with its padding."""
    return (2 * max_offset + 8) // 8 * 8


@triton.jit
def lookup_pairs(ptr, bh, i, j, n, q_offset, max_offset):
    """Load the element of [B, H, N, R] that belongs to the relative position of each pair."""
    column = tl.minimum(tl.maximum(j - i - q_offset, -max_offset), max_offset) + max_offset
    ptrs = ptr + bh * n * row_stride(max_offset) + (i * row_stride(max_offset) + column)
    return tl.load(ptrs, mask=i < n, other=0.0).to(tl.float32)


@triton.jit
def load_edge(edges_ptr, bh, offs_n, n, REGION: tl.constexpr, OPT: tl.constexpr):
    """Load each query's element for all keys far before, or far after, from [B, H, 2, N]."""
    return load_numbers(edges_ptr + (bh * 2 + REGION // FAR_AFTER) * n, offs_n, n, 0.0, OPT.even_n).to(tl.float32)


@triton.jit
def load_edge_scores(edge_scores_ptr, bh, offs_n, n, head, mods, REGION: tl.constexpr, OPT: tl.constexpr):
    """Load each query's score with the row of all keys far before, or far after, plus their bias, in base 2."""
    if OPT.relative_scores:
        scores = load_edge(edge_scores_ptr, bh, offs_n, n, REGION, OPT) * head.far_factor
    else:
        scores = tl.zeros([offs_n.shape[0]], tl.float32)
    if OPT.relative_bias:
        scores += tl.load(mods.relative_bias_ptr + (REGION // FAR_AFTER) * (2 * mods.max_offset)) * LOG2E
    return scores


@triton.jit
def store_by_offset(ptr, x, i, j, n, m, q_offset, max_offset):
    """Store a tile in [N, R] by relative position; return the rows' sums of clipped pairs, before and after."""
    r = j - i - q_offset
    ptrs = ptr + i * row_stride(max_offset) + r + max_offset
    tl.store(ptrs, x.to(ptr.dtype.element_ty), mask=(r > -max_offset) & (r < max_offset) & (i < n) & (j < m))
    before = tl.sum(tl.where(r <= -max_offset, x, 0.0), axis=1)
    return before, tl.sum(tl.where((r >= max_offset) & (r > -max_offset), x, 0.0), axis=1)


@triton.jit
def store_clipped_sums(ptr, sum_before, sum_after, offs_n, n, max_offset):
    """Store the first and last column of [N, R], which are one column if R is 1."""
    ptrs = ptr + offs_n * row_stride(max_offset)
    if max_offset == 0:
        tl.store(ptrs, (sum_before + sum_after).to(ptr.dtype.element_ty), mask=offs_n < n)
    else:
        tl.store(ptrs, sum_before.to(ptr.dtype.element_ty), mask=offs_n < n)
        tl.store(ptrs + 2 * max_offset, sum_after.to(ptr.dtype.element_ty), mask=offs_n < n)


@triton.jit
def relative_bias_partials(ptr, bh, max_offset):
    """Return where this program stores its sums of gradients by relative position, in [2, B, H, blocks, R]."""
    return ptr + (bh * tl.num_programs(0) + tl.program_id(0)) * (2 * max_offset + 1)


@triton.jit
def store_diagonal_sums(ptr, dx, tile_i, tile_j, offset, H, max_offset, OPT: tl.constexpr):
    """Sum a square tile along its diagonals, and store the sums by relative position in [2, R].

    offset is the relative position of the tile's first pair. Diagonals below the first one are stored in the second
    row, so that no two tiles of a program store the same element.

    Returns:
        The sums of clipped diagonals, before and after, which are not stored.
    """
    T: tl.constexpr = OPT.block_m
    column = tl.arange(0, T)
    rotated = tl.gather(dx, (tile_j + tile_i) & (T - 1), 1)  # column x of row i holds key x + i, or x + i − T
    is_above = tile_j + tile_i < T
    above = tl.sum(tl.where(is_above, rotated, 0.0), axis=0)
    below = tl.sum(tl.where(is_above, 0.0, rotated), axis=0)
    r_above, r_below = offset + column, offset + column - T
    ptrs = ptr + max_offset + column + offset
    tl.store(ptrs, above, mask=(r_above > -max_offset) & (r_above < max_offset))
    second_row = tl.num_programs(0).to(tl.int64) * H * tl.num_programs(2) * (2 * max_offset + 1)
    tl.store(ptrs + (second_row - T), below, mask=(r_below > -max_offset) & (r_below < max_offset))
    before = tl.where(r_above <= -max_offset, above, 0.0) + tl.where(r_below <= -max_offset, below, 0.0)
    after = tl.where((r_above >= max_offset) & (r_above > -max_offset), above, 0.0)
    return before, after + tl.where((r_below >= max_offset) & (r_below > -max_offset), below, 0.0)


@triton.jit
def store_clipped_diagonal_sums(ptr, sum_before, sum_after, max_offset):
    """Store the sums of clipped relative positions in the first and last column, which are one column if R is 1."""
    if max_offset == 0:
        tl.store(ptr, tl.sum(sum_before) + tl.sum(sum_after))
    else:
        tl.store(ptr, tl.sum(sum_before))
        tl.store(ptr + 2 * max_offset, tl.sum(sum_after))
