"""Dropout of weights: which weights of a tile are kept, a function of the seed and the pair only.

All passes draw the same weights, in tiles of any size and in both orders of queries and keys. The pairs (i, j),
(i + 8, j), (i, j + 8) and (i + 8, j + 8), where bit 3 of i and j is 0, take 16 bits each of one hash of 64 bits. A
matrix product leaves these four pairs in the registers of one thread, so that the hash is computed once for the four.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

#: Multipliers of i and j. The sums i · QUERY + j · KEY of any two pairs of up to 65,494 queries and keys differ.
QUERY_MULTIPLIER, KEY_MULTIPLIER = tl.constexpr(0x9E3779B1), tl.constexpr(0x6FCF9429)


class Dropout(NamedTuple):
    """How the weights of one head are dropped."""

    key: Any  # hash of the seed and the head
    threshold: Any  # pairs whose 16 bits, as the upper half of 32, are below it are dropped
    scale: Any  # of kept weights, 1 / (1 − p)
    zero: Any  # 0.0, which the compiler does not know: it would move `where` behind a conversion, at twice the cost


@triton.jit
def load_dropout(seed_ptr, bh, dropout, OPT: tl.constexpr):
    """Return the `Dropout` of head bh of the batch, which is not read without OPT.dropout."""
    key = tl.cast(0, tl.uint32)
    threshold = tl.cast(0, tl.uint32)
    scale, zero = 1.0, 0.0
    if OPT.dropout:
        key = hash32(hash32(tl.load(seed_ptr).to(tl.uint32)) + bh.to(tl.uint32))
        threshold = tl.minimum(dropout * 65536.0 + 0.5, 65535.0).to(tl.uint32) << 16
        scale = dropout_scale(dropout)
        zero = tl.minimum(dropout, 0.0)
    return Dropout(key, threshold, scale, zero)


@triton.jit
def dropout_scale(dropout):
    """Return the factor of kept weights."""
    return 1.0 / (1.0 - dropout)


@triton.jit
def is_kept(dropped, i0, j0, tile_i, tile_j):
    """Return which pairs of the tile that starts at query i0 and key j0, multiples of 16, are kept."""
    rows = (tile_i & ~8).to(tl.uint32) * QUERY_MULTIPLIER
    columns = (tile_j & ~8).to(tl.uint32) * KEY_MULTIPLIER
    start = dropped.key + tl.cast(i0, tl.uint32) * QUERY_MULTIPLIER + tl.cast(j0, tl.uint32) * KEY_MULTIPLIER
    x = (rows + start) + columns
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    y = (x ^ (x >> 16)) * 0x9E3779B1
    word = tl.where((tile_i & 8) != 0, y, x)
    return tl.where((tile_j & 8) != 0, word << 16, word) >= dropped.threshold


@triton.jit
def hash32(x):
    """Hash 32 bits to 32 bits without collisions."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)
