"""Kernels of the forward pass: output, lse, weight norms, sums of weights by relative position, and received attention.

`tiles.py` explains the notation. In names, an offset is a relative position; only q_offset is a position, that of
the first query.
"""

import triton
import triton.language as tl

from headwise.attention.triton_backend.clipped_table import (
    load_edge_scores,
    lookup_pairs,
    row_stride,
    store_by_offset,
    store_clipped_sums,
)
from headwise.attention.triton_backend.distance_tiles import (
    distance_factors,
    load_head_params,
    rectify,
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
    AFTER,
    BEFORE,
    DIAGONAL,
    FAR_AFTER,
    FAR_BEFORE,
    NUM_REGIONS,
    MaskAndBias,
    batch_head_index,
    compute_scores,
    first_key_block,
    key_block_range,
    load_block,
    load_block_in_loop,
    load_numbers,
    load_positions,
    load_sink,
    load_slope,
    query_block_range,
    sum_far_blocks,
    visited_tile,
)
from headwise.attention.triton_backend.transformer_xl_kernels import (
    KeyBlockShift,
    QueryBlockShift,
    add_biases,
    initial_product,
    preceding_product,
    query_table_scores_of_keys,
    query_table_scores_of_queries,
    shifted_scores_of_keys,
    shifted_scores_of_queries,
    weights_of_queries,
)


