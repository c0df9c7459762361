"""Kernels of the backward pass that hold a block of queries: dq and the gradient of a shared bias.

Weights are recomputed tile by tile, and every sum has a fixed order. The legend is in `tiles.py`.
"""

import triton
import triton.language as tl

from headwise.attention.triton_backend.backward_delta_kernel import (
    delta_of_lse_and_norms,
    delta_of_output,
    delta_of_weights,
    load_twice_d_norms,
)
from headwise.attention.triton_backend.clipped_table import (
    load_edge,
    load_edge_scores,
    lookup_pairs,
    relative_bias_partials,
    row_stride,
    store_by_offset,
    store_clipped_diagonal_sums,
    store_clipped_sums,
    store_diagonal_sums,
)
from headwise.attention.triton_backend.distance_tiles import (
    distance_factors,
    distance_grads,
    load_head_params,
    pair_distance,
    rectify_factor,
    stage_distance_factors,
)
from headwise.attention.triton_backend.dropout_tiles import is_kept, load_dropout
from headwise.attention.triton_backend.sequence_tiles import query_offsets
from headwise.attention.triton_backend.shared_memory import reserve_smem
from headwise.attention.triton_backend.staged_tables import (
    compute_product,
    edge_scores,
    initial_pairs,
    keep_pairs,
    load_pairs,
    load_table,
    lookup_product,
    product_after_barrier,
    save_product_for_dkv,
    store_rows,
    sum_clipped_before,
    synchronize,
    with_clipped_sums,
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
    first_key_block,
    key_block_range,
    load_block,
    load_block_in_loop,
    load_positions,
    load_slope,
    tile_ptrs,
    visited_tile,
)
from headwise.attention.triton_backend.transformer_xl_kernels import (
    QueryBlockShift,
    add_biases,
    initial_dx,
    initial_product,
    preceding_product,
    query_table_scores_of_keys,
    shifted_scores_of_keys,
    store_dz_tile,
)


@triton.jit
def store_distance_partials(d_distance_partials_ptr, bh, H, dw, d_sharpness, head, scale, OPT: tl.constexpr):
    """Store this program's part of the gradients of a head's w and v, or of its slope, [2, B, H, blocks]."""
    ptr = d_distance_partials_ptr + bh * tl.num_programs(0) + tl.program_id(0)
    if OPT.slopes:
        tl.store(ptr, tl.sum(dw))
    else:
        count = tl.num_programs(0) * H * tl.num_programs(2)
        tl.store(ptr, tl.sum(dw) / LOG2E)
        tl.store(ptr + count, tl.sum(d_sharpness) * (head.c * scale))


