"""What every kernel does with a tile, a block of queries against a block of keys.

Scores are in units of log 2. Four things keep the learnable distance cheap:

- The scale, log₂e and σ(v) are folded into F = scale · log₂e · f = 1 / (c + a · e^(−w|i−j|)), one reciprocal a pair.
- For a tile whose keys all lie before (or after) its queries, e^(−w|i−j|) is a row times a column times a number, and
  only the number differs between tiles. The factors lie on the same side of 1, so it never is 0 · ∞.
- Far away f is constant to the last bit (1/σ(−v) for w > 0, 0 for w < 0): such tiles cost what plain attention costs.
- Where that constant is 0, all far keys score 0, and their values enter as one running sum: such a head costs what its
  neighbourhood costs, not N².

Tables of relative positions are clipped, so in far tiles each query has one number for all keys, which goes into its
log-sum; only tiles near the diagonal look up one for each pair.

A tile lies with queries down or across: i and j, the indices of queries and keys, come as (BN, 1) and (1, BM) or as
(1, BN) and (BM, 1), and all maths is theirs to broadcast. Query i stands at position offset + i.

Axes: B batch, H query heads, G key heads, N queries, M keys, E width of queries and keys, D width of values,
R rows of a table.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)

#: Where a tile's keys lie: far before its queries' positions, before, among them, after, far after.
FAR_BEFORE, BEFORE, AMONG = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
AFTER, FAR_AFTER = tl.constexpr(3), tl.constexpr(4)
SIDES = tl.constexpr(5)


@triton.jit
def text_and_head():
    """The number of a program's head among the heads of all texts."""
    return tl.program_id(2).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)


