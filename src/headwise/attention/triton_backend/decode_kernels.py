"""Kernels of the forward pass for one query, as in decoding with a cache (flash-decoding).

The time of such a call is that of reading keys and values. The keys are divided into splits, one program each, so that
there are enough programs to read at full bandwidth.

A program has one query head (HEADS is 1), or all that share keys. With one, products are sums over float32, not matrix
products, which have 16 or more rows. Each of the BLOCK_M keys of a block has a running maximum, sum and output of its
own, of the keys with the same index in all blocks of a split. They are combined after the loop, so that the threads of
a program need not wait for each other in it. With several heads, products are matrix products, and each head has a row.

Clipped tables are read by relative position. Far keys share a row, whose product with the query is computed once. The
legend is in `tiles.py`; there is one query, i = 0. Scores are [BLOCK_M] for one head, [HEADS, BLOCK_M] for several.
"""

import triton
import triton.language as tl

from headwise.attention.triton_backend.distance_tiles import distance_factors, load_head_params, rectify
from headwise.attention.triton_backend.tiles import (
    DIAGONAL,
    FAR_AFTER,
    LOG2E,
    NUM_REGIONS,
    MaskAndBias,
    batch_head_index,
    compute_scores,
    first_key_block,
    key_block_range,
    load_block,
    load_sink,
    load_slope,
)
from headwise.attention.triton_backend.transformer_xl_kernels import add_biases

#: Columns of a split's part after those of the output: maximum and sum, and padding for the alignment.
PART_COLUMNS = tl.constexpr(4)

#: Arguments that depend on the number of keys: kernels are not compiled again if they are 1, or a multiple of 16.
NOT_SPECIALIZED = [
    "m", "q_offset", "blocks_per_split", "splits", "stride_mask_b", "stride_mask_h", "stride_mask_n", "stride_bias_b",
    "stride_bias_h", "stride_bias_n",
]  # fmt: skip

#: Blocks of keys and values that are loaded at a time.
NUM_STAGES = tl.constexpr(3)


@triton.jit
def row_products(q, rows):
    """Return the products of q, [HEADS, E] and float32 if HEADS is 1, with rows, [M, E]."""
    if q.shape[0] == 1:
        x = tl.sum(q * rows.to(tl.float32), axis=1)
    else:
        x = tl.dot(q, tl.trans(rows.to(q.dtype)))
    return x


@triton.jit
def edge_products(q, row):
    """Return the products of q, [HEADS, E], with one row, [1, E]."""
    if q.shape[0] == 1:
        x = tl.sum(q * row)
    else:
        x = tl.sum(q.to(tl.float32) * row, axis=1)[:, None]
    return x


@triton.jit
def load_queries(ptr, stride_h, h, columns, WIDTH: tl.constexpr):
    """Load a query of one head, [1, E] in float32, or of several heads h, [HEADS, 1]."""
    if h.numel == 1:
        q = load_row(ptr + h * stride_h, columns, WIDTH).to(tl.float32)
    else:
        q = tl.load(ptr + h * stride_h + columns[None, :], mask=columns[None, :] < WIDTH, other=0.0)
    return q


@triton.jit
def load_row(ptr, columns, WIDTH: tl.constexpr):
    """Load a row, [1, E].

    It is loaded as a vector: the compiler would distribute blocks of keys over threads as it does a block of one row.
    """
    return tl.load(ptr + columns, mask=columns < WIDTH, other=0.0)[None, :]