@triton.jit
def bwd_dq_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, do_ptr, lse_ptr, delta_ptr, d_received_ptr, dq_ptr, d_relative_scores_ptr,
    d_scores_ptr, d_distance_partials_ptr, d_relative_bias_partials_ptr, prefix_sums_ptr, w_ptr, sharpness_ptr,
    relative_scores_ptr, edge_scores_ptr,
    offset_sums_ptr, d_offset_sums_ptr, d_edge_sums_ptr, d_lse_ptr, weight_norms_ptr, d_weight_norms_ptr,
    bias_uv_ptr, dense_table_ptr, relative_q_ptr, d_bias_u_partials_ptr, sinks_ptr,
    query_table_ptr, relative_bias_ptr,
    key_table_ptr, value_table_ptr, key_padding_ptr, mask_ptr, bias_ptr, seq_starts_ptr, seq_ends_ptr, visited_ptr,
    seed_ptr, stride_key_table_h, stride_value_table_h,
    position_q_ptr, position_k_ptr, d_position_q_ptr, stride_position_q_b, stride_position_q_h, stride_position_q_n,
    stride_position_k_b, stride_position_k_h, stride_position_k_m,
    stride_relative_q_b, stride_relative_q_h, stride_relative_q_n, stride_dense_table_h, stride_dense_table_r,
    stride_query_table_h, stride_query_table_r,
    stride_q_b, stride_q_h, stride_q_n, stride_k_b, stride_k_h, stride_k_m, stride_v_b, stride_v_h, stride_v_m,
    stride_o_b, stride_o_h, stride_o_n, stride_do_b, stride_do_h, stride_do_n, stride_dq_b, stride_dq_h, stride_dq_n,
    stride_mask_b, stride_mask_h, stride_mask_n, stride_mask_m, stride_visited_b, stride_visited_h,
    stride_bias_b, stride_bias_h, stride_bias_n, stride_bias_m, stride_d_scores_b, stride_d_scores_h, stride_d_scores_n,
    H, GROUP, chunk_start, n, m, q_offset, window_left, window_right, softcap, max_offset, scale, dropout,
    OPT: tl.constexpr,
):  # fmt: skip
    """Compute dq, the gradient of the relative scores, and this block's part of the gradients of w and v.

    One program per query block, starting at query chunk_start. Stores delta too, unless bwd_received_kernel computed
    it, and the gradient of each pair's score if requested. With a dense table it also stores the queries plus bias v
    and this block's part of the gradient of bias u. bwd_dense_table_kernel adds the products of dz and the table to dq.

    With OPT.received_in_dq, delta = δ + ε, where ε_i = Σ_j P_ij d_received_j is known only after the last tile. Then
    dq = Σ_j P_ij (dP_ij + d_received_j − δ_i) k_j − ε_i Σ_j P_ij k_j, which needs no second pass over the keys.
    """
    BLOCK_N: tl.constexpr = OPT.block_n
    BLOCK_M: tl.constexpr = OPT.block_m
    BLOCK_E: tl.constexpr = OPT.block_e
    BLOCK_D: tl.constexpr = OPT.block_d
    STORES_DZ: tl.constexpr = OPT.store_d_scores == "dz"
    block_start = chunk_start + tl.program_id(0) * BLOCK_N
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
    lse = tl.load(lse_ptr + bh * n + offs_n, mask=offs_n < n, other=float("inf"))
    if OPT.received and not OPT.received_in_dq:
        delta = tl.load(delta_ptr + bh * n + offs_n, mask=offs_n < n, other=0.0)
    else:
        o_bh = o_ptr + b * stride_o_b + h * stride_o_h
        delta = delta_of_output(
            o_bh, stride_o_n, do, offset_sums_ptr, d_offset_sums_ptr, bh, offs_n, offs_d, n, max_offset, OPT
        )
        delta += delta_of_lse_and_norms(d_lse_ptr, weight_norms_ptr, d_weight_norms_ptr, bh, offs_n, n, OPT)
    twice_d_norms = tl.zeros([BLOCK_N], tl.float32)
    if OPT.weight_norms:
        twice_d_norms = load_twice_d_norms(d_weight_norms_ptr, bh, offs_n, n)
    k_ptr += b * stride_k_b + (h // GROUP) * stride_k_h
    v_ptr += b * stride_v_b + (h // GROUP) * stride_v_h
    d_relative_scores = d_relative_scores_ptr + bh * n * row_stride(max_offset)
    if OPT.position_width:
        BLOCK_P: tl.constexpr = OPT.block_p
        offs_p = tl.arange(0, BLOCK_P)
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
    if OPT.staged_tables:
        smem = reserve_smem(OPT)
        pairs_smem = smem + 2 * BLOCK_N * OPT.product_pitch
        if OPT.relative_scores:
            key_table = load_table(key_table_ptr, stride_key_table_h, h, max_offset, OPT.width, BLOCK_E, OPT)
            scores = compute_product(q, key_table, smem, max_offset, OPT)
            pairs = initial_pairs(pairs_smem, 0.0, OPT)
        if OPT.offset_sums:
            table = load_table(value_table_ptr, stride_value_table_h, h, max_offset, OPT.value_width, BLOCK_D, OPT)
            d_sums = compute_product(do, table, smem + BLOCK_N * OPT.product_pitch, max_offset, OPT)
            save_product_for_dkv(d_offset_sums_ptr, d_edge_sums_ptr, d_sums, bh, offs_n, n, OPT)
        zero = synchronize(OPT)
        if OPT.relative_scores:
            scores = product_after_barrier(scores, zero)
        if OPT.offset_sums:
            d_sums = product_after_barrier(d_sums, zero)
    if OPT.staged_distance:
        head = stage_distance_factors(head, reserve_smem(OPT), 1 - BLOCK_N - block_start - q_offset, OPT)
    q_offset = query_offsets(i, n, q_offset, mods, OPT)
    if OPT.relative_shift:
        q, relative_q = add_biases(q, bias_uv_ptr, h, H, OPT)
        relative_q_ptr += b * stride_relative_q_b + h * stride_relative_q_h
        relative_q_ptrs = relative_q_ptr + (i - chunk_start) * stride_relative_q_n + offs_e[None, :]
        # Whole tiles of dz are multiplied with whole blocks of queries.
        is_stored = offs_e[None, :] < OPT.width if STORES_DZ else (i < n) & (offs_e[None, :] < OPT.width)
        tl.store(relative_q_ptrs, relative_q, mask=is_stored)
        table_ptr = dense_table_ptr + h * stride_dense_table_h
        shift = QueryBlockShift(
            relative_q, table_ptr, stride_dense_table_r, n - block_start, reserve_smem(OPT, HAS_QUERIES=True)
        )
        first_step = first_key_block(block_start, n, m, q_offset, head, mods, OPT)
        product = initial_product(shift, block_start // BLOCK_N, first_step, OPT)
    dropped = load_dropout(seed_ptr, bh, dropout, OPT)
    if not OPT.received:
        if OPT.distance:
            if head.has_large_scores:
                delta = delta_of_weights(
                    q, do, lse, twice_d_norms, k_ptr, v_ptr, d_received_ptr, d_lse_ptr, dropped, stride_k_m, stride_v_m,
                    block_start, bh, h, n, m, q_offset, head, mods, sinks_ptr, OPT,
                )  # fmt: skip
        tl.store(delta_ptr + bh * n + offs_n, delta, mask=offs_n < n)
    d_scores = d_scores_ptr + b * stride_d_scores_b + h * stride_d_scores_h
    d_scores += (block_start - chunk_start).to(tl.int64) * stride_d_scores_n
    dq = tl.zeros([BLOCK_N, BLOCK_E], tl.float32)
    if OPT.received_in_dq:
        delta_received = tl.zeros([BLOCK_N], tl.float32)
        weighted_k = tl.zeros([BLOCK_N, BLOCK_E], tl.float32)
    if STORES_DZ:
        # A row of d_scores is one element shorter than one of dz, whose column 0 of a key block has its key −1.
        dz_ptr, stride_dz_n = d_scores + 1, stride_d_scores_n + 1
        previous_dx = initial_dx(q.dtype, OPT)
        next_step = -1
    if OPT.needs_position_q:
        d_position_q = tl.zeros([BLOCK_N, BLOCK_P], tl.float32)
    dw = tl.zeros([BLOCK_N], tl.float32)
    d_sharpness = tl.zeros([BLOCK_N], tl.float32)
    sum_before = tl.zeros([BLOCK_N], tl.float32)
    sum_after = tl.zeros([BLOCK_N], tl.float32)
    dx_sum = tl.zeros([BLOCK_N], tl.float32)
    if OPT.needs_relative_bias:
        bias_partials_ptr = relative_bias_partials(d_relative_bias_partials_ptr, bh, max_offset)
        bias_before = tl.zeros([BLOCK_M], tl.float32)
        bias_after = tl.zeros([BLOCK_M], tl.float32)
    for REGION in tl.static_range(NUM_REGIONS):
        if (OPT.regions >> REGION) & 1:
            lo, hi = key_block_range(block_start, n, m, q_offset, head, mods, REGION, OPT)
            if OPT.sum_far_keys and (REGION == FAR_BEFORE or REGION == FAR_AFTER):
                hi = tl.where(head.w < 0.0, lo, hi)  # far keys score 0 for every query
            region_lse, region_delta = lse, delta
            if (OPT.relative_scores or OPT.relative_bias) and REGION != DIAGONAL:
                if OPT.staged_tables and OPT.relative_scores:
                    region_lse -= edge_scores(scores, head, mods, REGION, OPT)
                else:
                    region_lse -= load_edge_scores(edge_scores_ptr, bh, offs_n, n, head, mods, REGION, OPT)
            d_edge_sum = tl.zeros([BLOCK_N], tl.float32)
            if OPT.offset_sums and REGION != DIAGONAL:
                if OPT.staged_tables:
                    d_edge_sum = d_sums.after if REGION == FAR_AFTER else d_sums.before
                else:
                    d_edge_sum = load_edge(d_edge_sums_ptr, bh, offs_n, n, REGION, OPT)
                if not OPT.dropout:
                    region_delta -= d_edge_sum
            for index in range(lo, hi):
                step = visited_tile(index, block_start // BLOCK_N, tl.cdiv(m, BLOCK_M), mods.visited_ptr, OPT)
                offs_m = step * BLOCK_M + tl.arange(0, BLOCK_M)
                j = offs_m[None, :]
                k = load_block_in_loop(k_ptr, stride_k_m, offs_m, offs_e, m, OPT.width, BLOCK_E, OPT.even_m)
                v = load_block_in_loop(v_ptr, stride_v_m, offs_m, offs_d, m, OPT.value_width, BLOCK_D, OPT.even_m)
                d_received = tl.zeros([BLOCK_M], tl.float32)
                if OPT.received:
                    d_received = tl.load(d_received_ptr + bh * m + offs_m, mask=offs_m < m, other=0.0)
                x = tl.dot(q, tl.trans(k), input_precision=OPT.precision)  # [BLOCK_N, BLOCK_M]
                if OPT.position_width:
                    position_k = load_positions(position_k_ptr, stride_position_k_m, offs_m, m, OPT, OPT.even_m)
                    x = tl.dot(position_q, tl.trans(position_k), x, input_precision=OPT.precision)
                r = j - i - q_offset
                if OPT.relative_scores and REGION == DIAGONAL:
                    if OPT.staged_tables:
                        x += lookup_product(scores, tile_i, r, max_offset, q.dtype, OPT)
                    else:
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
                e, f = distance_factors(tile_i, tile_j, block_start + q_offset, step * BLOCK_M, head, REGION, OPT)
                f = rectify_factor(x, f, OPT)
                s, cap_derivative = compute_scores(x, f, i, j, n, m, q_offset, mods, REGION, OPT)
                p = tl.exp2(s - region_lse[:, None])
                dp = tl.dot(do, tl.trans(v), input_precision=OPT.precision)
                if OPT.offset_sums and REGION == DIAGONAL:
                    if OPT.staged_tables:
                        dp += lookup_product(d_sums, tile_i, r, max_offset, q.dtype, OPT)
                    else:
                        dp += lookup_pairs(d_offset_sums_ptr, bh, i, j, n, q_offset, max_offset)
                if OPT.dropout:
                    if OPT.offset_sums and REGION != DIAGONAL:
                        dp += d_edge_sum[:, None]
                    is_pair_kept = is_kept(dropped, block_start, step * BLOCK_M, tile_i, tile_j)
                    dp = tl.where(is_pair_kept, dp, 0.0) * dropped.scale
                if OPT.received and not OPT.received_in_dq:
                    dp += d_received[None, :]
                if OPT.weight_norms:
                    dp += p * twice_d_norms[:, None]
                if OPT.received_in_dq:  # as a sum, dp would start at d_received, and the products would be serialized
                    dx = p * (dp - (region_delta[:, None] - d_received[None, :]))
                else:
                    dx = p * (dp - region_delta[:, None])
                if OPT.store_d_scores != "" and not STORES_DZ:
                    d_scores_ptrs = tile_ptrs(d_scores + step * BLOCK_M, tile_i, stride_d_scores_n, tile_j, OPT)
                if OPT.store_d_scores == "after-softcap":
                    tl.store(d_scores_ptrs, dx.to(d_scores_ptr.dtype.element_ty), mask=(i < n) & (j < m))
                if OPT.softcap:
                    dx *= cap_derivative
                if OPT.store_d_scores == "before-softcap":
                    tl.store(d_scores_ptrs, dx.to(d_scores_ptr.dtype.element_ty), mask=(i < n) & (j < m))
                if STORES_DZ:
                    previous_dx = store_dz_tile(shift, previous_dx, dx, dz_ptr, stride_dz_n, step, tile_i, tile_j, OPT)
                    next_step = step + 1
                if OPT.needs_relative_bias:
                    if REGION == FAR_BEFORE:
                        bias_before += tl.sum(dx, axis=0)
                    elif REGION == FAR_AFTER:
                        bias_after += tl.sum(dx, axis=0)
                    else:
                        offset = step * BLOCK_M - block_start - q_offset
                        before, after = store_diagonal_sums(
                            bias_partials_ptr, dx, tile_i, tile_j, offset, H, max_offset, OPT
                        )
                        bias_before += before
                        bias_after += after
                if OPT.distance:
                    if OPT.needs_distance:
                        dw_tile, d_sharpness_tile = distance_grads(
                            dx, x, e, f, tile_i, tile_j, block_start + q_offset, step * BLOCK_M, head, REGION, OPT
                        )
                        dw += dw_tile
                        d_sharpness += d_sharpness_tile
                    dx *= f
                if OPT.slopes and OPT.needs_distance:
                    dw += tl.sum(dx * pair_distance(tile_i, tile_j, block_start + q_offset, step * BLOCK_M), axis=1)
                if OPT.relative_scores and OPT.staged_tables:
                    dx_sum += tl.sum(dx, axis=1)
                    if REGION == FAR_BEFORE:
                        sum_before += tl.sum(dx, axis=1)
                    elif REGION == DIAGONAL:
                        offset = step * BLOCK_M - block_start - q_offset
                        pairs = keep_pairs(pairs, pairs_smem, dx, tile_i, r, offset, max_offset, OPT)
                        if not OPT.causal:
                            sum_before += sum_clipped_before(dx, r, max_offset)
                elif OPT.relative_scores and OPT.needs_relative:
                    if REGION == FAR_BEFORE:
                        sum_before += tl.sum(dx, axis=1) * scale
                    elif REGION == FAR_AFTER:
                        sum_after += tl.sum(dx, axis=1) * scale
                    else:
                        before, after = store_by_offset(d_relative_scores, dx * scale, i, j, n, m, q_offset, max_offset)
                        sum_before += before
                        sum_after += after
                if OPT.received_in_dq:
                    delta_received += tl.sum(p * d_received[None, :], axis=1)
                    weighted_k = tl.dot(p.to(k.dtype), k, weighted_k, input_precision=OPT.precision)
                if OPT.needs_dq:
                    dq = tl.dot(dx.to(k.dtype), k, dq, input_precision=OPT.precision)
                if OPT.needs_position_q:
                    d_position_q = tl.dot(dx.to(k.dtype), position_k, d_position_q, input_precision=OPT.precision)
    if OPT.received_in_dq:
        dq -= delta_received[:, None] * weighted_k
        tl.store(delta_ptr + bh * n + offs_n, delta + delta_received, mask=offs_n < n)
    dq *= 1.0 / LOG2E if OPT.distance else scale
    if STORES_DZ:
        # The last tile of dz, if there was a step. A loop for the reason that initial_product has one.
        for step in tl.range(next_step, next_step + (next_step >= 0).to(tl.int32), num_stages=1):
            dx = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
            previous_dx = store_dz_tile(shift, previous_dx, dx, dz_ptr, stride_dz_n, step, tile_i, tile_j, OPT)
    if OPT.staged_tables and OPT.relative_scores:
        near_dx = load_pairs(pairs, pairs_smem + synchronize(OPT), 0.0, OPT)
        d_scores_rows = (with_clipped_sums(near_dx, sum_before, dx_sum, max_offset, OPT) * scale).to(q.dtype)
        store_rows(d_relative_scores_ptr, d_scores_rows, bh, offs_n, n, OPT)
        table = load_table(key_table_ptr, stride_key_table_h, h, max_offset, OPT.width, BLOCK_E, OPT)
        dq = tl.dot(d_scores_rows, table.to(q.dtype), dq, input_precision=OPT.precision)
    if OPT.relative_shift:
        partial = (bh * tl.cdiv(n, BLOCK_N) + block_start // BLOCK_N) * OPT.width + offs_e
        tl.store(d_bias_u_partials_ptr + partial, tl.sum(dq, axis=0), mask=offs_e < OPT.width)
    if OPT.needs_dq:
        dq_ptrs = dq_ptr + b * stride_dq_b + h * stride_dq_h + i * stride_dq_n + offs_e[None, :]
        tl.store(dq_ptrs, dq.to(dq_ptr.dtype.element_ty), mask=(i < n) & (offs_e[None, :] < OPT.width))
    if OPT.needs_position_q:
        d_position_q_ptrs = d_position_q_ptr + (bh * n + i) * OPT.position_width + offs_p[None, :]
        position_mask = (i < n) & (offs_p[None, :] < OPT.position_width)
        tl.store(d_position_q_ptrs, (d_position_q * scale).to(d_position_q_ptr.dtype.element_ty), mask=position_mask)
    if OPT.sum_far_keys:  # this block's part of dv of far keys, whose weight is that of a score of 0
        far_dv = tl.sum(do.to(tl.float32) * tl.exp2(-lse)[:, None], axis=0)
        block_index = bh * (tl.num_programs(0) + 1) + tl.program_id(0) + 1
        far_dv_ptrs = prefix_sums_ptr + block_index * (OPT.value_width + 1) + offs_d
        tl.store(far_dv_ptrs, far_dv, mask=offs_d < OPT.value_width)
    if (OPT.distance or OPT.slopes) and OPT.needs_distance:
        store_distance_partials(d_distance_partials_ptr, bh, H, dw, d_sharpness, head, scale, OPT)
    if OPT.needs_relative_bias:
        store_clipped_diagonal_sums(bias_partials_ptr, bias_before, bias_after, max_offset)
    if OPT.relative_scores and OPT.needs_relative and not OPT.staged_tables:
        store_clipped_sums(d_relative_scores, sum_before, sum_after, offs_n, n, max_offset)


@triton.jit
def bwd_dbias_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, d_received_ptr, d_bias_ptr, w_ptr, sharpness_ptr,
    relative_scores_ptr, d_offset_sums_ptr, d_weight_norms_ptr,
    relative_bias_ptr, key_padding_ptr, mask_ptr, bias_ptr, seq_starts_ptr, seq_ends_ptr, visited_ptr, seed_ptr,
    position_q_ptr, position_k_ptr, stride_position_q_b, stride_position_q_h, stride_position_q_n,
    stride_position_k_b, stride_position_k_h, stride_position_k_m,
    stride_q_b, stride_q_h, stride_q_n, stride_k_b, stride_k_h, stride_k_m, stride_v_b, stride_v_h, stride_v_m,
    stride_do_b, stride_do_h, stride_do_n, stride_mask_b, stride_mask_h, stride_mask_n, stride_mask_m,
    stride_bias_b, stride_bias_h, stride_bias_n, stride_bias_m,
    H, GROUP, BIAS_B, BIAS_H, B, n, m, q_offset, window_left, window_right, softcap, max_offset, scale, dropout,
    OPT: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of a bias [BIAS_B, BIAS_H, N, M] that heads or batch elements share.

    One program per tile of the bias.
    """
    BLOCK_N: tl.constexpr = OPT.block_n
    BLOCK_M: tl.constexpr = OPT.block_m
    BLOCK_E: tl.constexpr = OPT.block_e
    BLOCK_D: tl.constexpr = OPT.block_d
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_m = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    i, j = offs_n[:, None], offs_m[None, :]
    offs_e, offs_d = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_D)
    bias_bh = tl.program_id(1).to(tl.int64)
    d_bias = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for b in range(bias_bh // BIAS_H, B, BIAS_B):
        for h in range(bias_bh % BIAS_H, H, BIAS_H):
            bh = b * H + h
            q_bh = q_ptr + b * stride_q_b + h * stride_q_h
            q = load_block(q_bh, stride_q_n, offs_n, offs_e, n, OPT.width, BLOCK_E)  # [BLOCK_N, BLOCK_E]
            k_bh = k_ptr + b * stride_k_b + (h // GROUP) * stride_k_h
            k = load_block(k_bh, stride_k_m, offs_m, offs_e, m, OPT.width, BLOCK_E)  # [BLOCK_M, BLOCK_E]
            v_bh = v_ptr + b * stride_v_b + (h // GROUP) * stride_v_h
            v = load_block(v_bh, stride_v_m, offs_m, offs_d, m, OPT.value_width, BLOCK_D)  # [BLOCK_M, BLOCK_D]
            do_bh = do_ptr + b * stride_do_b + h * stride_do_h
            do = load_block(do_bh, stride_do_n, offs_n, offs_d, n, OPT.value_width, BLOCK_D)  # [BLOCK_N, BLOCK_D]
            lse = tl.load(lse_ptr + bh * n + offs_n, mask=offs_n < n, other=float("inf"))
            delta = tl.load(delta_ptr + bh * n + offs_n, mask=offs_n < n, other=0.0)
            mods = MaskAndBias(
                key_padding_ptr + b * m, mask_ptr + b * stride_mask_b + h * stride_mask_h, stride_mask_n, stride_mask_m,
                bias_ptr + b * stride_bias_b + h * stride_bias_h, stride_bias_n, stride_bias_m, seq_starts_ptr,
                seq_ends_ptr, visited_ptr, window_left, window_right, softcap,
                load_slope(w_ptr, h, OPT), relative_bias_ptr + h * (2 * max_offset + 1), max_offset,
            )  # fmt: skip
            head = load_head_params(w_ptr, sharpness_ptr, h, scale, max_offset, OPT)
            x = tl.dot(q, tl.trans(k), input_precision=OPT.precision)  # [BLOCK_N, BLOCK_M]
            if OPT.position_width:
                position_q_bh = position_q_ptr + b * stride_position_q_b + h * stride_position_q_h
                position_q = load_positions(position_q_bh, stride_position_q_n, offs_n, n, OPT)
                position_k_bh = position_k_ptr + b * stride_position_k_b + (h // GROUP) * stride_position_k_h
                position_k = load_positions(position_k_bh, stride_position_k_m, offs_m, m, OPT)
                x = tl.dot(position_q, tl.trans(position_k), x, input_precision=OPT.precision)
            dp = tl.dot(do, tl.trans(v), input_precision=OPT.precision)
            if OPT.relative_scores:
                x += lookup_pairs(relative_scores_ptr, bh, i, j, n, q_offset, max_offset)
            if OPT.offset_sums:
                dp += lookup_pairs(d_offset_sums_ptr, bh, i, j, n, q_offset, max_offset)
            _, f = distance_factors(i, j, q_offset, 0, head, DIAGONAL, OPT)
            f = rectify_factor(x, f, OPT)
            s, _ = compute_scores(x, f, i, j, n, m, q_offset, mods, DIAGONAL, OPT)
            p = tl.exp2(s - lse[:, None])
            if OPT.dropout:
                dropped = load_dropout(seed_ptr, bh, dropout, OPT)
                dp = tl.where(is_kept(dropped, 0, 0, i, j), dp * dropped.scale, 0.0)
            if OPT.received:
                dp += tl.load(d_received_ptr + bh * m + offs_m, mask=offs_m < m, other=0.0)[None, :]
            if OPT.weight_norms:
                dp += p * load_twice_d_norms(d_weight_norms_ptr, bh, offs_n, n)[:, None]
            d_bias += p * (dp - delta[:, None])
    ptrs = d_bias_ptr + (bias_bh * n + i) * m + j
    tl.store(ptrs, d_bias.to(d_bias_ptr.dtype.element_ty), mask=(i < n) & (j < m))