@triton.jit
def block(base, stride, rows, columns, n_rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Load a (rows × columns) block of a matrix with n_rows rows and WIDTH columns, zero outside."""
    pointers = base + rows[:, None] * stride + columns[None, :]
    if WIDTH == BLOCK:
        return tl.load(pointers, mask=rows[:, None] < n_rows, other=0.0)
    return tl.load(pointers, mask=(rows[:, None] < n_rows) & (columns[None, :] < WIDTH), other=0.0)


@triton.jit
def reciprocal(x, FAST: tl.constexpr):
    if FAST:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return 1.0 / x


@triton.jit
def head_parameters(w_ptr, sharpness_ptr, h, scale, reach, OPT: tl.constexpr):
    """Of a head: w in units of log 2, c and a of F, F far away, and from which distance on that is.

    Where there is a table, the distance from which on it is clipped.
    """
    if OPT.distance:
        w = tl.load(w_ptr + h)
        v = tl.load(sharpness_ptr + h)
        c = tl.sigmoid(-v) / (scale * LOG2E)
        a = tl.maximum(tl.sigmoid(v), 1e-30) / (scale * LOG2E)
        far = tl.minimum((24.0 + tl.abs(v)) / tl.maximum(tl.abs(w), 1e-9), 1e9).to(tl.int32)
        return w * LOG2E, c, a, tl.where(w > 0.0, 1.0 / c, 0.0), far
    return 0.0, 0.0, 0.0, scale * LOG2E, reach


@triton.jit
def coefficients(in_n, in_m, i0, j0, head, SIDE: tl.constexpr, OPT: tl.constexpr):
    """a · e^(−w|i−j|) and F = scale · log₂e · f of eq. 5 for queries at positions i0 + in_n and keys at j0 + in_m.

    Far away, where F is constant, the numbers 0 and F.
    """
    w, c, a, far_f, far = head
    if OPT.distance and SIDE >= BEFORE and SIDE <= AFTER:
        if SIDE == BEFORE:
            between = i0 - j0 - (OPT.block_m - 1)
            e = a * decay(w, between) * decay(w, in_n) * decay(w, OPT.block_m - 1 - in_m)
        elif SIDE == AFTER:
            between = j0 - i0 - (OPT.block_n - 1)
            e = a * decay(w, between) * decay(w, OPT.block_n - 1 - in_n) * decay(w, in_m)
        else:
            e = a * tl.exp2(tl.minimum(-w * away(in_n, in_m, i0, j0), 100.0))
        f = reciprocal(c + e, OPT.fast)
    else:
        e, f = 0.0, far_f
    return e, f


@triton.jit
def decay(w, distance):
    """e^(−w · distance), at most 2^30: three such factors are finite, and F is 0 to every purpose."""
    return tl.exp2(tl.minimum(-w * distance.to(tl.float32), 30.0))


@triton.jit
def away(in_n, in_m, i0, j0):
    """|i − j|, with as few conversions as there are rows and columns."""
    return tl.abs((i0 - j0).to(tl.float32) + in_n.to(tl.float32) - in_m.to(tl.float32))


@triton.jit
def distance_terms(dx, x, e, f, distance, head, AXIS: tl.constexpr, SIDE: tl.constexpr, OPT: tl.constexpr):
    """What a tile adds to the gradients of w and v, summed along an axis; dx is the gradient of x."""
    w, c, a, far_f, far = head
    # ∂f/∂w = |i−j| f · eF  and  ∂f/∂v = f · σ(v) (1 − e/a) · σ(−v) f, neither with a cancellation.
    dfx = dx * x
    if SIDE >= BEFORE and SIDE <= AFTER:
        dfx *= f
        dw = tl.sum(dfx * e * distance, axis=AXIS)
        d_sharpness = tl.sum(dfx * (a - e), axis=AXIS)
    else:
        d_sharpness = tl.sum(dfx, axis=AXIS) * (a * far_f)
        dw = tl.zeros_like(d_sharpness)
    return dw, d_sharpness


@triton.jit
def looked_up(table, i, j, n, offset, reach):
    """A query's number for the relative position of each key, from its row of 2·reach + 1."""
    at = i * (2 * reach + 1) + tl.minimum(tl.maximum(j - i - offset, -reach), reach) + reach
    return tl.load(table + at, mask=i < n, other=0.0).to(tl.float32)


@triton.jit
def edge(edges, bh, rows, n, SIDE: tl.constexpr):
    """A query's number for all keys far before, or far after, from its table's first and last column (B, H, 2, N)."""
    return tl.load(edges + (bh * 2 + SIDE // FAR_AFTER) * n + rows, mask=rows < n, other=0.0).to(tl.float32)


@triton.jit
def scores(x, f, i, j, n, m, offset, admit, SIDE: tl.constexpr, OPT: tl.constexpr):
    """x · F, rectified where the scheme says so, plus the bias; −∞ where a key may not be attended."""
    key_padding, mask, mask_n, mask_m, bias, bias_n, bias_m, starts = admit
    s = tl.maximum(x, 0.0) * f if OPT.distance and OPT.rectify else x * f
    if OPT.bias:
        added = tl.load(bias + i * bias_n + j * bias_m, mask=(i < n) & (j < m), other=0.0)
        s += added.to(tl.float32) * LOG2E
    if not OPT.even_m:
        s = tl.where(j < m, s, float("-inf"))
    if OPT.causal and SIDE == AMONG:
        s = tl.where(j <= i + offset, s, float("-inf"))
    if OPT.key_padding:
        s = tl.where(tl.load(key_padding + j, mask=j < m, other=0) != 0, s, float("-inf"))
    if OPT.mask:
        may = tl.load(mask + i * mask_n + j * mask_m, mask=(i < n) & (j < m), other=0)
        s = tl.where(may != 0, s, float("-inf"))
    if OPT.cu_seqlens:
        of_query = tl.load(starts + i, mask=i < n, other=-1)
        s = tl.where(of_query == tl.load(starts + j, mask=j < m, other=-2), s, float("-inf"))
    return s


@triton.jit
def far_sum(prefix, lo_before, hi_before, lo_after, hi_after, columns, WIDTH: tl.constexpr):
    """The sum over far blocks on both sides, from sums over all blocks before each, of WIDTH + 1 columns."""
    inside = columns <= WIDTH
    first = tl.load(prefix + hi_before * (WIDTH + 1) + columns, mask=inside, other=0.0)
    first -= tl.load(prefix + lo_before * (WIDTH + 1) + columns, mask=inside, other=0.0)
    last = tl.load(prefix + hi_after * (WIDTH + 1) + columns, mask=inside, other=0.0)
    return first + (last - tl.load(prefix + lo_after * (WIDTH + 1) + columns, mask=inside, other=0.0))


@triton.jit
def kept(seed, i, j, dropout):
    """1/(1−p) where a weight is kept, 0 where it is dropped: a function of the seed and the pair alone.

    Rows and columns get a number each by a full hash; what is left to do for a pair, in every pass, is to mix two.
    """
    seed = hashed(seed.to(tl.uint32))
    x = hashed(i.to(tl.uint32) ^ seed) + hashed((j.to(tl.uint32) + 0x9E3779B9) ^ hashed(seed))
    x = (x ^ (x >> 15)) * 0x846CA68B
    x = (x ^ (x >> 16)) * 0x7FEB352D
    return tl.where(x >= tl.cast(dropout * 4294967296.0, tl.uint32), 1.0 / (1.0 - dropout), 0.0)


@triton.jit
def hashed(x):
    """A number of 32 bits for another, without collisions."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def key_blocks(first, n, m, offset, far, starts, ends, SIDE: tl.constexpr, OPT: tl.constexpr):
    """From which to which block of keys lies on a side of the block of queries from index `first` on."""
    blocks = tl.cdiv(m, OPT.block_m)
    low = offset + first
    high = offset + first + OPT.block_n - 1
    before = blocks
    among = blocks
    if OPT.distance or OPT.table or OPT.causal:
        before = tl.minimum(low // OPT.block_m, blocks)
        among = tl.minimum(high // OPT.block_m + 1, blocks)
    far_before = before
    after = blocks
    if OPT.distance or OPT.table:
        far_before = tl.minimum(tl.maximum(low - far + 1, 0) // OPT.block_m, before)
        after = tl.maximum(tl.minimum(tl.cdiv(high + far, OPT.block_m), blocks), among)
    if OPT.causal:
        after = among
        blocks = among
    if OPT.table:
        before = far_before
        among = after
    if SIDE == FAR_BEFORE:
        lo, hi = 0, far_before
    elif SIDE == BEFORE:
        lo, hi = far_before, before
    elif SIDE == AMONG:
        lo, hi = before, among
    elif SIDE == AFTER:
        lo, hi = among, after
    else:
        lo, hi = after, blocks
    if OPT.cu_seqlens:
        lo = tl.maximum(lo, tl.load(starts + first) // OPT.block_m)
        hi = tl.minimum(hi, tl.cdiv(tl.load(ends + tl.minimum(first + OPT.block_n, n) - 1), OPT.block_m))
    if OPT.single:
        lo, hi = 0, 1
    return lo, hi


@triton.jit
def query_blocks(first, n, m, offset, far, starts, ends, SIDE: tl.constexpr, OPT: tl.constexpr):
    """The same the other way round: blocks of queries for which the keys from index `first` on lie on a side."""
    blocks = tl.cdiv(n, OPT.block_n)
    low = first - offset
    high = first + OPT.block_m - 1 - offset
    after = 0
    among = 0
    if OPT.distance or OPT.table or OPT.causal:
        after = tl.minimum(tl.maximum(low, 0) // OPT.block_n, blocks)  # queries that come before these keys
        among = tl.minimum(tl.maximum(high + OPT.block_n, 0) // OPT.block_n, blocks)
    far_after = 0
    before = among
    if OPT.distance or OPT.table:
        far_after = tl.minimum(tl.maximum(low - far + 1, 0) // OPT.block_n, after)
        before = tl.maximum(tl.minimum(tl.cdiv(tl.maximum(high + far, 0), OPT.block_n), blocks), among)
    if OPT.causal:
        far_after = after
    if OPT.table:
        among = before
        after = far_after
    if SIDE == FAR_BEFORE:
        lo, hi = before, blocks
    elif SIDE == BEFORE:
        lo, hi = among, before
    elif SIDE == AMONG:
        lo, hi = after, among
    elif SIDE == AFTER:
        lo, hi = far_after, after
    else:
        lo, hi = 0, 0 if OPT.causal else far_after
    if OPT.cu_seqlens:
        lo = tl.maximum(lo, tl.load(starts + first) // OPT.block_n)
        hi = tl.minimum(hi, tl.cdiv(tl.load(ends + tl.minimum(first + OPT.block_m, m) - 1), OPT.block_n))
    if OPT.single:
        lo, hi = 0, 1
    return lo, hi
