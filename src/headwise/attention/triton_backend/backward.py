"""Kernels of the backward pass. Weights are computed again, a tile at a time; every sum has a fixed order."""

import triton
import triton.language as tl

from headwise.attention.triton_backend.forward import binned, outermost
from headwise.attention.triton_backend.relative_shift import biased, first_product, next_keys, next_queries, reserved
from headwise.attention.triton_backend.tiles import (
    AMONG,
    FAR_AFTER,
    FAR_BEFORE,
    LOG2E,
    SIDES,
    away,
    block,
    coefficients,
    distance_terms,
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
def row_terms(o_ptr, o_n, do, bins_ptr, d_bins_ptr, bh, rows, d, n, reach, OPT: tl.constexpr):
    """delta_i = Σ_d dO O, and likewise over what a query gives to the values' table: what a softmax's rows share."""
    o = block(o_ptr, o_n, rows, d, n, OPT.value_width, OPT.block_d)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1)
    if OPT.bins:
        width = 2 * reach + 1
        for start in range(0, width, 16):
            c = start + tl.arange(0, 16)[None, :]
            at = (bh * n + rows[:, None]) * width + c
            inside = (rows[:, None] < n) & (c < width)
            given = tl.load(bins_ptr + at, mask=inside, other=0.0).to(tl.float32)
            delta += tl.sum(given * tl.load(d_bins_ptr + at, mask=inside, other=0.0).to(tl.float32), axis=1)
    return delta


@triton.jit
def own_terms(d_lse_ptr, squares_ptr, d_squares_ptr, bh, rows, n, OPT: tl.constexpr):
    """What the gradients of a row's weight_norms and of its log-sum, which is in units of log 2, add to delta_i."""
    delta = tl.zeros([rows.shape[0]], tl.float32)
    if OPT.d_log_sums:
        delta -= LOG2E * tl.load(d_lse_ptr + bh * n + rows, mask=rows < n, other=0.0)
    if OPT.weight_norms:
        weight_norms = tl.load(squares_ptr + bh * n + rows, mask=rows < n, other=0.0)
        delta += weight_norms * twice(d_squares_ptr, bh, rows, n)
    return delta


@triton.jit
def twice(d_squares_ptr, bh, rows, n):
    """2 g_i, where g is the gradient of weight_norms: what the gradient of P_ij has for each P_ij."""
    return 2.0 * tl.load(d_squares_ptr + bh * n + rows, mask=rows < n, other=0.0)


@triton.jit
def store_shares(shares_ptr, bh, H, dw, d_sharpness, head, scale):
    """Store this program's share of the gradients of a head's w and v."""
    share = shares_ptr + bh * tl.num_programs(0) + tl.program_id(0)
    number = tl.num_programs(0) * H * tl.num_programs(2)
    tl.store(share, tl.sum(dw) / LOG2E)
    tl.store(share + number, tl.sum(d_sharpness) * (head[1] * scale))


