"""Clipped tables of relative positions with few rows: products with them stay inside of the kernels.

A block's products with a table, one column per row of the table, are kept in shared memory, where each pair of a near
tile finds its element. In the other direction, each unclipped relative position has one pair per query, whose score, or
gradient, is kept in shared memory until all keys have been visited. Neither is read from global memory pair by pair.
`clipped_table.py` describes the tables, `shared_memory.py` the shared memory. Without it (not OPT.fast), the same
values are kept in registers and exchanged by `tl.gather`.

Legend: see `tiles.py`; BLOCK_R is the number of rows of a table, rounded up to a power of two.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from headwise.attention.triton_backend.shared_memory import (
    barrier,
    load_staged,
    round_product,
    store_word_below,
)
from headwise.attention.triton_backend.tiles import FAR_AFTER, LOG2E, load_block


class StagedProduct(NamedTuple):
    """The products of a block of rows with a table, [BLOCK_N, BLOCK_R]."""

    smem: Any  # their address, or 0
    rounded: Any  # the products in registers
    before: Any  # [BLOCK_N], the first column, in float32
    after: Any  # [BLOCK_N], the last one


@triton.jit
def load_table(table_ptr, stride_h, h, max_offset, WIDTH: tl.constexpr, BLOCK: tl.constexpr, OPT: tl.constexpr):
    """Load all rows of a head's contiguous table, [BLOCK_R, BLOCK]; rows after the last one are 0."""
    offs_r, offs_e = tl.arange(0, OPT.block_r), tl.arange(0, BLOCK)
    return load_block(table_ptr + h * stride_h, WIDTH, offs_r, offs_e, 2 * max_offset + 1, WIDTH, BLOCK)


