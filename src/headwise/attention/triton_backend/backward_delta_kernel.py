"""delta_i = Σ_j P_ij dP_ij, the term that all weights of a softmax's row share, and the kernel that computes it alone.

The legend is in `tiles.py`.
"""

import triton
import triton.language as tl

from headwise.attention.triton_backend.clipped_table import (
    load_edge_scores,
    lookup_pairs,
    row_stride,
)
from headwise.attention.triton_backend.distance_tiles import distance_factors, load_head_params, rectify
from headwise.attention.triton_backend.dropout_tiles import is_kept, load_dropout
from headwise.attention.triton_backend.sequence_tiles import query_offsets
from headwise.attention.triton_backend.shared_memory import reserve_smem
from headwise.attention.triton_backend.tiles import (
    DIAGONAL,
    FAR_AFTER,
    FAR_BEFORE,
    LOG2E,
    NUM_REGIONS,
    MaskAndBias,
    batch_head_index,
    compute_scores,
    first_key_block,
    key_block_range,
    load_block,
    load_block_in_loop,
    load_positions,
    load_sink,
    load_slope,
    visited_tile,
)
from headwise.attention.triton_backend.transformer_xl_kernels import (
    QueryBlockShift,
    add_biases,
    initial_product,
    preceding_product,
    query_table_scores_of_keys,
    shifted_scores_of_keys,
)


@triton.jit
def delta_of_output(
    o_ptr, stride_o_n, do, offset_sums_ptr, d_offset_sums_ptr, bh, offs_n, offs_d, n, max_offset, OPT: tl.constexpr
):
    """Compute Σ_d dO O, plus the same sum over a query's sums of weights by offset if O does not contain it."""
    o = load_block(o_ptr, stride_o_n, offs_n, offs_d, n, OPT.value_width, OPT.block_d)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1)
    if OPT.offset_sums and not OPT.sums_in_output:
        num_offsets = row_stride(max_offset)
        for start in range(0, num_offsets, 16):
            offs_r = start + tl.arange(0, 16)[None, :]
            index = (bh * n + offs_n[:, None]) * num_offsets + offs_r
            mask = (offs_n[:, None] < n) & (offs_r < num_offsets)
            sums = tl.load(offset_sums_ptr + index, mask=mask, other=0.0).to(tl.float32)
            delta += tl.sum(sums * tl.load(d_offset_sums_ptr + index, mask=mask, other=0.0).to(tl.float32), axis=1)
    return delta


@triton.jit
def delta_of_lse_and_norms(d_lse_ptr, weight_norms_ptr, d_weight_norms_ptr, bh, offs_n, n, OPT: tl.constexpr):
    """Compute the part of delta from the gradients of weight norms and of lse, which is in base 2."""
    delta = tl.zeros([offs_n.shape[0]], tl.float32)
    if OPT.has_d_lse:
        delta -= LOG2E * tl.load(d_lse_ptr + bh * n + offs_n, mask=offs_n < n, other=0.0)
    if OPT.weight_norms:
        weight_norms = tl.load(weight_norms_ptr + bh * n + offs_n, mask=offs_n < n, other=0.0)
        delta += weight_norms * load_twice_d_norms(d_weight_norms_ptr, bh, offs_n, n)
    return delta