@triton.jit
def received_terms(
    q_ptr, k_ptr, o_ptr, do_ptr, lse_ptr, delta_ptr, g_ptr, w_ptr, sharpness_ptr, relative_ptr, edges_ptr,
    d_lse_ptr, squares_ptr, d_squares_ptr, bins_ptr, d_bins_ptr, biases_ptr, table_ptr,
    key_padding, mask, bias, starts, ends, table_h, table_r,
    q_b, q_h, q_n, k_b, k_h, k_m, o_b, o_h, o_n, do_b, do_h, do_n, mask_b, mask_h, mask_n, mask_m,
    bias_b, bias_h, bias_n, bias_m,
    H, GROUP, n, m, offset, reach, scale, OPT: tl.constexpr,
):  # fmt: skip
    """delta_i, with Σ_j P_ij g_j, where g is the gradient of received: one program a block of queries."""
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
    do = block(do_ptr + b * do_b + h * do_h, do_n, rows, d, n, OPT.value_width, BD)
    o = o_ptr + b * o_b + h * o_h
    delta = row_terms(o, o_n, do, bins_ptr, d_bins_ptr, bh, rows, d, n, reach, OPT)
    delta += own_terms(d_lse_ptr, squares_ptr, d_squares_ptr, bh, rows, n, OPT)
    lse = tl.load(lse_ptr + bh * n + rows, mask=rows < n, other=float("inf"))
    k_ptr += b * k_b + (h // GROUP) * k_h
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
    for SIDE in tl.static_range(SIDES):
        if (OPT.sides >> SIDE) & 1:
            lo, hi = key_blocks(first, n, m, offset, head[4], starts, ends, SIDE, OPT)
            shifted = lse
            if OPT.relative and SIDE != AMONG:
                shifted -= edge(edges_ptr, bh, rows, n, SIDE) * head[3]
            for step in range(lo, hi):
                columns = step * BM + tl.arange(0, BM)
                j = columns[None, :]
                k = block(k_ptr, k_m, columns, e, m, OPT.width, BE)
                g = tl.load(g_ptr + bh * m + columns, mask=columns < m, other=0.0)
                x = tl.dot(q, tl.trans(k), input_precision=OPT.precision)
                if OPT.relative and SIDE == AMONG:
                    x += looked_up(relative, i, j, n, offset, reach)
                if OPT.askew:
                    part, below = next_keys(skew, below, step, in_n, in_m, OPT)
                    x += part
                _, f = coefficients(in_n, in_m, first + offset, step * BM, head, SIDE, OPT)
                s = scores(x, f, i, j, n, m, offset, admit, SIDE, OPT)
                delta += tl.sum(tl.exp2(s - shifted[:, None]) * g[None, :], axis=1)
    tl.store(delta_ptr + bh * n + rows, delta, mask=rows < n)


@triton.jit
def query_gradients(
    q_ptr, k_ptr, v_ptr, o_ptr, do_ptr, lse_ptr, delta_ptr, g_ptr, dq_ptr, d_relative_ptr, d_pairs_ptr, shares_ptr,
    sums_ptr, w_ptr, sharpness_ptr, relative_ptr, edges_ptr, bins_ptr, d_bins_ptr, d_edges_ptr,
    d_lse_ptr, squares_ptr, d_squares_ptr, biases_ptr, table_ptr, relative_q_ptr, of_keys_ptr,
    key_padding, mask, bias, starts, ends, seed_ptr,
    relative_q_b, relative_q_h, relative_q_n, table_h, table_r,
    q_b, q_h, q_n, k_b, k_h, k_m, v_b, v_h, v_m, o_b, o_h, o_n, do_b, do_h, do_n, dq_b, dq_h, dq_n,
    mask_b, mask_h, mask_n, mask_m, bias_b, bias_h, bias_n, bias_m, d_pairs_b, d_pairs_h, d_pairs_n,
    H, GROUP, start, n, m, offset, reach, scale, dropout, OPT: tl.constexpr,
):  # fmt: skip
    """dQ, the gradient of the queries' numbers for relative positions, and this block's share of those of w and v.

    One program a block of queries, from query `start` on. Stores delta too, unless received attention needed it before,
    and the gradient of each pair's score where it is wanted. With a table that is read askew also the queries that meet
    it, and this block's share of the gradient of the bias u; `strip_gradients` adds to dQ then.
    """
    BN: tl.constexpr = OPT.block_n
    BM: tl.constexpr = OPT.block_m
    BE: tl.constexpr = OPT.block_e
    BD: tl.constexpr = OPT.block_d
    first = start + tl.program_id(0) * BN
    bh = text_and_head()
    b, h = bh // H, bh % H
    rows = first + tl.arange(0, BN)
    i = rows[:, None]
    in_n, in_m = tl.arange(0, BN)[:, None], tl.arange(0, BM)[None, :]
    e, d = tl.arange(0, BE), tl.arange(0, BD)
    q = block(q_ptr + b * q_b + h * q_h, q_n, rows, e, n, OPT.width, BE)
    do = block(do_ptr + b * do_b + h * do_h, do_n, rows, d, n, OPT.value_width, BD)
    lse = tl.load(lse_ptr + bh * n + rows, mask=rows < n, other=float("inf"))
    if OPT.received:
        delta = tl.load(delta_ptr + bh * n + rows, mask=rows < n, other=0.0)
    else:
        o = o_ptr + b * o_b + h * o_h
        delta = row_terms(o, o_n, do, bins_ptr, d_bins_ptr, bh, rows, d, n, reach, OPT)
        delta += own_terms(d_lse_ptr, squares_ptr, d_squares_ptr, bh, rows, n, OPT)
        tl.store(delta_ptr + bh * n + rows, delta, mask=rows < n)
    of_squares = tl.zeros([BN], tl.float32)
    if OPT.weight_norms:
        of_squares = twice(d_squares_ptr, bh, rows, n)
    k_ptr += b * k_b + (h // GROUP) * k_h
    v_ptr += b * v_b + (h // GROUP) * v_h
    table = bh * n * (2 * reach + 1)
    relative, d_bins, d_relative = relative_ptr + table, d_bins_ptr + table, d_relative_ptr + table
    admit = (
        key_padding + b * m, mask + b * mask_b + h * mask_h, mask_n, mask_m,
        bias + b * bias_b + h * bias_h, bias_n, bias_m, starts,
    )  # fmt: skip
    head = head_parameters(w_ptr, sharpness_ptr, h, scale, reach, OPT)
    if OPT.askew:
        q, relative_q = biased(q, biases_ptr, h, H, OPT)
        relative_q_ptr += b * relative_q_b + h * relative_q_h
        met = relative_q_ptr + (i - start) * relative_q_n + e[None, :]
        tl.store(met, relative_q, mask=(i < n) & (e[None, :] < OPT.width))
        skew = (relative_q, table_ptr + h * table_h, table_r, n - first, reserved(OPT))
        below = first_product(skew, first // BN, OPT)
    seed = 0
    if OPT.dropout:
        seed = tl.load(seed_ptr).to(tl.int32) + bh.to(tl.int32)
    d_pairs = d_pairs_ptr + b * d_pairs_b + h * d_pairs_h + (first - start).to(tl.int64) * d_pairs_n
    dq = tl.zeros([BN, BE], tl.float32)
    dw = tl.zeros([BN], tl.float32)
    d_sharpness = tl.zeros([BN], tl.float32)
    left = tl.zeros([BN], tl.float32)
    right = tl.zeros([BN], tl.float32)
    for SIDE in tl.static_range(SIDES):
        if (OPT.sides >> SIDE) & 1:
            lo, hi = key_blocks(first, n, m, offset, head[4], starts, ends, SIDE, OPT)
            if OPT.skips and (SIDE == FAR_BEFORE or SIDE == FAR_AFTER):
                hi = tl.where(head[0] < 0.0, lo, hi)  # far keys score 0, whatever the query
            shifted, shifted_delta = lse, delta
            if OPT.relative and SIDE != AMONG:
                shifted -= edge(edges_ptr, bh, rows, n, SIDE) * head[3]
            d_edge = tl.zeros([BN], tl.float32)
            if OPT.bins and SIDE != AMONG:
                d_edge = edge(d_edges_ptr, bh, rows, n, SIDE)
                if not OPT.dropout:
                    shifted_delta -= d_edge
            for step in range(lo, hi):
                columns = step * BM + tl.arange(0, BM)
                j = columns[None, :]
                k = block(k_ptr, k_m, columns, e, m, OPT.width, BE)
                v = block(v_ptr, v_m, columns, d, m, OPT.value_width, BD)
                g = tl.zeros([BM], tl.float32)
                if OPT.received:
                    g = tl.load(g_ptr + bh * m + columns, mask=columns < m, other=0.0)
                x = tl.dot(q, tl.trans(k), input_precision=OPT.precision)
                if OPT.relative and SIDE == AMONG:
                    x += looked_up(relative, i, j, n, offset, reach)
                if OPT.askew:
                    part, below = next_keys(skew, below, step, in_n, in_m, OPT)
                    x += part
                e_tile, f = coefficients(in_n, in_m, first + offset, step * BM, head, SIDE, OPT)
                p = tl.exp2(scores(x, f, i, j, n, m, offset, admit, SIDE, OPT) - shifted[:, None])
                dp = tl.dot(do, tl.trans(v), input_precision=OPT.precision)
                if OPT.bins and SIDE == AMONG:
                    dp += looked_up(d_bins, i, j, n, offset, reach)
                if OPT.dropout:
                    if OPT.bins and SIDE != AMONG:
                        dp += d_edge[:, None]
                    dp *= kept(seed, i, j, dropout)
                if OPT.received:
                    dp += g[None, :]
                if OPT.weight_norms:
                    dp += p * of_squares[:, None]
                dx = p * (dp - shifted_delta[:, None])
                if OPT.d_pairs:
                    at = d_pairs + step * BM + in_n.to(tl.int64) * d_pairs_n + in_m
                    tl.store(at, dx.to(d_pairs_ptr.dtype.element_ty), mask=(i < n) & (j < m))
                if OPT.distance:
                    if OPT.rectify:
                        dx = tl.where(x > 0.0, dx, 0.0)
                    dx *= f
                    distance = away(in_n, in_m, first + offset, step * BM)
                    of_w, of_v = distance_terms(dx, x, e_tile, f, distance, head, 1, SIDE, OPT)
                    dw += of_w
                    d_sharpness += of_v
                if OPT.relative:
                    if SIDE == FAR_BEFORE:
                        left += tl.sum(dx, axis=1) * scale
                    elif SIDE == FAR_AFTER:
                        right += tl.sum(dx, axis=1) * scale
                    else:
                        before, after = binned(d_relative, dx * scale, i, j, n, m, offset, reach)
                        left += before
                        right += after
                dq = tl.dot(dx.to(k.dtype), k, dq, input_precision=OPT.precision)
    dq *= 1.0 / LOG2E if OPT.distance else scale
    if OPT.askew:
        share = of_keys_ptr + (bh * tl.cdiv(n, BN) + first // BN) * OPT.width + e
        tl.store(share, tl.sum(dq, axis=0), mask=e < OPT.width)
    at = dq_ptr + b * dq_b + h * dq_h + i * dq_n + e[None, :]
    tl.store(at, dq.to(dq_ptr.dtype.element_ty), mask=(i < n) & (e[None, :] < OPT.width))
    if OPT.skips:  # what far keys' values are given by this block: the weight of a score of 0
        given = tl.sum(do.to(tl.float32) * tl.exp2(-lse)[:, None], axis=0)
        at = sums_ptr + (bh * (tl.num_programs(0) + 1) + tl.program_id(0) + 1) * (OPT.value_width + 1) + d
        tl.store(at, given, mask=d < OPT.value_width)
    if OPT.distance:
        store_shares(shares_ptr, bh, H, dw, d_sharpness, head, scale)
    if OPT.relative:
        outermost(d_relative, left, right, rows, n, reach)


@triton.jit
def key_gradients(
    q_ptr, k_ptr, v_ptr, o_ptr, do_ptr, lse_ptr, delta_ptr, g_ptr, dq_ptr, dk_ptr, dv_ptr, shares_ptr, sums_ptr,
    w_ptr, sharpness_ptr, relative_ptr, edges_ptr, bins_ptr, d_bins_ptr, d_edges_ptr,
    d_lse_ptr, squares_ptr, d_squares_ptr, biases_ptr, key_terms_ptr, table_ptr, table_terms_ptr,
    key_padding, mask, bias, starts, ends, seed_ptr, table_h, table_r, table_terms_h,
    q_b, q_h, q_n, k_b, k_h, k_m, v_b, v_h, v_m, o_b, o_h, o_n, do_b, do_h, do_n, dq_b, dq_h, dq_n,
    dk_b, dk_h, dk_m, dv_b, dv_h, dv_m, mask_b, mask_h, mask_n, mask_m, bias_b, bias_h, bias_n, bias_m,
    H, GROUP, n, m, offset, reach, scale, dropout, OPT: tl.constexpr,
):  # fmt: skip
    """dK and dV: one program a block of keys. Where one tile is all there is, also what `query_gradients` computes."""
    BN: tl.constexpr = OPT.block_n
    BM: tl.constexpr = OPT.block_m
    BE: tl.constexpr = OPT.block_e
    BD: tl.constexpr = OPT.block_d
    first = tl.program_id(0) * BM
    bg = text_and_head()
    G = H // GROUP
    b, g_head = bg // G, bg % G
    columns = first + tl.arange(0, BM)
    j = columns[:, None]
    in_n, in_m = tl.arange(0, BN)[None, :], tl.arange(0, BM)[:, None]
    e, d = tl.arange(0, BE), tl.arange(0, BD)
    k = block(k_ptr + b * k_b + g_head * k_h, k_m, columns, e, m, OPT.width, BE)
    v = block(v_ptr + b * v_b + g_head * v_h, v_m, columns, d, m, OPT.value_width, BD)
    dk = tl.zeros([BM, BE], tl.float32)
    dv = tl.zeros([BM, BD], tl.float32)
    if OPT.askew:
        memory = reserved(OPT)
    for member in range(GROUP):
        h = g_head * GROUP + member
        bh = b * H + h
        head = head_parameters(w_ptr, sharpness_ptr, h, scale, reach, OPT)
        table = bh * n * (2 * reach + 1)
        admit = (
            key_padding + b * m, mask + b * mask_b + h * mask_h, mask_n, mask_m,
            bias + b * bias_b + h * bias_h, bias_n, bias_m, starts,
        )  # fmt: skip
        if OPT.askew:
            skew = (table_ptr + h * table_h, table_r, table_terms_ptr + h * table_terms_h, n + first, memory)
            key_terms = tl.load(key_terms_ptr + bh * m + columns, mask=columns < m, other=0.0)
            of_row = tl.zeros([BM], tl.float32)
        seed = 0
        if OPT.dropout:
            seed = tl.load(seed_ptr).to(tl.int32) + bh.to(tl.int32)
        g = tl.zeros([BM], tl.float32)
        if OPT.received:
            g = tl.load(g_ptr + bh * m + columns, mask=columns < m, other=0.0)
        quiet = False
        if OPT.skips:
            quiet = head[0] < 0.0
            lo, hi = query_blocks(first, n, m, offset, head[4], starts, ends, FAR_BEFORE, OPT)
            lo_after, hi_after = query_blocks(first, n, m, offset, head[4], starts, ends, FAR_AFTER, OPT)
            if quiet:
                sums = sums_ptr + bh * (tl.cdiv(n, BN) + 1) * (OPT.value_width + 1)
                given = far_sum(sums, lo, hi, lo_after, hi_after, d, OPT.value_width)
                real = columns < m
                if OPT.key_padding:
                    real = real & (tl.load(key_padding + b * m + columns, mask=real, other=0) != 0)
                dv += tl.where(real[:, None], given[None, :], 0.0)
        for SIDE in tl.static_range(SIDES):
            if (OPT.sides >> SIDE) & 1:
                lo, hi = query_blocks(first, n, m, offset, head[4], starts, ends, SIDE, OPT)
                if OPT.skips and (SIDE == FAR_BEFORE or SIDE == FAR_AFTER):
                    hi = tl.where(quiet, lo, hi)
                for step in range(lo, hi):
                    rows = step * BN + tl.arange(0, BN)
                    i = rows[None, :]
                    q = block(q_ptr + b * q_b + h * q_h, q_n, rows, e, n, OPT.width, BE)
                    do = block(do_ptr + b * do_b + h * do_h, do_n, rows, d, n, OPT.value_width, BD)
                    lse = tl.load(lse_ptr + bh * n + rows, mask=rows < n, other=float("inf"))
                    if OPT.alone:
                        delta = row_terms(
                            o_ptr + b * o_b + h * o_h, o_n, do, bins_ptr, d_bins_ptr, bh, rows, d, n, reach, OPT
                        )
                        delta += own_terms(d_lse_ptr, squares_ptr, d_squares_ptr, bh, rows, n, OPT)
                    else:
                        delta = tl.load(delta_ptr + bh * n + rows, mask=rows < n, other=0.0)
                    if OPT.relative and SIDE != AMONG:
                        lse -= edge(edges_ptr, bh, rows, n, SIDE) * head[3]
                    d_edge = tl.zeros([BN], tl.float32)
                    if OPT.bins and SIDE != AMONG:
                        d_edge = edge(d_edges_ptr, bh, rows, n, SIDE)
                        if not OPT.dropout:
                            delta -= d_edge
                    x = tl.dot(k, tl.trans(q), input_precision=OPT.precision)
                    if OPT.relative and SIDE == AMONG:
                        x += looked_up(relative_ptr + table, i, j, n, offset, reach)
                    if OPT.askew:
                        x += next_queries(skew, q, step, in_n, in_m, OPT) + key_terms[:, None]
                    e_tile, f = coefficients(in_n, in_m, step * BN + offset, first, head, SIDE, OPT)
                    p = tl.exp2(scores(x, f, i, j, n, m, offset, admit, SIDE, OPT) - lse[None, :])
                    dp = tl.dot(v, tl.trans(do), input_precision=OPT.precision)
                    if OPT.bins and SIDE == AMONG:
                        dp += looked_up(d_bins_ptr + table, i, j, n, offset, reach)
                    dropped = p
                    if OPT.dropout:
                        if OPT.bins and SIDE != AMONG:
                            dp += d_edge[None, :]
                        keep = kept(seed, i, j, dropout)
                        dropped = p * keep
                        dp *= keep
                    dv = tl.dot(dropped.to(do.dtype), do, dv, input_precision=OPT.precision)
                    if OPT.received:
                        dp += g[:, None]
                        if OPT.alone:
                            delta += tl.sum(p * g[:, None], axis=0)
                    if OPT.weight_norms:
                        dp += p * twice(d_squares_ptr, bh, rows, n)[None, :]
                    dx = p * (dp - delta[None, :])
                    if OPT.distance:
                        if OPT.rectify:
                            dx = tl.where(x > 0.0, dx, 0.0)
                        dx *= f
                        if OPT.alone:
                            distance = away(in_n, in_m, step * BN + offset, first)
                            dw, d_sharpness = distance_terms(dx, x, e_tile, f, distance, head, 1, SIDE, OPT)
                            store_shares(shares_ptr, bh, H, dw, d_sharpness, head, scale)
                    dx_low = dx.to(q.dtype)
                    dk = tl.dot(dx_low, q, dk, input_precision=OPT.precision)
                    if OPT.askew:
                        of_row += tl.sum(dx, axis=1)
                    if OPT.alone:
                        dq = tl.dot(tl.trans(dx_low), k, input_precision=OPT.precision)
                        dq *= 1.0 / LOG2E if OPT.distance else scale
                        at = dq_ptr + b * dq_b + h * dq_h + rows[:, None] * dq_n + e[None, :]
                        inside = (rows[:, None] < n) & (e[None, :] < OPT.width)
                        tl.store(at, dq.to(dq_ptr.dtype.element_ty), mask=inside)
        if OPT.askew:
            u = tl.load(biases_ptr + h * OPT.width + e, mask=e < OPT.width, other=0.0)
            dk += of_row[:, None] * u[None, :]
    dk = (dk * (1.0 / LOG2E if OPT.distance else scale)).to(dk_ptr.dtype.element_ty)
    tl.store(dk_ptr + b * dk_b + g_head * dk_h + j * dk_m + e[None, :], dk, mask=(j < m) & (e[None, :] < OPT.width))
    dv = dv.to(dv_ptr.dtype.element_ty)
    at = dv_ptr + b * dv_b + g_head * dv_h + j * dv_m + d[None, :]
    tl.store(at, dv, mask=(j < m) & (d[None, :] < OPT.value_width))


@triton.jit
def bias_gradients(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, g_ptr, d_bias_ptr, w_ptr, sharpness_ptr,
    relative_ptr, d_bins_ptr, d_squares_ptr, key_padding, mask, bias, starts, seed_ptr,
    q_b, q_h, q_n, k_b, k_h, k_m, v_b, v_h, v_m, do_b, do_h, do_n, mask_b, mask_h, mask_n, mask_m,
    bias_b, bias_h, bias_n, bias_m,
    H, GROUP, BIAS_B, BIAS_H, B, n, m, offset, reach, scale, dropout, OPT: tl.constexpr,
):  # fmt: skip
    """The gradient of a bias that several heads or texts share: one program a tile of it, summed over them."""
    BN: tl.constexpr = OPT.block_n
    BM: tl.constexpr = OPT.block_m
    BE: tl.constexpr = OPT.block_e
    BD: tl.constexpr = OPT.block_d
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    columns = tl.program_id(2) * BM + tl.arange(0, BM)
    i, j = rows[:, None], columns[None, :]
    e, d = tl.arange(0, BE), tl.arange(0, BD)
    own = tl.program_id(1).to(tl.int64)
    total = tl.zeros([BN, BM], tl.float32)
    for b in range(own // BIAS_H, B, BIAS_B):
        for h in range(own % BIAS_H, H, BIAS_H):
            bh = b * H + h
            q = block(q_ptr + b * q_b + h * q_h, q_n, rows, e, n, OPT.width, BE)
            k = block(k_ptr + b * k_b + (h // GROUP) * k_h, k_m, columns, e, m, OPT.width, BE)
            v = block(v_ptr + b * v_b + (h // GROUP) * v_h, v_m, columns, d, m, OPT.value_width, BD)
            do = block(do_ptr + b * do_b + h * do_h, do_n, rows, d, n, OPT.value_width, BD)
            lse = tl.load(lse_ptr + bh * n + rows, mask=rows < n, other=float("inf"))
            delta = tl.load(delta_ptr + bh * n + rows, mask=rows < n, other=0.0)
            table = bh * n * (2 * reach + 1)
            admit = (
                key_padding + b * m, mask + b * mask_b + h * mask_h, mask_n, mask_m,
                bias + b * bias_b + h * bias_h, bias_n, bias_m, starts,
            )  # fmt: skip
            head = head_parameters(w_ptr, sharpness_ptr, h, scale, reach, OPT)
            x = tl.dot(q, tl.trans(k), input_precision=OPT.precision)
            dp = tl.dot(do, tl.trans(v), input_precision=OPT.precision)
            if OPT.relative:
                x += looked_up(relative_ptr + table, i, j, n, offset, reach)
            if OPT.bins:
                dp += looked_up(d_bins_ptr + table, i, j, n, offset, reach)
            _, f = coefficients(i, j, offset, 0, head, AMONG, OPT)
            p = tl.exp2(scores(x, f, i, j, n, m, offset, admit, AMONG, OPT) - lse[:, None])
            if OPT.dropout:
                dp *= kept(tl.load(seed_ptr).to(tl.int32) + bh.to(tl.int32), i, j, dropout)
            if OPT.received:
                dp += tl.load(g_ptr + bh * m + columns, mask=columns < m, other=0.0)[None, :]
            if OPT.weight_norms:
                dp += p * twice(d_squares_ptr, bh, rows, n)[:, None]
            total += p * (dp - delta[:, None])
    at = d_bias_ptr + (own * n + i) * m + j
    tl.store(at, total.to(d_bias_ptr.dtype.element_ty), mask=(i < n) & (j < m))