@triton.jit
def load_edge_row(table_ptr, max_offset, REGION: tl.constexpr, columns, WIDTH: tl.constexpr):
    """Load the row of a clipped table for all keys far before, or far after, [1, E]."""
    row = (REGION // FAR_AFTER) * (2 * max_offset)
    return load_row(table_ptr + row * WIDTH, columns, WIDTH).to(tl.float32)


@triton.jit
def load_near_rows(
    table_ptr, offs_m, q_offset, max_offset, columns, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Load the row of a clipped table for each key, [M, E]."""
    rows = tl.minimum(tl.maximum(offs_m - q_offset, -max_offset), max_offset) + max_offset
    return load_block(table_ptr, WIDTH, rows, columns, 2 * max_offset + 1, WIDTH, BLOCK, True)


@triton.jit
def finite(x):
    """Replace −∞, the maximum of no score, by 0."""
    return tl.where(x == float("-inf"), 0.0, x)


@triton.jit
def update_max(old_max, s):
    """Return the maximum of running maxima and scores, and the factors of what was summed before and of the scores."""
    new_max = tl.maximum(old_max, s)
    return new_max, tl.exp2(old_max - finite(new_max)), tl.exp2(s - finite(new_max))


@triton.jit
def sum_rows(row_max, row_sum, acc):
    """Return the maximum of several running maxima, [1], and the sums and outputs relative to it, [1] and [1, D]."""
    total_max = tl.max(row_max, axis=0, keep_dims=True)
    rescale = tl.exp2(row_max - finite(total_max))
    total_sum = tl.sum(row_sum * rescale, axis=0, keep_dims=True)
    return total_max, total_sum, tl.sum(acc * rescale[:, None], axis=0, keep_dims=True)


@triton.jit
def store_rows(
    o_ptr, lse_ptr, sinks_ptr, query_padding_ptr, stride_o_b, stride_o_h, row_max, row_sum, acc, b, H, rows, is_row,
    OPT: tl.constexpr,
):  # fmt: skip
    """Store output and lse of heads, given their maxima, the sums of weights relative to these, and the outputs.

    rows are their indices; is_row is False for those that are not to be stored.
    """
    offs_d = tl.arange(0, OPT.block_d)[None, :]
    if OPT.sinks:
        row_max, rescale, sink_weight = update_max(row_max, load_sink(sinks_ptr, rows))
        row_sum = row_sum * rescale + sink_weight
        acc *= rescale[:, None]
    is_valid = row_max != float("-inf")
    if OPT.query_padding:
        is_valid = is_valid & (tl.load(query_padding_ptr + b) != 0)
    row_sum = tl.where(is_valid, row_sum, 1.0)
    o = acc * tl.where(is_valid, 1.0 / row_sum, 0.0)[:, None]
    tl.store(lse_ptr + b * H + rows, tl.where(is_valid, row_max + tl.log2(row_sum), float("inf")), mask=is_row)
    o_ptrs = o_ptr + b * stride_o_b + rows[:, None] * stride_o_h + offs_d
    tl.store(o_ptrs, o.to(o_ptr.dtype.element_ty), mask=is_row[:, None] & (offs_d < OPT.value_width))


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def decode_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, parts_ptr, w_ptr, sharpness_ptr, bias_uv_ptr, dense_table_ptr, sinks_ptr,
    query_table_ptr, relative_bias_ptr, key_table_ptr, value_table_ptr, key_padding_ptr, query_padding_ptr, mask_ptr,
    bias_ptr, position_q_ptr, position_k_ptr, stride_position_q_b, stride_position_q_h, stride_position_k_b,
    stride_position_k_h, stride_position_k_m, stride_key_table_h, stride_value_table_h, stride_dense_table_h,
    stride_dense_table_r, stride_query_table_h, stride_query_table_r, stride_q_b, stride_q_h, stride_k_b, stride_k_h,
    stride_k_m, stride_v_b, stride_v_h, stride_v_m, stride_o_b, stride_o_h, stride_mask_b, stride_mask_h, stride_mask_n,
    stride_mask_m, stride_bias_b, stride_bias_h, stride_bias_n, stride_bias_m, GROUP, m, q_offset, window_left,
    window_right, softcap, max_offset, scale, blocks_per_split, OPT: tl.constexpr, HEADS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
):  # fmt: skip
    """Compute o and lse of one query; with IS_SPLIT, a split's part of them.

    If HEADS is 1, the grid is (splits · GROUP, key heads, B). Programs of query heads that share keys follow each
    other, so that all but one read them from the cache. Otherwise the grid is (splits, key heads, B), and HEADS is
    GROUP, rounded up.
    """
    BLOCK_M: tl.constexpr = OPT.block_m
    BLOCK_E: tl.constexpr = OPT.block_e
    BLOCK_D: tl.constexpr = OPT.block_d
    b, key_head = tl.program_id(2).to(tl.int64), tl.program_id(1)
    H = tl.num_programs(1) * GROUP
    offs_m, offs_e, offs_d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_D)
    index = tl.arange(0, HEADS)
    is_row = index < GROUP
    if HEADS == 1:
        split, splits = tl.program_id(0) // GROUP, tl.num_programs(0) // GROUP
        h = key_head * GROUP + tl.program_id(0) % GROUP
        rows = h + index
        i, tile_j = tl.zeros([1], tl.int32), offs_m
        key_table_ptr += h * stride_key_table_h
        value_table_ptr += h * stride_value_table_h
        num_slots: tl.constexpr = BLOCK_M
    else:
        split, splits = tl.program_id(0), tl.num_programs(0)
        rows = key_head * GROUP + tl.minimum(index, GROUP - 1)  # the last one is repeated
        h = rows[:, None]
        i, tile_j = tl.zeros([1, 1], tl.int32), offs_m[None, :]
        num_slots: tl.constexpr = HEADS
    q = load_queries(q_ptr + b * stride_q_b, stride_q_h, h, offs_e, OPT.width)  # [HEADS, BLOCK_E]
    k_ptr += b * stride_k_b + key_head * stride_k_h
    v_ptr += b * stride_v_b + key_head * stride_v_h
    if OPT.relative_shift:
        q, relative_q = add_biases(q.to(q_ptr.dtype.element_ty), bias_uv_ptr, h, H, OPT)
        q, relative_q = q.to(tl.float32), relative_q.to(tl.float32)
        dense_table_ptr += h * stride_dense_table_h
        query_table_ptr += h * stride_query_table_h
    if OPT.position_width:
        offs_p = tl.arange(0, OPT.block_p)
        position_q_ptr += b * stride_position_q_b
        position_q = load_queries(position_q_ptr, stride_position_q_h, h, offs_p, OPT.position_width)
        position_k_ptr += b * stride_position_k_b + key_head * stride_position_k_h
    mods = MaskAndBias(
        key_padding_ptr + b * m, mask_ptr + b * stride_mask_b + h * stride_mask_h, stride_mask_n, stride_mask_m,
        bias_ptr + b * stride_bias_b + h * stride_bias_h, stride_bias_n, stride_bias_m, 0, 0, 0, window_left,
        window_right, softcap, load_slope(w_ptr, h, OPT), relative_bias_ptr + h * (2 * max_offset + 1), max_offset,
    )  # fmt: skip
    head = load_head_params(w_ptr, sharpness_ptr, h, scale, max_offset, OPT)
    first_block = first_key_block(0, 1, m, q_offset, head, mods, OPT) + split * blocks_per_split
    row_max = tl.full([num_slots], float("-inf"), tl.float32)
    row_sum = tl.zeros([num_slots], tl.float32)
    acc = tl.zeros([num_slots, BLOCK_D], tl.float32)
    for REGION in tl.static_range(NUM_REGIONS):
        if (OPT.regions >> REGION) & 1:
            lo, hi = key_block_range(0, 1, m, q_offset, head, mods, REGION, OPT)
            lo, hi = tl.maximum(lo, first_block), tl.minimum(hi, first_block + blocks_per_split)
            edge_score = 0.0
            if OPT.relative_scores and REGION != DIAGONAL:
                edge_row = load_edge_row(key_table_ptr, max_offset, REGION, offs_e, OPT.width)
                edge_score += edge_products(q, edge_row) * head.far_factor
            if OPT.relative_bias and REGION != DIAGONAL:
                edge_ptr = mods.relative_bias_ptr + (REGION // FAR_AFTER) * (2 * max_offset)
                edge_score += tl.load(edge_ptr) * LOG2E
            if OPT.offset_sums and REGION != DIAGONAL:
                edge_value = load_edge_row(value_table_ptr, max_offset, REGION, offs_d, OPT.value_width)
            # Rows of tables would take shared memory, and few blocks are near.
            for step in tl.range(
                lo, hi, num_stages=1 if REGION == DIAGONAL and (OPT.relative_scores or OPT.offset_sums) else NUM_STAGES
            ):
                keys = step * BLOCK_M + offs_m
                k = load_block(k_ptr, stride_k_m, keys, offs_e, m, OPT.width, BLOCK_E)
                v = load_block(v_ptr, stride_v_m, keys, offs_d, m, OPT.value_width, BLOCK_D)
                x = row_products(q, k)
                if OPT.position_width:
                    position_k = load_block(
                        position_k_ptr, stride_position_k_m, keys, offs_p, m, OPT.position_width, OPT.block_p
                    )
                    x += row_products(position_q, position_k)
                if OPT.relative_scores and REGION == DIAGONAL:
                    x += row_products(
                        q, load_near_rows(key_table_ptr, keys, q_offset, max_offset, offs_e, OPT.width, BLOCK_E)
                    )
                if OPT.relative_shift:  # row j of the table
                    x += row_products(
                        relative_q,
                        load_block(dense_table_ptr, stride_dense_table_r, keys, offs_e, m, OPT.width, BLOCK_E),
                    )
                if OPT.query_table:  # its rows are in the reverse order
                    query_rows = load_block(
                        query_table_ptr, stride_query_table_r, m - 1 - keys, offs_e, m, OPT.width, BLOCK_E
                    )
                    x += tl.sum(k.to(tl.float32) * query_rows.to(tl.float32), axis=1)
                _, f = distance_factors(i, tile_j, q_offset, step * BLOCK_M, head, REGION, OPT)
                s, _ = compute_scores(rectify(x, OPT), f, i, step * BLOCK_M + tile_j, 1, m, q_offset, mods, REGION, OPT)
                s += edge_score
                if OPT.offset_sums:
                    if REGION == DIAGONAL:
                        value_rows = load_near_rows(
                            value_table_ptr, keys, q_offset, max_offset, offs_d, OPT.value_width, BLOCK_D
                        )
                        v = v.to(tl.float32) + value_rows.to(tl.float32)
                    else:
                        v = v.to(tl.float32) + edge_value
                if HEADS == 1:
                    row_max, rescale, p = update_max(row_max, s)
                    row_sum = row_sum * rescale + p
                    acc = acc * rescale[:, None] + p[:, None] * v.to(tl.float32)
                else:
                    row_max, rescale, _ = update_max(row_max, tl.max(s, axis=1))
                    p = tl.exp2(s - finite(row_max)[:, None])
                    row_sum = row_sum * rescale + tl.sum(p, axis=1)
                    acc = tl.dot(p.to(q.dtype), v.to(q.dtype), acc * rescale[:, None])

    if HEADS == 1:
        row_max, row_sum, acc = sum_rows(row_max, row_sum, acc)
    if IS_SPLIT:
        part_ptrs = parts_ptr + ((b * H + rows) * splits + split) * (OPT.value_width + PART_COLUMNS)
        is_column = offs_d[None, :] < OPT.value_width
        tl.store(part_ptrs[:, None] + offs_d[None, :], acc, mask=is_row[:, None] & is_column)
        tl.store(part_ptrs + OPT.value_width, row_max, mask=is_row)
        tl.store(part_ptrs + (OPT.value_width + 1), row_sum, mask=is_row)
    else:
        store_rows(
            o_ptr, lse_ptr, sinks_ptr, query_padding_ptr, stride_o_b, stride_o_h, row_max, row_sum, acc, b, H, rows,
            is_row, OPT,
        )  # fmt: skip


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def combine_splits_kernel(
    parts_ptr, o_ptr, lse_ptr, sinks_ptr, query_padding_ptr, stride_o_b, stride_o_h, H, splits, OPT: tl.constexpr
):  # fmt: skip
    """Combine the parts of all splits, [B, H, splits, D + 4], in a fixed order. One program per query."""
    BLOCK_S: tl.constexpr = OPT.block_s
    BLOCK_D: tl.constexpr = OPT.block_d
    COLUMNS: tl.constexpr = OPT.value_width + PART_COLUMNS
    bh = batch_head_index()
    offs_d = tl.arange(0, BLOCK_D)
    parts_ptr += bh * splits * COLUMNS
    row_max = tl.full([BLOCK_S], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_S], tl.float32)
    acc = tl.zeros([BLOCK_S, BLOCK_D], tl.float32)
    for start in range(0, splits, BLOCK_S):
        offs_s = start + tl.arange(0, BLOCK_S)
        part = load_block(parts_ptr, COLUMNS, offs_s, offs_d, splits, OPT.value_width, BLOCK_D)
        ptrs = parts_ptr + offs_s * COLUMNS + OPT.value_width
        part_max = tl.load(ptrs, mask=offs_s < splits, other=float("-inf"))
        part_sum = tl.load(ptrs + 1, mask=offs_s < splits, other=0.0)
        row_max, rescale, part_rescale = update_max(row_max, part_max)
        row_sum = row_sum * rescale + part_sum * part_rescale
        acc = acc * rescale[:, None] + part * part_rescale[:, None]
    row_max, row_sum, acc = sum_rows(row_max, row_sum, acc)
    rows = (bh % H).to(tl.int32) + tl.arange(0, 1)
    store_rows(
        o_ptr, lse_ptr, sinks_ptr, query_padding_ptr, stride_o_b, stride_o_h, row_max, row_sum, acc, bh // H, H, rows,
        rows < H, OPT,
    )  # fmt: skip
