"""The kernel of the backward pass that holds a block of keys: dk and dv. The legend is in `tiles.py`."""

import triton
import triton.language as tl

from headwise.attention.triton_backend.backward_delta_kernel import (
    delta_of_lse_and_norms,
    delta_of_output,
    load_twice_d_norms,
)
from headwise.attention.triton_backend.backward_kernels import store_distance_partials
from headwise.attention.triton_backend.clipped_table import load_edge, load_edge_scores, lookup_pairs
from headwise.attention.triton_backend.distance_tiles import (
    distance_factors,
    distance_grads,
    load_head_params,
    pair_distance,
    rectify_factor,
    stage_distance_factors,
)
from headwise.attention.triton_backend.dropout_tiles import dropout_scale, is_kept, load_dropout
from headwise.attention.triton_backend.sequence_tiles import query_offsets
from headwise.attention.triton_backend.shared_memory import reserve_smem
from headwise.attention.triton_backend.staged_tables import (
    compute_product,
    load_table,
    lookup_product_of_keys,
    product_after_barrier,
    synchronize,
)
from headwise.attention.triton_backend.tiles import (
    DIAGONAL,
    FAR_AFTER,
    FAR_BEFORE,
    LOG2E,
    NUM_REGIONS,
    MaskAndBias,
    batch_head_index,
    compute_scores,
    load_block,
    load_block_in_loop,
    load_numbers,
    load_positions,
    load_slope,
    query_block_range,
    sum_far_blocks,
    tile_ptrs,
    visited_tile,
)
from headwise.attention.triton_backend.transformer_xl_kernels import (
    KeyBlockShift,
    query_table_scores_of_queries,
    shifted_scores_of_queries,
    weights_of_queries,
)