@triton.jit
def delta_of_weights(
    q, do, lse, twice_d_norms, k_ptr, v_ptr, d_received_ptr, d_lse_ptr, dropped, stride_k_m, stride_v_m, block_start,
    bh, h, n, m, q_offset, head, mods, sinks_ptr, OPT: tl.constexpr,
):  # fmt: skip
    """Compute delta as Σ_j P_ij dP_ij, for heads with large scores.

    If a query's weight is that of one key, dP − delta must be exactly 0, because it is multiplied by a large F.
    dO · O has other rounding errors than dP. lse has rounding errors too, so the weights may not sum to 1.
    """
    BLOCK_N: tl.constexpr = OPT.block_n
    tile_i, tile_j = tl.arange(0, OPT.block_n)[:, None], tl.arange(0, OPT.block_m)[None, :]
    offs_n = block_start + tl.arange(0, OPT.block_n)
    offs_e, offs_d = tl.arange(0, OPT.block_e), tl.arange(0, OPT.block_d)
    i = offs_n[:, None]
    total = tl.zeros([BLOCK_N], tl.float32)
    p_sum = tl.zeros([BLOCK_N], tl.float32)
    if OPT.sinks:
        p_sum += tl.exp2(load_sink(sinks_ptr, h) - lse)
    lo, before_end = key_block_range(block_start, n, m, q_offset, head, mods, FAR_BEFORE, OPT)
    after_start, hi = key_block_range(block_start, n, m, q_offset, head, mods, FAR_AFTER, OPT)
    for index in tl.range(lo, hi, num_stages=1):
        step = visited_tile(index, block_start // OPT.block_n, tl.cdiv(m, OPT.block_m), mods.visited_ptr, OPT)
        offs_m = step * OPT.block_m + tl.arange(0, OPT.block_m)
        j = offs_m[None, :]
        k = load_block(k_ptr, stride_k_m, offs_m, offs_e, m, OPT.width, OPT.block_e)
        v = load_block(v_ptr, stride_v_m, offs_m, offs_d, m, OPT.value_width, OPT.block_d)
        x = tl.dot(q, tl.trans(k), input_precision=OPT.precision)
        _, f = distance_factors(tile_i, tile_j, block_start + q_offset, step * OPT.block_m, head, DIAGONAL, OPT)
        s, _ = compute_scores(rectify(x, OPT), f, i, j, n, m, q_offset, mods, DIAGONAL, OPT)
        p = tl.exp2(s - lse[:, None])
        dp = tl.dot(do, tl.trans(v), input_precision=OPT.precision)
        if OPT.dropout:
            is_pair_kept = is_kept(dropped, block_start, step * OPT.block_m, tile_i, tile_j)
            dp = tl.where(is_pair_kept, dp, 0.0) * dropped.scale
        if OPT.received:
            dp += tl.load(d_received_ptr + bh * m + offs_m, mask=offs_m < m, other=0.0)[None, :]
        if OPT.weight_norms:
            dp += p * twice_d_norms[:, None]
        total += tl.sum(p * dp, axis=1)
        p_sum += tl.sum(p, axis=1)
    delta = total / tl.where(p_sum > 0.0, p_sum, 1.0)
    if OPT.has_d_lse:
        delta -= LOG2E * tl.load(d_lse_ptr + bh * n + offs_n, mask=offs_n < n, other=0.0)
    return delta


@triton.jit
def load_twice_d_norms(d_weight_norms_ptr, bh, offs_n, n):
    """Load 2 · d_weight_norms; times P_ij it is a part of dP_ij."""
    return 2.0 * tl.load(d_weight_norms_ptr + bh * n + offs_n, mask=offs_n < n, other=0.0)


@triton.jit
def bwd_received_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, do_ptr, lse_ptr, delta_ptr, d_received_ptr, w_ptr, sharpness_ptr,
    relative_scores_ptr, edge_scores_ptr, d_lse_ptr, weight_norms_ptr, d_weight_norms_ptr,
    offset_sums_ptr, d_offset_sums_ptr, bias_uv_ptr, dense_table_ptr, sinks_ptr, query_table_ptr, relative_bias_ptr,
    key_padding_ptr, mask_ptr, bias_ptr, seq_starts_ptr, seq_ends_ptr, visited_ptr, seed_ptr,
    position_q_ptr, position_k_ptr, stride_position_q_b, stride_position_q_h, stride_position_q_n,
    stride_position_k_b, stride_position_k_h, stride_position_k_m,
    stride_dense_table_h, stride_dense_table_r, stride_query_table_h, stride_query_table_r,
    stride_q_b, stride_q_h, stride_q_n, stride_k_b, stride_k_h, stride_k_m,
    stride_v_b, stride_v_h, stride_v_m, stride_o_b, stride_o_h, stride_o_n,
    stride_do_b, stride_do_h, stride_do_n, stride_mask_b, stride_mask_h, stride_mask_n, stride_mask_m,
    stride_visited_b, stride_visited_h,
    stride_bias_b, stride_bias_h, stride_bias_n, stride_bias_m,
    H, GROUP, n, m, q_offset, window_left, window_right, softcap, max_offset, scale, dropout, OPT: tl.constexpr,
):  # fmt: skip
    """Compute delta, including Σ_j P_ij d_received_j. One program per query block."""
    BLOCK_N: tl.constexpr = OPT.block_n
    BLOCK_M: tl.constexpr = OPT.block_m
    BLOCK_E: tl.constexpr = OPT.block_e
    BLOCK_D: tl.constexpr = OPT.block_d
    block_start = tl.program_id(0) * BLOCK_N
    bh = batch_head_index()
    b, h = bh // H, bh % H
    offs_n = block_start + tl.arange(0, BLOCK_N)
    i = offs_n[:, None]
    tile_i, tile_j = tl.arange(0, BLOCK_N)[:, None], tl.arange(0, BLOCK_M)[None, :]
    offs_e, offs_d = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_D)
    # [BLOCK_N, BLOCK_E] and [BLOCK_N, BLOCK_D]
    q = load_block(q_ptr + b * stride_q_b + h * stride_q_h, stride_q_n, offs_n, offs_e, n, OPT.width, BLOCK_E)
    do_bh = do_ptr + b * stride_do_b + h * stride_do_h
    do = load_block(do_bh, stride_do_n, offs_n, offs_d, n, OPT.value_width, BLOCK_D)
    o_bh = o_ptr + b * stride_o_b + h * stride_o_h
    delta = delta_of_output(
        o_bh, stride_o_n, do, offset_sums_ptr, d_offset_sums_ptr, bh, offs_n, offs_d, n, max_offset, OPT
    )
    delta += delta_of_lse_and_norms(d_lse_ptr, weight_norms_ptr, d_weight_norms_ptr, bh, offs_n, n, OPT)
    lse = tl.load(lse_ptr + bh * n + offs_n, mask=offs_n < n, other=float("inf"))
    k_ptr += b * stride_k_b + (h // GROUP) * stride_k_h
    if OPT.received and OPT.position_width:
        position_q = load_positions(
            position_q_ptr + b * stride_position_q_b + h * stride_position_q_h, stride_position_q_n, offs_n, n, OPT
        )
        position_k_ptr += b * stride_position_k_b + (h // GROUP) * stride_position_k_h
    mods = MaskAndBias(
        key_padding_ptr + b * m, mask_ptr + b * stride_mask_b + h * stride_mask_h, stride_mask_n, stride_mask_m,
        bias_ptr + b * stride_bias_b + h * stride_bias_h, stride_bias_n, stride_bias_m, seq_starts_ptr,
        seq_ends_ptr, visited_ptr + b * stride_visited_b + h * stride_visited_h, window_left, window_right, softcap,
        load_slope(w_ptr, h, OPT), relative_bias_ptr + h * (2 * max_offset + 1), max_offset,
    )  # fmt: skip
    head = load_head_params(w_ptr, sharpness_ptr, h, scale, max_offset, OPT)
    q_offset = query_offsets(i, n, q_offset, mods, OPT)
    if OPT.received and OPT.relative_shift:
        q, relative_q = add_biases(q, bias_uv_ptr, h, H, OPT)
        table_ptr = dense_table_ptr + h * stride_dense_table_h
        shift = QueryBlockShift(
            relative_q, table_ptr, stride_dense_table_r, n - block_start, reserve_smem(OPT, HAS_QUERIES=True)
        )
        first_step = first_key_block(block_start, n, m, q_offset, head, mods, OPT)
        product = initial_product(shift, block_start // BLOCK_N, first_step, OPT)
    for REGION in tl.static_range(NUM_REGIONS):
        if OPT.received and (OPT.regions >> REGION) & 1:
            lo, hi = key_block_range(block_start, n, m, q_offset, head, mods, REGION, OPT)
            region_lse = lse
            if (OPT.relative_scores or OPT.relative_bias) and REGION != DIAGONAL:
                region_lse -= load_edge_scores(edge_scores_ptr, bh, offs_n, n, head, mods, REGION, OPT)
            for index in range(lo, hi):
                step = visited_tile(index, block_start // BLOCK_N, tl.cdiv(m, BLOCK_M), mods.visited_ptr, OPT)
                offs_m = step * BLOCK_M + tl.arange(0, BLOCK_M)
                j = offs_m[None, :]
                k = load_block_in_loop(k_ptr, stride_k_m, offs_m, offs_e, m, OPT.width, BLOCK_E, OPT.even_m)
                d_received = tl.load(d_received_ptr + bh * m + offs_m, mask=offs_m < m, other=0.0)
                x = tl.dot(q, tl.trans(k), input_precision=OPT.precision)  # [BLOCK_N, BLOCK_M]
                if OPT.position_width:
                    position_k = load_positions(position_k_ptr, stride_position_k_m, offs_m, m, OPT, OPT.even_m)
                    x = tl.dot(position_q, tl.trans(position_k), x, input_precision=OPT.precision)
                if OPT.relative_scores and REGION == DIAGONAL:
                    x += lookup_pairs(relative_scores_ptr, bh, i, j, n, q_offset, max_offset)
                if OPT.relative_shift:
                    product = preceding_product(shift, product, step, OPT)
                    relative_x, product = shifted_scores_of_keys(shift, product, step, tile_i, tile_j, OPT)
                    x += relative_x
                if OPT.query_table:
                    x += query_table_scores_of_keys(
                        query_table_ptr + h * stride_query_table_h, stride_query_table_r, shift.smem, k, block_start, m,
                        step, tile_i, tile_j, OPT,
                    )  # fmt: skip
                _, f = distance_factors(tile_i, tile_j, block_start + q_offset, step * BLOCK_M, head, REGION, OPT)
                s, _ = compute_scores(rectify(x, OPT), f, i, j, n, m, q_offset, mods, REGION, OPT)
                delta += tl.sum(tl.exp2(s - region_lse[:, None]) * d_received[None, :], axis=1)
    if OPT.distance:
        if head.has_large_scores:
            dropped = load_dropout(seed_ptr, bh, dropout, OPT)
            twice_d_norms = tl.zeros([BLOCK_N], tl.float32)
            if OPT.weight_norms:
                twice_d_norms = load_twice_d_norms(d_weight_norms_ptr, bh, offs_n, n)
            delta = delta_of_weights(
                q, do, lse, twice_d_norms, k_ptr, v_ptr + b * stride_v_b + (h // GROUP) * stride_v_h, d_received_ptr,
                d_lse_ptr, dropped, stride_k_m, stride_v_m, block_start, bh, h, n, m, q_offset, head, mods,
                sinks_ptr, OPT,
            )  # fmt: skip
    tl.store(delta_ptr + bh * n + offs_n, delta, mask=offs_n < n)
