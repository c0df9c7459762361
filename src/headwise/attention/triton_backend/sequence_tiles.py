"""Triton functions for concatenated sequences (cu_seqlens).

If their queries and keys have different lengths (cu_seqlens_k), query i of a sequence has position i + offset, where
positions are indices of keys and the offset depends on the sequence. Kernels get two arrays, in which queries and keys
follow one another:

    seq_starts [N + N + M]: the first key of each query's sequence; each query's offset; the first query of each key's
    seq_ends   [N + M]:     the end of the keys of each query's sequence; the end of the queries of each key's

All tiles are diagonal ones. The legend is in `tiles.py`.
"""

import triton
import triton.language as tl


@triton.jit
def query_offsets(i, n, q_offset, mods, OPT: tl.constexpr):
    """Return what to add to queries' indices to get their positions: q_offset, or one number for each query."""
    offsets = q_offset
    if OPT.cu_seqlens_k:
        offsets = tl.load(mods.seq_starts_ptr + n + i, mask=i < n, other=0)
    return offsets


@triton.jit
def is_same_sequence(i, j, n, m, mods, OPT: tl.constexpr):
    """Return whether query i and key j belong to the same sequence."""
    if OPT.cu_seqlens_k:
        start = tl.load(mods.seq_starts_ptr + i, mask=i < n, other=m)
        is_same = (j >= start) & (j < tl.load(mods.seq_ends_ptr + i, mask=i < n, other=0))
    else:
        query_seq = tl.load(mods.seq_starts_ptr + i, mask=i < n, other=-1)
        is_same = query_seq == tl.load(mods.seq_starts_ptr + j, mask=j < m, other=-2)
    return is_same


@triton.jit
def position_range(block_start, n, mods, OPT: tl.constexpr):
    """Return the first and the last position of a block's queries."""
    last = tl.minimum(block_start + OPT.block_n, n) - 1
    offsets_ptr = mods.seq_starts_ptr + n
    # Queries of earlier sequences come before the last one's first key.
    high = tl.maximum(last + tl.load(offsets_ptr + last), tl.load(mods.seq_starts_ptr + last) - 1)
    return block_start + tl.load(offsets_ptr + block_start), high


@triton.jit
def query_range(block_start, n, m, mods, OPT: tl.constexpr):
    """Return the range of queries whose sequences have keys of a block, and those at its first and last key.

    A key at which its sequence has no query counts as the nearest one.
    """
    last = tl.minimum(block_start + OPT.block_m, m) - 1
    offsets_ptr = mods.seq_starts_ptr + n
    query_starts_ptr, query_ends_ptr = offsets_ptr + n, mods.seq_ends_ptr + n
    start, last_start = tl.load(query_starts_ptr + block_start), tl.load(query_starts_ptr + last)
    first_end, end = tl.load(query_ends_ptr + block_start), tl.load(query_ends_ptr + last)
    low = tl.minimum(block_start - tl.load(offsets_ptr + tl.minimum(start, n - 1)), first_end)
    high = tl.maximum(last - tl.load(offsets_ptr + tl.maximum(end - 1, 0)), last_start - 1)
    return start, end, low, high