@triton.jit
def bwd_dkv_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, do_ptr, lse_ptr, delta_ptr, d_received_ptr, dq_ptr, dk_ptr, dv_ptr,
    d_scores_ptr, d_distance_partials_ptr, prefix_sums_ptr, w_ptr, sharpness_ptr, relative_scores_ptr, edge_scores_ptr,
    offset_sums_ptr, d_offset_sums_ptr, d_edge_sums_ptr, d_lse_ptr, weight_norms_ptr, d_weight_norms_ptr,
    bias_uv_ptr, u_dot_k_ptr, dense_table_ptr, v_dot_table_ptr, query_table_ptr, relative_bias_ptr,
    key_table_ptr, value_table_ptr, key_padding_ptr, mask_ptr, bias_ptr, seq_starts_ptr, seq_ends_ptr, visited_ptr,
    seed_ptr, stride_key_table_h, stride_value_table_h,
    position_q_ptr, position_k_ptr, stride_position_q_b, stride_position_q_h, stride_position_q_n,
    stride_position_k_b, stride_position_k_h, stride_position_k_m,
    stride_dense_table_h, stride_dense_table_r, stride_v_dot_table_h, stride_query_table_h, stride_query_table_r,
    stride_q_b, stride_q_h, stride_q_n, stride_k_b, stride_k_h, stride_k_m, stride_v_b, stride_v_h, stride_v_m,
    stride_o_b, stride_o_h, stride_o_n, stride_do_b, stride_do_h, stride_do_n, stride_dq_b, stride_dq_h, stride_dq_n,
    stride_dk_b, stride_dk_h, stride_dk_m, stride_dv_b, stride_dv_h, stride_dv_m,
    stride_mask_b, stride_mask_h, stride_mask_n, stride_mask_m, stride_visited_b, stride_visited_h,
    stride_bias_b, stride_bias_h, stride_bias_n, stride_bias_m,
    stride_d_scores_b, stride_d_scores_h, stride_d_scores_n,
    H, GROUP, chunk_start, n, m, q_offset, window_left, window_right, softcap, max_offset, scale, dropout,
    OPT: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv. One program per key block and key head.

    With OPT.single_tile_backward also compute everything that bwd_dq_kernel does. With a query table, start at key
    chunk_start, and store the gradient of each pair's score, keys first, if requested; bwd_dense_table_kernel then adds
    to dk.
    """
    BLOCK_N: tl.constexpr = OPT.block_n
    BLOCK_M: tl.constexpr = OPT.block_m
    BLOCK_E: tl.constexpr = OPT.block_e
    BLOCK_D: tl.constexpr = OPT.block_d
    block_start = tl.program_id(0) * BLOCK_M
    if OPT.query_table:
        block_start += chunk_start
    bg = batch_head_index()
    G = H // GROUP
    b, g = bg // G, bg % G
    offs_m = block_start + tl.arange(0, BLOCK_M)
    j = offs_m[:, None]
    tile_i, tile_j = tl.arange(0, BLOCK_N)[None, :], tl.arange(0, BLOCK_M)[:, None]
    offs_e, offs_d = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_D)
    # [BLOCK_M, BLOCK_E] and [BLOCK_M, BLOCK_D]
    k = load_block(k_ptr + b * stride_k_b + g * stride_k_h, stride_k_m, offs_m, offs_e, m, OPT.width, BLOCK_E)
    v = load_block(v_ptr + b * stride_v_b + g * stride_v_h, stride_v_m, offs_m, offs_d, m, OPT.value_width, BLOCK_D)
    if OPT.position_width:
        position_k = load_positions(
            position_k_ptr + b * stride_position_k_b + g * stride_position_k_h, stride_position_k_m, offs_m, m, OPT
        )
    dk = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
    dv = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    if OPT.relative_shift or OPT.staged_distance or OPT.staged_tables:
        smem = reserve_smem(OPT)
    for head_in_group in range(GROUP):
        h = g * GROUP + head_in_group
        bh = b * H + h
        head = load_head_params(w_ptr, sharpness_ptr, h, scale, max_offset, OPT)
        if OPT.staged_distance:
            last_query = tl.cdiv(n, BLOCK_N) * BLOCK_N - 1
            head = stage_distance_factors(head, smem, block_start - last_query - q_offset, OPT)
        mods = MaskAndBias(
            key_padding_ptr + b * m, mask_ptr + b * stride_mask_b + h * stride_mask_h, stride_mask_n, stride_mask_m,
            bias_ptr + b * stride_bias_b + h * stride_bias_h, stride_bias_n, stride_bias_m, seq_starts_ptr,
            seq_ends_ptr, visited_ptr + b * stride_visited_b + h * stride_visited_h, window_left, window_right, softcap,
            load_slope(w_ptr, h, OPT), relative_bias_ptr + h * (2 * max_offset + 1), max_offset,
        )  # fmt: skip
        if OPT.relative_shift:
            shift = KeyBlockShift(
                dense_table_ptr + h * stride_dense_table_h,
                stride_dense_table_r,
                v_dot_table_ptr + h * stride_v_dot_table_h,
                n + block_start,
                smem,
            )
            u_dot_k = tl.load(u_dot_k_ptr + bh * m + offs_m, mask=offs_m < m, other=0.0)
            dx_sum = tl.zeros([BLOCK_M], tl.float32)
        if OPT.staged_tables:
            if OPT.relative_scores:
                key_table = load_table(key_table_ptr, stride_key_table_h, h, max_offset, OPT.width, BLOCK_E, OPT)
                key_table = key_table.to(k.dtype)
            if OPT.offset_sums:
                table = load_table(value_table_ptr, stride_value_table_h, h, max_offset, OPT.value_width, BLOCK_D, OPT)
                table = table.to(k.dtype)
        dropped = load_dropout(seed_ptr, bh, dropout, OPT)
        d_received = tl.zeros([BLOCK_M], tl.float32)
        if OPT.received:
            d_received = tl.load(d_received_ptr + bh * m + offs_m, mask=offs_m < m, other=0.0)
        for REGION in tl.static_range(NUM_REGIONS):
            if (OPT.regions >> REGION) & 1:
                lo, hi = query_block_range(block_start, n, m, q_offset, head, mods, REGION, OPT)
                if OPT.sum_far_keys and (REGION == FAR_BEFORE or REGION == FAR_AFTER):
                    hi = tl.where(head.w < 0.0, lo, hi)  # far keys have score 0
                for index in range(lo, hi):
                    step = visited_tile(index, block_start // BLOCK_M, tl.cdiv(n, BLOCK_N), mods.visited_ptr, OPT)
                    offs_n = step * BLOCK_N + tl.arange(0, BLOCK_N)
                    i = offs_n[None, :]
                    offsets = query_offsets(i, n, q_offset, mods, OPT)
                    q_bh = q_ptr + b * stride_q_b + h * stride_q_h
                    q = load_block_in_loop(q_bh, stride_q_n, offs_n, offs_e, n, OPT.width, BLOCK_E, OPT.even_n)
                    do_bh = do_ptr + b * stride_do_b + h * stride_do_h  # [BLOCK_N, BLOCK_D]
                    do = load_block_in_loop(do_bh, stride_do_n, offs_n, offs_d, n, OPT.value_width, BLOCK_D, OPT.even_n)
                    lse = load_numbers(lse_ptr + bh * n, offs_n, n, float("inf"), OPT.even_n)
                    if OPT.single_tile_backward:
                        delta = delta_of_output(
                            o_ptr + b * stride_o_b + h * stride_o_h, stride_o_n, do, offset_sums_ptr,
                            d_offset_sums_ptr, bh, offs_n, offs_d, n, max_offset, OPT,
                        )  # fmt: skip
                        delta += delta_of_lse_and_norms(
                            d_lse_ptr, weight_norms_ptr, d_weight_norms_ptr, bh, offs_n, n, OPT
                        )
                    elif OPT.needs_dk:
                        delta = load_numbers(delta_ptr + bh * n, offs_n, n, 0.0, OPT.even_n)
                    else:  # only dv is computed
                        delta = tl.zeros([BLOCK_N], tl.float32)
                    if (OPT.relative_scores or OPT.relative_bias) and REGION != DIAGONAL:
                        lse -= load_edge_scores(edge_scores_ptr, bh, offs_n, n, head, mods, REGION, OPT)
                    d_edge_sum = tl.zeros([BLOCK_N], tl.float32)
                    if OPT.offset_sums and REGION != DIAGONAL:
                        d_edge_sum = load_edge(d_edge_sums_ptr, bh, offs_n, n, REGION, OPT)
                        if not OPT.dropout:
                            delta -= d_edge_sum
                    x = tl.dot(k, tl.trans(q), input_precision=OPT.precision)  # [BLOCK_M, BLOCK_N]
                    if OPT.position_width:
                        position_q = load_positions(
                            position_q_ptr + b * stride_position_q_b + h * stride_position_q_h,
                            stride_position_q_n,
                            offs_n,
                            n,
                            OPT,
                            OPT.even_n,
                        )
                        x = tl.dot(position_k, tl.trans(position_q), x, input_precision=OPT.precision)
                    if OPT.staged_tables and REGION == DIAGONAL:
                        zero = synchronize(OPT)  # the lookups of the previous step are done
                        if OPT.relative_scores:
                            scores = compute_product(q, key_table, smem + zero, max_offset, OPT)
                        if OPT.offset_sums:
                            d_sums_smem = smem + zero + BLOCK_N * OPT.product_pitch
                            d_sums = compute_product(do, table, d_sums_smem, max_offset, OPT)
                        zero = synchronize(OPT)
                        if OPT.relative_scores:
                            scores = product_after_barrier(scores, zero)
                        if OPT.offset_sums:
                            d_sums = product_after_barrier(d_sums, zero)
                    r = j - i - offsets
                    if OPT.relative_scores and REGION == DIAGONAL:
                        if OPT.staged_tables:
                            x += lookup_product_of_keys(scores, tile_i, r, max_offset, q.dtype, OPT)
                        else:
                            x += lookup_pairs(relative_scores_ptr, bh, i, j, n, offsets, max_offset)
                    if OPT.query_table:
                        x += query_table_scores_of_queries(
                            query_table_ptr + h * stride_query_table_h, stride_query_table_r, shift.smem, k,
                            block_start, m, step, tile_i, tile_j, OPT,
                        )  # fmt: skip
                    if OPT.relative_shift:
                        x += shifted_scores_of_queries(shift, q, step, tile_i, tile_j, OPT) + u_dot_k[:, None]
                    e, f = distance_factors(tile_i, tile_j, step * BLOCK_N + offsets, block_start, head, REGION, OPT)
                    f = rectify_factor(x, f, OPT)
                    s, cap_derivative = compute_scores(x, f, i, j, n, m, offsets, mods, REGION, OPT)
                    p = weights_of_queries(s, lse[None, :], OPT)
                    dp = tl.dot(v, tl.trans(do), input_precision=OPT.precision)
                    if OPT.offset_sums and REGION == DIAGONAL:
                        if OPT.staged_tables:
                            dp += lookup_product_of_keys(d_sums, tile_i, r, max_offset, q.dtype, OPT)
                        else:
                            dp += lookup_pairs(d_offset_sums_ptr, bh, i, j, n, offsets, max_offset)
                    kept_p = p
                    if OPT.dropout:
                        if OPT.offset_sums and REGION != DIAGONAL:
                            dp += d_edge_sum[None, :]
                        is_pair_kept = is_kept(dropped, step * BLOCK_N, block_start, tile_i, tile_j)
                        kept_p = tl.where(is_pair_kept, p, dropped.zero)  # scaled after the loops
                        dp = tl.where(is_pair_kept, dp, 0.0) * dropped.scale
                    if OPT.needs_dv:
                        dv = tl.dot(kept_p.to(do.dtype), do, dv, input_precision=OPT.precision)
                    if OPT.received:
                        dp += d_received[:, None]
                        if OPT.single_tile_backward:
                            delta += tl.sum(p * d_received[:, None], axis=0)
                    if OPT.weight_norms:
                        dp += p * load_twice_d_norms(d_weight_norms_ptr, bh, offs_n, n)[None, :]
                    if OPT.single_tile_backward and OPT.distance:  # as delta_of_weights
                        p_sum = tl.sum(p, axis=0)
                        delta = tl.sum(p * dp, axis=0) / tl.where(p_sum > 0.0, p_sum, 1.0)
                        if OPT.has_d_lse:
                            delta -= LOG2E * tl.load(d_lse_ptr + bh * n + offs_n, mask=offs_n < n, other=0.0)
                    dx = p * (dp - delta[None, :])
                    if OPT.softcap:
                        dx *= cap_derivative
                    if OPT.store_d_scores != "":
                        d_scores = d_scores_ptr + b * stride_d_scores_b + h * stride_d_scores_h
                        d_scores += (block_start - chunk_start).to(tl.int64) * stride_d_scores_n
                        d_scores_ptrs = tile_ptrs(d_scores + step * BLOCK_N, tile_j, stride_d_scores_n, tile_i, OPT)
                        tl.store(d_scores_ptrs, dx.to(d_scores_ptr.dtype.element_ty), mask=(i < n) & (j < m))
                    if OPT.distance:
                        if OPT.single_tile_backward and OPT.needs_distance:
                            dw, d_sharpness = distance_grads(
                                dx, x, e, f, tile_i, tile_j, step * BLOCK_N + offsets, block_start, head, REGION, OPT
                            )
                            store_distance_partials(d_distance_partials_ptr, bh, H, dw, d_sharpness, head, scale, OPT)
                        dx *= f
                    if OPT.slopes and OPT.single_tile_backward and OPT.needs_distance:
                        distance = pair_distance(tile_i, tile_j, step * BLOCK_N + offsets, block_start)
                        dw = tl.sum(dx * distance, axis=1)
                        store_distance_partials(d_distance_partials_ptr, bh, H, dw, dw, head, scale, OPT)
                    dx_low = dx.to(q.dtype)
                    if OPT.needs_dk:
                        dk = tl.dot(dx_low, q, dk, input_precision=OPT.precision)
                    if OPT.relative_shift:
                        dx_sum += tl.sum(dx, axis=1)
                    if OPT.single_tile_backward and OPT.needs_dq:
                        dq = tl.dot(tl.trans(dx_low), k, input_precision=OPT.precision)
                        dq *= 1.0 / LOG2E if OPT.distance else scale
                        rows = offs_n[:, None]
                        dq_ptrs = dq_ptr + b * stride_dq_b + h * stride_dq_h + rows * stride_dq_n + offs_e[None, :]
                        dq_mask = (rows < n) & (offs_e[None, :] < OPT.width)
                        tl.store(dq_ptrs, dq.to(dq_ptr.dtype.element_ty), mask=dq_mask)
        if OPT.sum_far_keys:
            lo, hi = query_block_range(block_start, n, m, q_offset, head, mods, FAR_BEFORE, OPT)
            lo_after, hi_after = query_block_range(block_start, n, m, q_offset, head, mods, FAR_AFTER, OPT)
            prefix_sums = prefix_sums_ptr + bh * (tl.cdiv(n, BLOCK_N) + 1) * (OPT.value_width + 1)
            far_dv = sum_far_blocks(prefix_sums, lo, hi, lo_after, hi_after, offs_d, OPT.value_width)
            is_valid = offs_m < m
            if OPT.key_padding:
                is_valid = is_valid & (tl.load(key_padding_ptr + b * m + offs_m, mask=is_valid, other=0) != 0)
            dv += tl.where(is_valid[:, None], tl.where(head.w < 0.0, far_dv, 0.0)[None, :], 0.0)
        if OPT.relative_shift:
            u = tl.load(bias_uv_ptr + h * OPT.width + offs_e, mask=offs_e < OPT.width, other=0.0)
            dk += dx_sum[:, None] * u[None, :]
    if OPT.needs_dk:
        dk = (dk * (1.0 / LOG2E if OPT.distance else scale)).to(dk_ptr.dtype.element_ty)
        dk_ptrs = dk_ptr + b * stride_dk_b + g * stride_dk_h + j * stride_dk_m + offs_e[None, :]
        tl.store(dk_ptrs, dk, mask=(j < m) & (offs_e[None, :] < OPT.width))
    if OPT.needs_dv:
        if OPT.dropout:
            dv *= dropout_scale(dropout)
        dv = dv.to(dv_ptr.dtype.element_ty)
        dv_ptrs = dv_ptr + b * stride_dv_b + g * stride_dv_h + j * stride_dv_m + offs_d[None, :]
        tl.store(dv_ptrs, dv, mask=(j < m) & (offs_d[None, :] < OPT.value_width))