@triton.jit
def fwd_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, weight_norms_ptr, offset_sums_ptr, w_ptr, sharpness_ptr,
    relative_scores_ptr, edge_scores_ptr, prefix_sums_ptr, bias_uv_ptr, dense_table_ptr, sinks_ptr,
    query_table_ptr, relative_bias_ptr, key_table_ptr, value_table_ptr,
    key_padding_ptr, query_padding_ptr, mask_ptr, bias_ptr, seq_starts_ptr, seq_ends_ptr, visited_ptr, seed_ptr,
    position_q_ptr, position_k_ptr, stride_position_q_b, stride_position_q_h, stride_position_q_n,
    stride_position_k_b, stride_position_k_h, stride_position_k_m,
    stride_key_table_h, stride_value_table_h,
    stride_dense_table_h, stride_dense_table_r, stride_query_table_h, stride_query_table_r,
    stride_q_b, stride_q_h, stride_q_n, stride_k_b, stride_k_h, stride_k_m,
    stride_v_b, stride_v_h, stride_v_m, stride_o_b, stride_o_h, stride_o_n,
    stride_mask_b, stride_mask_h, stride_mask_n, stride_mask_m, stride_visited_b, stride_visited_h,
    stride_bias_b, stride_bias_h, stride_bias_n, stride_bias_m,
    H, GROUP, n, m, q_offset, window_left, window_right, softcap, max_offset, scale, dropout, OPT: tl.constexpr,
):  # fmt: skip
    """Compute o, lse, and on request weight norms and weight sums by relative position. One program per query block."""
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
    # [BLOCK_N, BLOCK_E]
    q = load_block(q_ptr + b * stride_q_b + h * stride_q_h, stride_q_n, offs_n, offs_e, n, OPT.width, BLOCK_E)
    k_ptr += b * stride_k_b + (h // GROUP) * stride_k_h
    v_ptr += b * stride_v_b + (h // GROUP) * stride_v_h
    if OPT.position_width:
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
        pairs_smem = smem + BLOCK_N * OPT.product_pitch
        if OPT.relative_scores:
            key_table = load_table(key_table_ptr, stride_key_table_h, h, max_offset, OPT.width, BLOCK_E, OPT)
            scores = compute_product(q, key_table, smem, max_offset, OPT)
            save_product_for_dkv(relative_scores_ptr, edge_scores_ptr, scores, bh, offs_n, n, OPT)
        if OPT.offset_sums:
            pairs = initial_pairs(pairs_smem, float("-inf"), OPT)
        zero = synchronize(OPT)
        if OPT.relative_scores:
            scores = product_after_barrier(scores, zero)
    if OPT.staged_distance:
        head = stage_distance_factors(head, reserve_smem(OPT), 1 - BLOCK_N - block_start - q_offset, OPT)
    q_offset = query_offsets(i, n, q_offset, mods, OPT)
    if OPT.relative_shift:
        q, relative_q = add_biases(q, bias_uv_ptr, h, H, OPT)
        table_ptr = dense_table_ptr + h * stride_dense_table_h
        shift = QueryBlockShift(
            relative_q, table_ptr, stride_dense_table_r, n - block_start, reserve_smem(OPT, HAS_QUERIES=True)
        )
        first_step = first_key_block(block_start, n, m, q_offset, head, mods, OPT)
        product = initial_product(shift, block_start // BLOCK_N, first_step, OPT)
    dropped = load_dropout(seed_ptr, bh, dropout, OPT)

    row_max = tl.full([BLOCK_N], 0.0 if OPT.sinks else float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_N], tl.float32)
    weight_norms = tl.zeros([BLOCK_N], tl.float32)
    sum_before = tl.zeros([BLOCK_N], tl.float32)  # weights of clipped relative positions
    sum_after = tl.zeros([BLOCK_N], tl.float32)
    kept_sum = tl.zeros([BLOCK_N], tl.float32)  # weights that are not dropped
    acc = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    if OPT.sinks:
        row_max += load_sink(sinks_ptr, h)
        row_sum += 1.0
    for REGION in tl.static_range(NUM_REGIONS):
        if (OPT.regions >> REGION) & 1:
            lo, hi = key_block_range(block_start, n, m, q_offset, head, mods, REGION, OPT)
            if OPT.sum_far_keys and (REGION == FAR_BEFORE or REGION == FAR_AFTER):
                hi = tl.where(head.w < 0.0, lo, hi)  # far keys have score 0
            edge_score = tl.zeros([BLOCK_N], tl.float32)
            if (OPT.relative_scores or OPT.relative_bias) and REGION != DIAGONAL:
                if OPT.staged_tables and OPT.relative_scores:
                    edge_score = edge_scores(scores, head, mods, REGION, OPT)
                else:
                    edge_score = load_edge_scores(edge_scores_ptr, bh, offs_n, n, head, mods, REGION, OPT)
            for index in range(lo, hi):
                step = visited_tile(index, block_start // BLOCK_N, tl.cdiv(m, BLOCK_M), mods.visited_ptr, OPT)
                offs_m = step * BLOCK_M + tl.arange(0, BLOCK_M)
                j = offs_m[None, :]
                k = load_block_in_loop(k_ptr, stride_k_m, offs_m, offs_e, m, OPT.width, BLOCK_E, OPT.even_m)
                x = tl.dot(q, tl.trans(k), input_precision=OPT.precision)  # [BLOCK_N, BLOCK_M]
                if OPT.position_width:
                    position_k = load_positions(position_k_ptr, stride_position_k_m, offs_m, m, OPT, OPT.even_m)
                    x = tl.dot(position_q, tl.trans(position_k), x, input_precision=OPT.precision)
                if OPT.relative_scores and REGION == DIAGONAL:
                    if OPT.staged_tables:
                        x += lookup_product(scores, tile_i, j - i - q_offset, max_offset, q.dtype, OPT)
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
                _, f = distance_factors(tile_i, tile_j, block_start + q_offset, step * BLOCK_M, head, REGION, OPT)
                # A factor that all pairs share is applied in the exponent, where it takes no extra time.
                has_bias: tl.constexpr = OPT.bias or OPT.slopes or (OPT.relative_bias and REGION == DIAGONAL)
                is_near: tl.constexpr = OPT.distance and REGION >= BEFORE and REGION <= AFTER
                is_shared: tl.constexpr = not (OPT.softcap or has_bias or is_near)
                exponent_factor = tl.maximum(f, 1e-30) if is_shared else 1.0  # −∞ · 0 would not be −∞
                score_factor = 1.0 if is_shared else f
                s, _ = compute_scores(rectify(x, OPT), score_factor, i, j, n, m, q_offset, mods, REGION, OPT)
                new_max = tl.maximum(row_max, tl.max(s, axis=1) * exponent_factor + edge_score)
                finite_max = tl.where(new_max == float("-inf"), 0.0, new_max)
                p = tl.exp2(s * exponent_factor - (finite_max - edge_score)[:, None])
                if OPT.staged_tables and OPT.offset_sums and REGION == DIAGONAL:
                    offset = step * BLOCK_M - block_start - q_offset
                    pairs = keep_pairs(
                        pairs, pairs_smem, s * exponent_factor, tile_i, j - i - q_offset, offset, max_offset, OPT
                    )
                rescale = tl.exp2(row_max - finite_max)
                row_sum = row_sum * rescale + tl.sum(p, axis=1)
                if OPT.weight_norms:
                    weight_norms = weight_norms * rescale * rescale + tl.sum(p * p, axis=1)
                acc = acc * rescale[:, None]
                if OPT.dropout:  # kept weights are scaled after the loops
                    p = tl.where(is_kept(dropped, block_start, step * BLOCK_M, tile_i, tile_j), p, dropped.zero)
                if OPT.offset_sums:
                    sum_before *= rescale
                    sum_after *= rescale
                    if REGION == FAR_BEFORE:
                        sum_before += tl.sum(p, axis=1)
                    if OPT.staged_tables:
                        if REGION == DIAGONAL and not OPT.causal:
                            sum_before += sum_clipped_before(p, j - i - q_offset, max_offset)
                        if OPT.dropout:
                            kept_sum = kept_sum * rescale + tl.sum(p, axis=1)
                    elif REGION == FAR_AFTER:
                        sum_after += tl.sum(p, axis=1)
                v = load_block_in_loop(v_ptr, stride_v_m, offs_m, offs_d, m, OPT.value_width, BLOCK_D, OPT.even_m)
                acc = tl.dot(p.to(v.dtype), v, acc, input_precision=OPT.precision)
                row_max = new_max

    if OPT.sum_far_keys:  # after the loops: the compiler serializes the products of loops that follow
        lo, hi = key_block_range(block_start, n, m, q_offset, head, mods, FAR_BEFORE, OPT)
        lo_after, hi_after = key_block_range(block_start, n, m, q_offset, head, mods, FAR_AFTER, OPT)
        kv_head = b * (H // GROUP) + h // GROUP
        prefix_sums = prefix_sums_ptr + kv_head * (tl.cdiv(m, BLOCK_M) + 1) * (OPT.value_width + 1)
        count = sum_far_blocks(prefix_sums, lo, hi, lo_after, hi_after, OPT.value_width, OPT.value_width)
        far_sum = sum_far_blocks(prefix_sums, lo, hi, lo_after, hi_after, offs_d, OPT.value_width)
        has_far = (head.w < 0.0) & (count > 0.0)
        new_max = tl.where(has_far, tl.maximum(row_max, 0.0), row_max)
        rescale = tl.where(has_far, tl.exp2(row_max - new_max), 1.0)
        p_far = tl.where(has_far, tl.exp2(-new_max), 0.0)  # of a far key, whose score is 0
        row_sum = row_sum * rescale + count * p_far
        weight_norms = weight_norms * rescale * rescale + count * p_far * p_far
        acc = acc * rescale[:, None] + far_sum[None, :] * p_far[:, None]
        row_max = new_max

    is_valid = (row_max != float("-inf")) & (offs_n < n)
    if OPT.query_padding:
        is_valid = is_valid & (tl.load(query_padding_ptr + b * n + offs_n, mask=offs_n < n, other=0) != 0)
    row_sum = tl.where(is_valid, row_sum, 1.0)
    inv_sum = tl.where(is_valid, 1.0 / row_sum, 0.0)
    # lse is +∞ for rows without a key, so 2^(s − lse) is 0 in the backward pass too.
    lse = tl.where(is_valid, row_max + tl.log2(row_sum), float("inf"))
    tl.store(lse_ptr + bh * n + offs_n, lse, mask=offs_n < n)
    if OPT.weight_norms:
        tl.store(weight_norms_ptr + bh * n + offs_n, weight_norms * inv_sum * inv_sum, mask=offs_n < n)
    inv_kept_sum = inv_sum * dropped.scale
    o = acc * inv_kept_sum[:, None]
    if OPT.staged_tables and OPT.offset_sums:
        near_scores = load_pairs(pairs, pairs_smem + synchronize(OPT), float("-inf"), OPT)
        sums = tl.exp2(near_scores - lse[:, None])
        if OPT.dropout:
            keys = i + q_offset - max_offset + tl.arange(0, OPT.block_r)[None, :]
            sums = tl.where(is_kept(dropped, 0, 0, i, keys), sums * dropped.scale, 0.0)
        total = kept_sum * inv_kept_sum if OPT.dropout else tl.where(is_valid, 1.0, 0.0)
        sums = with_clipped_sums(sums, sum_before * inv_kept_sum, total, max_offset, OPT).to(q.dtype)
        store_rows(offset_sums_ptr, sums, bh, offs_n, n, OPT)
        table = load_table(value_table_ptr, stride_value_table_h, h, max_offset, OPT.value_width, BLOCK_D, OPT)
        o = tl.dot(sums, table.to(q.dtype), o, input_precision=OPT.precision)
    o_ptrs = o_ptr + b * stride_o_b + h * stride_o_h + i * stride_o_n + offs_d[None, :]
    tl.store(o_ptrs, o.to(o_ptr.dtype.element_ty), mask=(i < n) & (offs_d[None, :] < OPT.value_width))

    if (
        OPT.offset_sums and not OPT.staged_tables
    ):  # unclipped positions: one pair per query each, whose weight needs the final lse
        sum_before *= inv_kept_sum
        sum_after *= inv_kept_sum
        offset_sums = offset_sums_ptr + bh * n * row_stride(max_offset)
        lo, hi = key_block_range(block_start, n, m, q_offset, head, mods, DIAGONAL, OPT)
        for index in range(lo, hi):
            step = visited_tile(index, block_start // BLOCK_N, tl.cdiv(m, BLOCK_M), mods.visited_ptr, OPT)
            offs_m = step * BLOCK_M + tl.arange(0, BLOCK_M)
            j = offs_m[None, :]
            k = load_block_in_loop(k_ptr, stride_k_m, offs_m, offs_e, m, OPT.width, BLOCK_E, OPT.even_m)
            x = tl.dot(q, tl.trans(k), input_precision=OPT.precision)
            if OPT.relative_scores:
                x += lookup_pairs(relative_scores_ptr, bh, i, j, n, q_offset, max_offset)
            s, _ = compute_scores(x, head.far_factor, i, j, n, m, q_offset, mods, DIAGONAL, OPT)
            p = tl.exp2(s - lse[:, None])
            if OPT.dropout:
                p = tl.where(is_kept(dropped, block_start, step * BLOCK_M, tile_i, tile_j), p * dropped.scale, 0.0)
            before, after = store_by_offset(offset_sums, p, i, j, n, m, q_offset, max_offset)
            sum_before += before
            sum_after += after
        store_clipped_sums(offset_sums, sum_before, sum_after, offs_n, n, max_offset)


@triton.jit
def value_block_sums_kernel(
    v_ptr, prefix_sums_ptr, key_padding_ptr, stride_v_b, stride_v_h, stride_v_m, G, m, OPT: tl.constexpr
):
    """Sum the values of each key block. One program per key block.

    The sum of block i is stored in row i + 1 of prefix_sums [B, G, blocks + 1, D + 1]. The last column counts its keys.
    """
    BLOCK_M: tl.constexpr = OPT.block_m
    BLOCK_D: tl.constexpr = OPT.block_d
    step = tl.program_id(0)
    bg = batch_head_index()
    b, g = bg // G, bg % G
    offs_m = step * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    is_valid = offs_m < m
    if OPT.key_padding:
        is_valid = is_valid & (tl.load(key_padding_ptr + b * m + offs_m, mask=is_valid, other=0) != 0)
    v = load_block(v_ptr + b * stride_v_b + g * stride_v_h, stride_v_m, offs_m, offs_d, m, OPT.value_width, BLOCK_D)
    v = v.to(tl.float32)
    sum_ptr = prefix_sums_ptr + (bg * (tl.num_programs(0) + 1) + step + 1) * (OPT.value_width + 1)
    tl.store(sum_ptr + offs_d, tl.sum(tl.where(is_valid[:, None], v, 0.0), axis=0), mask=offs_d < OPT.value_width)
    tl.store(sum_ptr + OPT.value_width, tl.sum(is_valid.to(tl.float32)))


@triton.jit
def prefix_sums_kernel(prefix_sums_ptr, blocks, OPT: tl.constexpr):
    """Replace sums of blocks by prefix sums, in place and in a fixed order. One program per batch element and head."""
    BLOCK_D: tl.constexpr = 2 * OPT.block_d
    offs_d = tl.arange(0, BLOCK_D)
    ptrs = prefix_sums_ptr + batch_head_index() * (blocks + 1) * (OPT.value_width + 1) + offs_d
    total = tl.zeros([BLOCK_D], tl.float32)
    for step in range(1, blocks + 1):
        step_ptrs = ptrs + step * (OPT.value_width + 1)
        total += tl.load(step_ptrs, mask=offs_d <= OPT.value_width, other=0.0)
        tl.store(step_ptrs, total, mask=offs_d <= OPT.value_width)


@triton.jit
def fwd_received_kernel(
    q_ptr, k_ptr, lse_ptr, received_ptr, w_ptr, sharpness_ptr, relative_scores_ptr, edge_scores_ptr,
    u_dot_k_ptr, dense_table_ptr, v_dot_table_ptr, query_table_ptr, relative_bias_ptr,
    key_padding_ptr, mask_ptr, bias_ptr, seq_starts_ptr, seq_ends_ptr, visited_ptr,
    position_q_ptr, position_k_ptr, stride_position_q_b, stride_position_q_h, stride_position_q_n,
    stride_position_k_b, stride_position_k_h, stride_position_k_m,
    stride_dense_table_h, stride_dense_table_r, stride_v_dot_table_h, stride_query_table_h, stride_query_table_r,
    stride_q_b, stride_q_h, stride_q_n, stride_k_b, stride_k_h, stride_k_m,
    stride_mask_b, stride_mask_h, stride_mask_n, stride_mask_m, stride_visited_b, stride_visited_h,
    stride_bias_b, stride_bias_h, stride_bias_n, stride_bias_m,
    H, GROUP, n, m, q_offset, window_left, window_right, softcap, max_offset, scale, OPT: tl.constexpr,
):  # fmt: skip
    """Compute received_j = Σ_i P_ij. One program per key block."""
    BLOCK_N: tl.constexpr = OPT.block_n
    BLOCK_M: tl.constexpr = OPT.block_m
    BLOCK_E: tl.constexpr = OPT.block_e
    block_start = tl.program_id(0) * BLOCK_M
    bh = batch_head_index()
    b, h = bh // H, bh % H
    offs_m = block_start + tl.arange(0, BLOCK_M)
    j = offs_m[:, None]
    tile_i, tile_j = tl.arange(0, BLOCK_N)[None, :], tl.arange(0, BLOCK_M)[:, None]
    offs_e = tl.arange(0, BLOCK_E)
    k_bh = k_ptr + b * stride_k_b + (h // GROUP) * stride_k_h
    k = load_block(k_bh, stride_k_m, offs_m, offs_e, m, OPT.width, BLOCK_E)  # [BLOCK_M, BLOCK_E]
    q_ptr += b * stride_q_b + h * stride_q_h
    if OPT.position_width:
        position_k = load_positions(
            position_k_ptr + b * stride_position_k_b + (h // GROUP) * stride_position_k_h,
            stride_position_k_m,
            offs_m,
            m,
            OPT,
        )
        position_q_ptr += b * stride_position_q_b + h * stride_position_q_h
    mods = MaskAndBias(
        key_padding_ptr + b * m, mask_ptr + b * stride_mask_b + h * stride_mask_h, stride_mask_n, stride_mask_m,
        bias_ptr + b * stride_bias_b + h * stride_bias_h, stride_bias_n, stride_bias_m, seq_starts_ptr,
        seq_ends_ptr, visited_ptr + b * stride_visited_b + h * stride_visited_h, window_left, window_right, softcap,
        load_slope(w_ptr, h, OPT), relative_bias_ptr + h * (2 * max_offset + 1), max_offset,
    )  # fmt: skip
    head = load_head_params(w_ptr, sharpness_ptr, h, scale, max_offset, OPT)
    if OPT.relative_shift:
        v_dot_table_ptr += h * stride_v_dot_table_h
        table_ptr = dense_table_ptr + h * stride_dense_table_h
        shift = KeyBlockShift(table_ptr, stride_dense_table_r, v_dot_table_ptr, n + block_start, reserve_smem(OPT))
        u_dot_k = tl.load(u_dot_k_ptr + bh * m + offs_m, mask=offs_m < m, other=0.0)
    received = tl.zeros([BLOCK_M], tl.float32)
    for REGION in tl.static_range(NUM_REGIONS):
        if (OPT.regions >> REGION) & 1:
            lo, hi = query_block_range(block_start, n, m, q_offset, head, mods, REGION, OPT)
            for index in range(lo, hi):
                step = visited_tile(index, block_start // BLOCK_M, tl.cdiv(n, BLOCK_N), mods.visited_ptr, OPT)
                offs_n = step * BLOCK_N + tl.arange(0, BLOCK_N)
                i = offs_n[None, :]
                offsets = query_offsets(i, n, q_offset, mods, OPT)
                q = load_block_in_loop(q_ptr, stride_q_n, offs_n, offs_e, n, OPT.width, BLOCK_E, OPT.even_n)
                lse = load_numbers(lse_ptr + bh * n, offs_n, n, float("inf"), OPT.even_n)
                x = tl.dot(k, tl.trans(q), input_precision=OPT.precision)  # [BLOCK_M, BLOCK_N]
                if OPT.position_width:
                    position_q = load_positions(position_q_ptr, stride_position_q_n, offs_n, n, OPT, OPT.even_n)
                    x = tl.dot(position_k, tl.trans(position_q), x, input_precision=OPT.precision)
                if OPT.relative_scores and REGION == DIAGONAL:
                    x += lookup_pairs(relative_scores_ptr, bh, i, j, n, offsets, max_offset)
                if (OPT.relative_scores or OPT.relative_bias) and REGION != DIAGONAL:
                    lse -= load_edge_scores(edge_scores_ptr, bh, offs_n, n, head, mods, REGION, OPT)
                if OPT.relative_shift:
                    x += shifted_scores_of_queries(shift, q, step, tile_i, tile_j, OPT) + u_dot_k[:, None]
                if OPT.query_table:
                    x += query_table_scores_of_queries(
                        query_table_ptr + h * stride_query_table_h, stride_query_table_r, shift.smem, k, block_start, m,
                        step, tile_i, tile_j, OPT,
                    )  # fmt: skip
                _, f = distance_factors(tile_i, tile_j, step * BLOCK_N + offsets, block_start, head, REGION, OPT)
                s, _ = compute_scores(rectify(x, OPT), f, i, j, n, m, offsets, mods, REGION, OPT)
                received += tl.sum(weights_of_queries(s, lse[None, :], OPT), axis=1)
    tl.store(received_ptr + bh * m + offs_m, received, mask=offs_m < m)
