"""Triton functions for the learnable distance: the coefficient of each pair of a tile, and the gradients of w and v.

Five techniques keep it cheap:

- The scale, log₂e and σ(v) are folded into F = scale · log₂e · f = 1 / (c + a · e^(−w|i−j|)), one reciprocal per pair.
- If all keys of a tile lie before (or after) its queries, e^(−w|i−j|) is the product of a row, a column and a scalar,
  and only the scalar differs between tiles. All factors lie on the same side of 1, so the product is never 0 · ∞.
  Steep heads compute e^(−w|i−j|) for each pair: their factors could overflow, and their scores can be so large that all
  passes must compute the same bits.
- At large distances f is constant (1/σ(−v) for w > 0, 0 for w < 0), to the last bit in float32, and with an error of
  e^(−12) in half precision. Such tiles cost as much as plain attention.
- If that constant is 0, all far keys score 0, and their values enter as one prefix sum. The cost of such a head grows
  with its neighborhood, not with N².
- If there are few keys, F of all relative positions that a block has is computed once and kept in shared memory.

The legend is in `tiles.py`.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from headwise.attention.triton_backend.shared_memory import barrier, load_staged, store_word
from headwise.attention.triton_backend.tiles import AFTER, BEFORE, LOG2E

#: Heads beyond these are steep. With w = 0.3, the factor of 63 tokens is 2^27.
MAX_W, MAX_V = tl.constexpr(0.3), tl.constexpr(3.0)

#: F is far if its relative error as a constant is e to the power of minus this. A score in float16 has 40 times the
#: error of the second.
LOG_ERROR, LOG_ERROR_HALF = tl.constexpr(24.0), tl.constexpr(12.0)


class HeadParams(NamedTuple):
    """Parameters of F for one head. Without distance, all but far_factor and far_distance are 0."""

    w: Any
    shift: Any  # e^(shift − w|i−j|) times start is a · e^(−w|i−j|)
    start: Any
    c: Any
    a: Any
    far_factor: Any  # F at large distances
    far_distance: Any  # the distance from which F is constant, or the clipped table's last row applies
    is_steep: Any  # e^(−w|i−j|) is computed for each pair
    has_large_scores: Any  # F can be so large that rounding errors of delta = dO · O matter
    smem: Any  # address of F of the relative positions from first_position on; see `stage_distance_factors`
    first_position: Any


@triton.jit
def reciprocal(x, FAST: tl.constexpr):
    if FAST:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return 1.0 / x


@triton.jit
def load_head_params(w_ptr, sharpness_ptr, h, scale, max_offset, OPT: tl.constexpr):
    if OPT.distance:
        w = tl.load(w_ptr + h)
        v = tl.load(sharpness_ptr + h)
        c = tl.sigmoid(-v) / (scale * LOG2E)
        a = tl.maximum(tl.sigmoid(v), 1e-30) / (scale * LOG2E)
        far_factor = tl.where(w > 0.0, reciprocal(c, OPT.fast), 0.0)
        has_large_scores = (w > 0.0) & (v > MAX_V)
        log_error = tl.where(has_large_scores | (not OPT.half), LOG_ERROR, LOG_ERROR_HALF)
        far_distance = tl.minimum((log_error + tl.abs(v)) / tl.maximum(tl.abs(w), 1e-9), 1e9).to(tl.int32)
        is_steep = has_large_scores | (tl.abs(w) > MAX_W)
        # c · e^(v − w|i−j|) has a small exponent, and is exact, where F changes and scores are large.
        is_shifted = has_large_scores & (w > 0.01)
        shift, start = tl.where(is_shifted, v, 0.0), tl.where(is_shifted, c, a)
        params = HeadParams(w, shift, start, c, a, far_factor, far_distance, is_steep, has_large_scores, 0, 0)
    else:
        # A softcap is not linear: all scores with a clipped table are then looked up pair by pair.
        far_distance = 1 << 30 if OPT.softcap and (OPT.relative_scores or OPT.relative_bias) else max_offset
        params = HeadParams(0.0, 0.0, 0.0, 0.0, 0.0, scale * LOG2E, far_distance, False, False, 0, 0)
    return params


@triton.jit
def distance_factors(tile_i, tile_j, i0, j0, head, REGION: tl.constexpr, OPT: tl.constexpr):
    """Compute a · e^(−w|i−j|) and F = scale · log₂e · f (eq. 5) for positions i = i0 + tile_i and j = j0 + tile_j.

    In far regions, where F is constant, these are the scalars 0 and F.
    """
    if OPT.distance and REGION >= BEFORE and REGION <= AFTER:
        if REGION == BEFORE:
            gap = i0 - j0 - (OPT.block_m - 1)
            e = head.a * decay(head.w, gap) * decay(head.w, tile_i) * decay(head.w, OPT.block_m - 1 - tile_j)
        elif REGION == AFTER:
            gap = j0 - i0 - (OPT.block_n - 1)
            e = head.a * decay(head.w, gap) * decay(head.w, OPT.block_n - 1 - tile_i) * decay(head.w, tile_j)
        else:
            e = near_exponential(pair_distance(tile_i, tile_j, i0, j0), head)
        f = reciprocal(head.c + e, OPT.fast)
    else:
        e, f = 0.0, head.far_factor
    if OPT.staged_distance:
        address = head.smem + ((j0 - i0 - head.first_position) * 4 + tile_j * 4 - tile_i * 4)
        e, f = load_staged(address + OPT.num_staged * 4, tl.float32), load_staged(address, tl.float32)
    return e, f


@triton.jit
def rectify(x, OPT: tl.constexpr):
    """Set x to 0 where it is negative, if the scheme says so."""
    return tl.maximum(x, 0.0) if OPT.distance and OPT.rectify else x


@triton.jit
def rectify_factor(x, f, OPT: tl.constexpr):
    """Set F to 0 where x is negative, if the scheme says so. Then x · F is rectified, and so is its gradient."""
    return tl.where(x > 0.0, f, 0.0) if OPT.distance and OPT.rectify else f


@triton.jit
def near_exponential(distance, head):
    """Compute a · e^(−w · distance)."""
    return head.start * tl.exp2(tl.minimum((head.shift - head.w * distance) * LOG2E, 100.0))


@triton.jit
def stage_distance_factors(head, smem, first_position, OPT: tl.constexpr):
    """Store F and a · e^(−w|r|) of OPT.num_staged relative positions r, the first of which is given.

    Pairs then load them instead of computing an exponential and a reciprocal each.
    """
    index = tl.arange(0, OPT.num_staged)
    e = near_exponential(tl.abs((first_position + index).to(tl.float32)), head)
    address = smem + barrier() + index * 4
    store_word(address, reciprocal(head.c + e, OPT.fast))
    store_word(address + OPT.num_staged * 4, e)
    return HeadParams(
        head.w, head.shift, head.start, head.c, head.a, head.far_factor, head.far_distance, head.is_steep,
        head.has_large_scores, smem + barrier(), first_position,
    )  # fmt: skip


@triton.jit
def decay(w, distance):
    """Compute e^(−w · distance)."""
    return tl.exp2((-w * LOG2E) * distance.to(tl.float32))


@triton.jit
def pair_distance(tile_i, tile_j, i0, j0):
    """Compute |i − j|, converting rows and columns to float instead of pairs."""
    return tl.abs((i0 - j0).to(tl.float32) + tile_i.to(tl.float32) - tile_j.to(tl.float32))


@triton.jit
def distance_grads(dx, x, e, f, tile_i, tile_j, i0, j0, head, REGION: tl.constexpr, OPT: tl.constexpr):
    """Return this tile's part of the gradients of w and v, summed along rows; dx is the gradient of x · F."""
    # ∂F/∂w = |i−j| · eF² and ∂F/∂v = (a − e) F² · c · scale. Neither cancels. The latter is exactly 0 if w is 0.
    d_log_f = dx * f * x
    if REGION >= BEFORE and REGION <= AFTER:
        df = d_log_f * f
        dw = tl.sum(df * e * pair_distance(tile_i, tile_j, i0, j0), axis=1)
        d_sharpness = tl.sum(df * (head.a - e), axis=1)
    else:
        d_sharpness = tl.sum(d_log_f, axis=1) * (head.a * head.far_factor)
        dw = tl.zeros_like(d_sharpness)
    return dw, d_sharpness