@triton.jit
def compute_product(x, table, smem, max_offset, OPT: tl.constexpr):
    """Multiply a block with a table. Elements can be looked up after `synchronize` and `product_after_barrier`."""
    product = tl.dot(x, tl.trans(table.to(x.dtype)), input_precision=OPT.precision)
    offs_r = tl.arange(0, OPT.block_r)[None, :]
    before = tl.sum(tl.where(offs_r == 0, product, 0.0), axis=1)
    after = tl.sum(tl.where(offs_r == 2 * max_offset, product, 0.0), axis=1)
    if OPT.fast:
        values = round_product(product, x.dtype, OPT)
        columns = tl.arange(0, OPT.block_r // 2)[None, :] * 2
        address = smem + tl.arange(0, x.shape[0])[:, None] * OPT.product_pitch + columns * 2
        store_word_below(address, values, columns, OPT.table_columns)
    return StagedProduct(smem, product.to(x.dtype), before, after)


@triton.jit
def synchronize(OPT: tl.constexpr):
    """Wait for what other threads have stored in shared memory. Returns 0, to be added to addresses."""
    zero = 0
    if OPT.fast:
        zero = barrier()
    return zero


@triton.jit
def product_after_barrier(product, zero):
    """Return products that can be looked up, given the result of `synchronize`."""
    return StagedProduct(product.smem + zero, product.rounded, product.before, product.after)


@triton.jit
def lookup_product(product, tile_i, r, max_offset, DTYPE: tl.constexpr, OPT: tl.constexpr):
    """Return the element of each pair's query and relative position r, for pairs of shape [N, M]."""
    clipped = tl.minimum(tl.maximum(r, -max_offset), max_offset)
    if OPT.fast:
        x = load_staged((product.smem + tile_i * OPT.product_pitch + max_offset * 2) + clipped * 2, DTYPE)
    else:
        x = tl.gather(product.rounded, clipped + max_offset, 1).to(tl.float32)
    return x


@triton.jit
def lookup_product_of_keys(product, tile_i, r, max_offset, DTYPE: tl.constexpr, OPT: tl.constexpr):
    """Return the element of each pair's query and relative position r, for pairs of shape [M, N]."""
    if OPT.fast:
        x = lookup_product(product, tile_i, r, max_offset, DTYPE, OPT)
    else:
        x = tl.trans(lookup_product(product, tile_i, tl.trans(r), max_offset, DTYPE, OPT))
    return x


@triton.jit
def initial_pairs(smem, VALUE: tl.constexpr, OPT: tl.constexpr):
    """Return a place for one number per query and unclipped relative position, all VALUE. `synchronize` must follow."""
    pairs = tl.full([OPT.block_n, OPT.block_r], VALUE, tl.float32)
    if OPT.fast:
        offs_r = tl.arange(0, OPT.block_r)[None, :]
        address = smem + tl.arange(0, OPT.block_n)[:, None] * OPT.pairs_pitch + offs_r * 4
        store_word_below(address, pairs, offs_r, OPT.table_columns)
        pairs = 0
    return pairs


@triton.jit
def keep_pairs(pairs, smem, x, tile_i, r, offset, max_offset, OPT: tl.constexpr):
    """Keep the elements of a tile, [BLOCK_N, BLOCK_M], whose relative position r is not clipped.

    offset is the relative position of the tile's first pair.
    """
    if OPT.fast:
        address = (smem + tile_i * OPT.pairs_pitch + max_offset * 4) + r * 4
        store_word_below(address, x, r + (max_offset - 1), tl.maximum(2 * max_offset - 1, 0))
    else:
        position = tl.arange(0, OPT.block_r)[None, :] - max_offset
        column = position - offset + tl.arange(0, OPT.block_n)[:, None]
        is_inside = (column >= 0) & (column < OPT.block_m) & (position > -max_offset) & (position < max_offset)
        pairs = tl.where(is_inside, tl.gather(x, tl.minimum(tl.maximum(column, 0), OPT.block_m - 1), 1), pairs)
    return pairs


@triton.jit
def load_pairs(pairs, smem, FILL: tl.constexpr, OPT: tl.constexpr):
    """Return what was kept, [BLOCK_N, BLOCK_R]. The address must depend on the result of `synchronize`."""
    if OPT.fast:
        offs_r = tl.arange(0, OPT.block_r)[None, :]
        columns = tl.minimum(offs_r, OPT.table_columns - 1)
        address = smem + tl.arange(0, OPT.block_n)[:, None] * OPT.pairs_pitch + columns * 4
        pairs = tl.where(offs_r < OPT.table_columns, load_staged(address, tl.float32), FILL)
    return pairs


@triton.jit
def sum_clipped_before(x, r, max_offset):
    """Return the rows' sums of pairs whose relative position is clipped to the first row of a table."""
    return tl.sum(tl.where(r <= -max_offset, x, 0.0), axis=1)


@triton.jit
def with_clipped_sums(pairs, before, total, max_offset, OPT: tl.constexpr):
    """Set the first and last column of [BLOCK_N, R], given the sums of pairs clipped to the first and of all pairs.

    They are one column if R is 1.
    """
    offs_r = tl.arange(0, OPT.block_r)[None, :]
    after = total - before - tl.sum(pairs, axis=1)
    if OPT.causal:  # no key lies after a query, and differences are not exactly 0
        before, after = before + after, tl.zeros_like(after)
    pairs = tl.where(offs_r == 2 * max_offset, after[:, None], pairs)
    return pairs + tl.where(offs_r == 0, before[:, None], 0.0)


@triton.jit
def store_rows(ptr, x, bh, offs_n, n, OPT: tl.constexpr):
    """Store [BLOCK_N, R] in [B, H, N, R], whose rows have OPT.table_columns elements with their padding."""
    offs_r = tl.arange(0, OPT.block_r)[None, :]
    ptrs = ptr + (bh * n + offs_n[:, None]) * OPT.table_columns + offs_r
    tl.store(ptrs, x.to(ptr.dtype.element_ty), mask=(offs_n[:, None] < n) & (offs_r < OPT.table_columns))


@triton.jit
def save_product_for_dkv(products_ptr, edges_ptr, product, bh, offs_n, n, OPT: tl.constexpr):
    """Store what bwd_dkv_kernel needs: the first and last column in [B, H, 2, N], on request all in [B, H, N, R]."""
    ptrs = edges_ptr + bh * 2 * n + offs_n
    tl.store(ptrs, product.before, mask=offs_n < n)
    tl.store(ptrs + n, product.after, mask=offs_n < n)
    if OPT.stores_products:
        store_rows(products_ptr, product.rounded, bh, offs_n, n, OPT)


@triton.jit
def edge_scores(product, head, mods, REGION: tl.constexpr, OPT: tl.constexpr):
    """Return each query's score with the row of all keys far before, or far after, plus their bias, in base 2."""
    scores = (product.after if REGION == FAR_AFTER else product.before) * head.far_factor
    if OPT.relative_bias:
        scores += tl.load(mods.relative_bias_ptr + (REGION // FAR_AFTER) * (2 * mods.max_offset)) * LOG2E
    return scores
