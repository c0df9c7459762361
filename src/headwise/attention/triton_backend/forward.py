"""Kernels of the forward pass: the output with its rows' log-sums and weight_norms, and received attention.

`tiles.py` says the rest.
"""

import triton
import triton.language as tl

from headwise.attention.triton_backend.relative_shift import biased, first_product, next_keys, next_queries, reserved
from headwise.attention.triton_backend.tiles import (
    AMONG,
    FAR_AFTER,
    FAR_BEFORE,
    SIDES,
    block,
    coefficients,
    edge,
    far_sum,
    head_parameters,
    kept,
    key_blocks,
    looked_up,
    query_blocks,
    scores,
    text_and_head,
)


@triton.jit
def forward(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, squares_ptr, bins_ptr, w_ptr, sharpness_ptr, relative_ptr, edges_ptr, sums_ptr,
    biases_ptr, table_ptr, key_padding, query_padding, mask, bias, starts, ends, seed_ptr,
    table_h, table_r, q_b, q_h, q_n, k_b, k_h, k_m, v_b, v_h, v_m, o_b, o_h, o_n, mask_b, mask_h, mask_n, mask_m,
    bias_b, bias_h, bias_n, bias_m,
    H, GROUP, n, m, offset, reach, scale, dropout, OPT: tl.constexpr,
):  # fmt: skip
    """o and the rows' log-sums, and what each row of the values' table is given: one program a block of queries."""
    BN: tl.constexpr = OPT.block_n
    BM: tl.constexpr = OPT.block_m
    BE: tl.constexpr = OPT.block_e
    BD: tl.constexpr = OPT.block_d
    first = tl.program_id(0) * BN
    bh = text_and_head()
    b, h = bh // H, bh % H
    rows = first + tl.arange(0, BN)
    i = rows[:, None]
    in_n, in_m = tl.arange(0, BN)[:, None], tl.arange(0, BM)[None, :]
    e, d = tl.arange(0, BE), tl.arange(0, BD)
    q = block(q_ptr + b * q_b + h * q_h, q_n, rows, e, n, OPT.width, BE)
    k_ptr += b * k_b + (h // GROUP) * k_h
    v_ptr += b * v_b + (h // GROUP) * v_h
    relative = relative_ptr + bh * n * (2 * reach + 1)
    admit = (
        key_padding + b * m, mask + b * mask_b + h * mask_h, mask_n, mask_m,
        bias + b * bias_b + h * bias_h, bias_n, bias_m, starts,
    )  # fmt: skip
    head = head_parameters(w_ptr, sharpness_ptr, h, scale, reach, OPT)
    if OPT.askew:
        q, relative_q = biased(q, biases_ptr, h, H, OPT)
        skew = (relative_q, table_ptr + h * table_h, table_r, n - first, reserved(OPT))
        below = first_product(skew, first // BN, OPT)
    seed = 0
    if OPT.dropout:
        seed = tl.load(seed_ptr).to(tl.int32) + bh.to(tl.int32)

    top = tl.full([BN], float("-inf"), tl.float32)
    total = tl.zeros([BN], tl.float32)
    weight_norms = tl.zeros([BN], tl.float32)
    left = tl.zeros([BN], tl.float32)  # what the tables' outermost rows are given
    right = tl.zeros([BN], tl.float32)
    acc = tl.zeros([BN, BD], tl.float32)
    quiet = False
    if OPT.skips:  # far keys score 0: start from them
        quiet = head[0] < 0.0
        lo, hi = key_blocks(first, n, m, offset, head[4], starts, ends, FAR_BEFORE, OPT)
        lo_after, hi_after = key_blocks(first, n, m, offset, head[4], starts, ends, FAR_AFTER, OPT)
        sums = sums_ptr + (b * (H // GROUP) + h // GROUP) * (tl.cdiv(m, BM) + 1) * (OPT.value_width + 1)
        count = far_sum(sums, lo, hi, lo_after, hi_after, OPT.value_width, OPT.value_width)
        if quiet & (count > 0.0):
            top = tl.zeros([BN], tl.float32)
            total += count
            weight_norms += count
            acc += far_sum(sums, lo, hi, lo_after, hi_after, d, OPT.value_width)[None, :]
    for SIDE in tl.static_range(SIDES):
        if (OPT.sides >> SIDE) & 1:
            lo, hi = key_blocks(first, n, m, offset, head[4], starts, ends, SIDE, OPT)
            if OPT.skips and (SIDE == FAR_BEFORE or SIDE == FAR_AFTER):
                hi = tl.where(quiet, lo, hi)
            shift = tl.zeros([BN], tl.float32)
            if OPT.relative and SIDE != AMONG:
                shift = edge(edges_ptr, bh, rows, n, SIDE) * head[3]
            for step in range(lo, hi):
                columns = step * BM + tl.arange(0, BM)
                j = columns[None, :]
                k = block(k_ptr, k_m, columns, e, m, OPT.width, BE)
                x = tl.dot(q, tl.trans(k), input_precision=OPT.precision)
                if OPT.relative and SIDE == AMONG:
                    x += looked_up(relative, i, j, n, offset, reach)
                if OPT.askew:
                    part, below = next_keys(skew, below, step, in_n, in_m, OPT)
                    x += part
                _, f = coefficients(in_n, in_m, first + offset, step * BM, head, SIDE, OPT)
                # One factor for all pairs can wait for the exponent, where it is free.
                late = 1.0 if OPT.distance or OPT.bias else f
                s = scores(x, f if OPT.distance or OPT.bias else 1.0, i, j, n, m, offset, admit, SIDE, OPT)
                new_top = tl.maximum(top, tl.max(s, axis=1) * late + shift)
                safe_top = tl.where(new_top == float("-inf"), 0.0, new_top)
                p = tl.exp2(s * late - (safe_top - shift)[:, None])
                rescale = tl.exp2(top - safe_top)
                total = total * rescale + tl.sum(p, axis=1)
                if OPT.weight_norms:
                    weight_norms = weight_norms * rescale * rescale + tl.sum(p * p, axis=1)
                acc = acc * rescale[:, None]
                if OPT.dropout:
                    p *= kept(seed, i, j, dropout)
                if OPT.bins:
                    left *= rescale
                    right *= rescale
                    if SIDE == FAR_BEFORE:
                        left += tl.sum(p, axis=1)
                    if SIDE == FAR_AFTER:
                        right += tl.sum(p, axis=1)
                v = block(v_ptr, v_m, columns, d, m, OPT.value_width, BD)
                acc = tl.dot(p.to(v.dtype), v, acc, input_precision=OPT.precision)
                top = new_top

    real = (top != float("-inf")) & (rows < n)
    if OPT.query_padding:
        real = real & (tl.load(query_padding + b * n + rows, mask=rows < n, other=0) != 0)
    total = tl.where(real, total, 1.0)
    inverse = tl.where(real, 1.0 / total, 0.0)
    # A row without a key has log-sum +∞, so that 2^(s − log-sum) is 0 in the backward pass too.
    lse = tl.where(real, top + tl.log2(total), float("inf"))
    tl.store(lse_ptr + bh * n + rows, lse, mask=rows < n)
    if OPT.weight_norms:
        tl.store(squares_ptr + bh * n + rows, weight_norms * inverse * inverse, mask=rows < n)
    pointers = o_ptr + b * o_b + h * o_h + i * o_n + d[None, :]
    o = (acc * inverse[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(pointers, o, mask=(i < n) & (d[None, :] < OPT.value_width))

    if OPT.bins:  # each row between the outermost has one pair, near the diagonal: its weight is known only now
        left *= inverse
        right *= inverse
        bins = bins_ptr + bh * n * (2 * reach + 1)
        lo, hi = key_blocks(first, n, m, offset, head[4], starts, ends, AMONG, OPT)
        for step in range(lo, hi):
            columns = step * BM + tl.arange(0, BM)
            j = columns[None, :]
            k = block(k_ptr, k_m, columns, e, m, OPT.width, BE)
            x = tl.dot(q, tl.trans(k), input_precision=OPT.precision)
            if OPT.relative:
                x += looked_up(relative, i, j, n, offset, reach)
            p = tl.exp2(scores(x, head[3], i, j, n, m, offset, admit, AMONG, OPT) - lse[:, None])
            if OPT.dropout:
                p *= kept(seed, i, j, dropout)
            before, after = binned(bins, p, i, j, n, m, offset, reach)
            left += before
            right += after
        outermost(bins, left, right, rows, n, reach)


@triton.jit
def block_sums(v_ptr, sums_ptr, key_padding, v_b, v_h, v_m, G, m, OPT: tl.constexpr):
    """The sum of the values of each block of keys, and in a last column how many are real: one program a block."""
    BM: tl.constexpr = OPT.block_m
    BD: tl.constexpr = OPT.block_d
    step = tl.program_id(0)
    bg = text_and_head()
    b, g = bg // G, bg % G
    columns = step * BM + tl.arange(0, BM)
    d = tl.arange(0, BD)
    real = columns < m
    if OPT.key_padding:
        real = real & (tl.load(key_padding + b * m + columns, mask=real, other=0) != 0)
    v = block(v_ptr + b * v_b + g * v_h, v_m, columns, d, m, OPT.value_width, BD).to(tl.float32)
    at = sums_ptr + (bg * (tl.num_programs(0) + 1) + step + 1) * (OPT.value_width + 1)
    tl.store(at + d, tl.sum(tl.where(real[:, None], v, 0.0), axis=0), mask=d < OPT.value_width)
    tl.store(at + OPT.value_width, tl.sum(real.to(tl.float32)))


@triton.jit
def running_sums(sums_ptr, blocks, OPT: tl.constexpr):
    """Sums of blocks to sums of all blocks so far, in place and in a fixed order: one program a head of a text."""
    BD: tl.constexpr = 2 * OPT.block_d
    d = tl.arange(0, BD)
    at = sums_ptr + text_and_head() * (blocks + 1) * (OPT.value_width + 1) + d
    total = tl.zeros([BD], tl.float32)
    for step in range(1, blocks + 1):
        here = at + step * (OPT.value_width + 1)
        total += tl.load(here, mask=d <= OPT.value_width, other=0.0)
        tl.store(here, total, mask=d <= OPT.value_width)


@triton.jit
def binned(bins, x, i, j, n, m, offset, reach):
    """Store the numbers of pairs within reach by relative position; return the sums of those before and after it."""
    r = j - i - offset
    at = bins + i * (2 * reach + 1) + r + reach
    tl.store(at, x.to(bins.dtype.element_ty), mask=(r > -reach) & (r < reach) & (i < n) & (j < m))
    before = tl.sum(tl.where(r <= -reach, x, 0.0), axis=1)
    return before, tl.sum(tl.where((r >= reach) & (r > -reach), x, 0.0), axis=1)


@triton.jit
def outermost(bins, left, right, rows, n, reach):
    """Store the sums of the tables' outermost rows, which are one row if that is all there is."""
    at = bins + rows * (2 * reach + 1)
    if reach == 0:
        tl.store(at, (left + right).to(bins.dtype.element_ty), mask=rows < n)
    else:
        tl.store(at, left.to(bins.dtype.element_ty), mask=rows < n)
        tl.store(at + 2 * reach, right.to(bins.dtype.element_ty), mask=rows < n)


@triton.jit
def column_sums(
    q_ptr, k_ptr, lse_ptr, received_ptr, w_ptr, sharpness_ptr, relative_ptr, edges_ptr,
    key_terms_ptr, table_ptr, table_terms_ptr, key_padding, mask, bias, starts, ends, table_h, table_r, table_terms_h,
    q_b, q_h, q_n, k_b, k_h, k_m, mask_b, mask_h, mask_n, mask_m, bias_b, bias_h, bias_n, bias_m,
    H, GROUP, n, m, offset, reach, scale, OPT: tl.constexpr,
):  # fmt: skip
    """received_j = Σ_i P_ij: one program a block of keys."""
    BN: tl.constexpr = OPT.block_n
    BM: tl.constexpr = OPT.block_m
    BE: tl.constexpr = OPT.block_e
    first = tl.program_id(0) * BM
    bh = text_and_head()
    b, h = bh // H, bh % H
    columns = first + tl.arange(0, BM)
    j = columns[:, None]
    in_n, in_m = tl.arange(0, BN)[None, :], tl.arange(0, BM)[:, None]
    e = tl.arange(0, BE)
    k = block(k_ptr + b * k_b + (h // GROUP) * k_h, k_m, columns, e, m, OPT.width, BE)
    q_ptr += b * q_b + h * q_h
    relative = relative_ptr + bh * n * (2 * reach + 1)
    admit = (
        key_padding + b * m, mask + b * mask_b + h * mask_h, mask_n, mask_m,
        bias + b * bias_b + h * bias_h, bias_n, bias_m, starts,
    )  # fmt: skip
    head = head_parameters(w_ptr, sharpness_ptr, h, scale, reach, OPT)
    if OPT.askew:
        terms = table_terms_ptr + h * table_terms_h
        skew = (table_ptr + h * table_h, table_r, terms, n + first, reserved(OPT))
        key_terms = tl.load(key_terms_ptr + bh * m + columns, mask=columns < m, other=0.0)
    received = tl.zeros([BM], tl.float32)
    for SIDE in tl.static_range(SIDES):
        if (OPT.sides >> SIDE) & 1:
            lo, hi = query_blocks(first, n, m, offset, head[4], starts, ends, SIDE, OPT)
            for step in range(lo, hi):
                rows = step * BN + tl.arange(0, BN)
                i = rows[None, :]
                q = block(q_ptr, q_n, rows, e, n, OPT.width, BE)
                lse = tl.load(lse_ptr + bh * n + rows, mask=rows < n, other=float("inf"))
                x = tl.dot(k, tl.trans(q), input_precision=OPT.precision)
                if OPT.relative and SIDE == AMONG:
                    x += looked_up(relative, i, j, n, offset, reach)
                elif OPT.relative:
                    lse -= edge(edges_ptr, bh, rows, n, SIDE) * head[3]
                if OPT.askew:
                    x += next_queries(skew, q, step, in_n, in_m, OPT) + key_terms[:, None]
                _, f = coefficients(in_n, in_m, step * BN + offset, first, head, SIDE, OPT)
                s = scores(x, f, i, j, n, m, offset, admit, SIDE, OPT)
                received += tl.sum(tl.exp2(s - lse[None, :]), axis=1)
    tl.store(received_ptr + bh * m + columns, received, mask=columns < m)
