"""Triton functions for clipped tables of relative positions (Shaw et al.), in which all far keys share a row.

Row r + max_offset of a table belongs to relative position r = j − i − q_offset, clipped to [−max_offset, max_offset].
Scores of queries with the keys' table, and sums of weights for the values' table, have one column per row of the table:
[B, H, N, R] with R = 2 · max_offset + 1. The legend is in `tiles.py`.
"""

import triton
import triton.language as tl

from headwise.attention.triton_backend.tiles import FAR_AFTER


@triton.jit
def lookup_pairs(ptr, i, j, n, q_offset, max_offset):
    """Load the element of [N, R] that belongs to the relative position of each pair."""
    index = i * (2 * max_offset + 1) + tl.minimum(tl.maximum(j - i - q_offset, -max_offset), max_offset) + max_offset
    return tl.load(ptr + index, mask=i < n, other=0.0).to(tl.float32)


@triton.jit
def load_edge(edges_ptr, bh, offs_n, n, REGION: tl.constexpr):
    """Load each query's element for all keys far before, or far after, from [B, H, 2, N]."""
    return tl.load(edges_ptr + (bh * 2 + REGION // FAR_AFTER) * n + offs_n, mask=offs_n < n, other=0.0).to(tl.float32)


@triton.jit
def store_by_offset(ptr, x, i, j, n, m, q_offset, max_offset):
    """Store a tile in [N, R] by relative position; return the rows' sums of clipped pairs, before and after."""
    r = j - i - q_offset
    ptrs = ptr + i * (2 * max_offset + 1) + r + max_offset
    tl.store(ptrs, x.to(ptr.dtype.element_ty), mask=(r > -max_offset) & (r < max_offset) & (i < n) & (j < m))
    before = tl.sum(tl.where(r <= -max_offset, x, 0.0), axis=1)
    return before, tl.sum(tl.where((r >= max_offset) & (r > -max_offset), x, 0.0), axis=1)


@triton.jit
def store_clipped_sums(ptr, sum_before, sum_after, offs_n, n, max_offset):
    """Store the first and last column of [N, R], which are one column if R is 1."""
    ptrs = ptr + offs_n * (2 * max_offset + 1)
    if max_offset == 0:
        tl.store(ptrs, (sum_before + sum_after).to(ptr.dtype.element_ty), mask=offs_n < n)
    else:
        tl.store(ptrs, sum_before.to(ptr.dtype.element_ty), mask=offs_n < n)
        tl.store(ptrs + 2 * max_offset, sum_after.to(ptr.dtype.element_ty), mask=offs_n < n)
