"""Triton functions and kernels for tables with a row for every relative position (Transformer-XL): dense tables.

The relative part of a score, (q_i + v) · table[j − i + n − 1], is a matrix product, z, whose columns are relative
positions. The pairs of one relative position lie on a diagonal of a tile, so z must be shifted row by row. For a tile
of T × T pairs and T columns of z, column x of row i belongs to key

    j = x + i + 1        of a key block, above its diagonal, if that is less than T
    j = x + i + 1 − T    of the next key block, on or below its diagonal, otherwise

A query block needs one new product per key block. A key block, which meets other queries in each step, needs two and
uses half the columns of both.

Triton has no fast shift of rows: with `tl.gather` a call took several times as long (docs/design.md). On NVIDIA GPUs
products therefore go through shared memory, stored unshifted and loaded shifted, by a few lines of inline assembly.
This does not depend on the layout of a tile in registers: each thread stores and loads its own elements.

The gradients need dz, the gradient of z, [H, B, chunk, width] for a chunk of queries at a time (`transformer_xl.py`).
The legend is in `tiles.py`; T is BLOCK_N = BLOCK_M, R the rows of the table.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from headwise.attention.triton_backend.shared_memory import barrier, load_smem, round_product, store_smem
from headwise.attention.triton_backend.tiles import load_block, visited_range, visited_tile


class QueryBlockShift(NamedTuple):
    """Inputs of the relative scores of a query block."""

    relative_q: Any  # [T, BLOCK_E], the queries plus bias v
    table_ptr: Any  # [R, E]
    stride_table_r: Any
    first_row: Any  # of the table, for key block 0
    smem: Any  # address of the reserved shared memory


class KeyBlockShift(NamedTuple):
    """Inputs of the relative scores of a key block."""

    table_ptr: Any  # [R, E]
    stride_table_r: Any
    v_dot_table_ptr: Any  # [R]
    first_row: Any  # of the table, for query block 0
    smem: Any


@triton.jit
def add_biases(q, bias_uv_ptr, h, H, OPT: tl.constexpr):
    """Return q + u, which is compared with keys, and q + v, which is compared with the table."""
    offs_e = tl.arange(0, OPT.block_e)
    ptrs, mask = bias_uv_ptr + h * OPT.width + offs_e, offs_e < OPT.width
    u = tl.load(ptrs, mask=mask, other=0.0)
    v = tl.load(ptrs + H * OPT.width, mask=mask, other=0.0)
    q_fp32 = q.to(tl.float32)
    return (q_fp32 + u[None, :]).to(q.dtype), (q_fp32 + v[None, :]).to(q.dtype)


@triton.jit
def load_table_rows(table_ptr, stride, first_row, OPT: tl.constexpr):
    """Load T rows of a table, [T, BLOCK_E]. They are at most T rows outside of it, where it is padded."""
    offs_r, offs_e = first_row + tl.arange(0, OPT.block_m), tl.arange(0, OPT.block_e)
    ptrs = table_ptr + offs_r[:, None] * stride + offs_e[None, :]
    if OPT.width == OPT.block_e:
        return tl.load(ptrs)
    return tl.load(ptrs, mask=offs_e[None, :] < OPT.width, other=0.0)


@triton.jit
def table_product(shift, step, OPT: tl.constexpr):
    """Compute the product of a query block that a key block needs in addition to the previous one, [T, T]."""
    rows = load_table_rows(shift.table_ptr, shift.stride_table_r, shift.first_row + step * OPT.block_m, OPT)
    z = tl.dot(shift.relative_q, tl.trans(rows), input_precision=OPT.precision)
    return round_product(z, shift.relative_q.dtype, OPT)


@triton.jit
def initial_product(shift, block_index, first_step, OPT: tl.constexpr):
    """Compute the product that precedes a query block's first step.

    The loop has one iteration: it frees the shared memory that the product took, and its bounds are not known to the
    compiler.
    """
    T: tl.constexpr = OPT.block_n
    DTYPE: tl.constexpr = shift.relative_q.dtype
    if OPT.fast and DTYPE != tl.float32:
        product = tl.zeros([T, T // 2], tl.int32)
    else:
        product = tl.zeros([T, T], DTYPE)
    for step in tl.range(block_index - 1, block_index, num_stages=1):
        product = table_product(shift, step - block_index + first_step, OPT)
    return product


@triton.jit
def preceding_product(shift, product, step, OPT: tl.constexpr):
    """Return the product of the key block before a step. It is that of the previous step, unless tiles are skipped."""
    if OPT.skip_tiles:
        product = table_product(shift, step - 1, OPT)
    return product


@triton.jit
def shifted_scores_of_keys(shift, lower, step, tile_i, tile_j, OPT: tl.constexpr):
    """Return a query block's relative scores with a key block, [T, T], and the product to pass in the next step.

    lower is the preceding key block's product, which holds the pairs on or below the diagonal.
    """
    T: tl.constexpr = OPT.block_n
    smem = shift.smem
    upper = table_product(shift, step, OPT)
    if OPT.fast:
        DTYPE: tl.constexpr = shift.relative_q.dtype
        BYTES: tl.constexpr = DTYPE.primitive_bitwidth // 8
        PITCH: tl.constexpr = (2 * T + 8) * BYTES  # distributes a warp's accesses over the banks
        address = smem + barrier() + tl.arange(0, T)[:, None] * PITCH + tl.arange(0, T // 2)[None, :] * (2 * BYTES)
        store_smem(address, lower)
        store_smem(address + T * BYTES, upper)
        scores = load_smem(smem + barrier() + (T - 1) * BYTES + tile_i * (PITCH - BYTES) + tile_j * BYTES, DTYPE)
    else:
        z = tl.where(tile_j + tile_i + 1 < T, upper, lower)
        scores = tl.gather(z, (tile_j - tile_i - 1) & (T - 1), 1).to(tl.float32)
    return scores, upper


@triton.jit
def shifted_scores_of_queries(shift, q, step, tile_i, tile_j, OPT: tl.constexpr, HAS_BIAS: tl.constexpr = True):
    """Return a key block's relative scores with a query block, [T, T] with keys first; includes v · table."""
    T: tl.constexpr = OPT.block_n
    q = tl.trans(q)
    first_row = shift.first_row - step * T
    lower_rows = load_table_rows(shift.table_ptr, shift.stride_table_r, first_row - T, OPT)
    lower = tl.dot(lower_rows, q, input_precision=OPT.precision)
    upper_rows = load_table_rows(shift.table_ptr, shift.stride_table_r, first_row, OPT)
    upper = tl.dot(upper_rows, q, input_precision=OPT.precision)
    if HAS_BIAS:
        v_dot_table_ptrs = shift.v_dot_table_ptr + (first_row + tl.arange(0, T))
        lower += tl.load(v_dot_table_ptrs - T)[:, None]
        upper += tl.load(v_dot_table_ptrs)[:, None]
    if OPT.fast:
        BYTES: tl.constexpr = q.dtype.primitive_bitwidth // 8
        PITCH: tl.constexpr = (T + 8) * BYTES
        smem = shift.smem
        address = smem + barrier() + tl.arange(0, T)[:, None] * PITCH + tl.arange(0, T // 2)[None, :] * (2 * BYTES)
        store_smem(address, round_product(lower, q.dtype, OPT))
        store_smem(address + T * PITCH, round_product(upper, q.dtype, OPT))
        address = smem + barrier() + (T - 1) * PITCH + tile_j * PITCH - tile_i * (PITCH - BYTES)
        scores = load_smem(address, q.dtype)
    else:
        z = tl.where(tile_j + tile_i + 1 < T, upper, lower).to(q.dtype)
        scores = tl.gather(z, (tile_j - tile_i - 1) & (T - 1), 0).to(tl.float32)
    return scores


@triton.jit
def weights_of_queries(s, lse, OPT: tl.constexpr):
    """Return the weights exp2(s − lse) of a key block.

    Relative scores are computed from query blocks in the forward pass and from key blocks here, so that both are
    rounded differently. Large scores can then exceed their lse: weights are limited to 1.
    """
    difference = s - lse
    if OPT.relative_shift or OPT.query_table:
        difference = tl.minimum(difference, 0.0)
    return tl.exp2(difference)


# A query table is multiplied with keys, and its rows are in the order of i − j. Its scores are the relative scores of
# the transposed problem, so the functions above compute them with queries and keys exchanged.


@triton.jit
def query_table_scores_of_keys(table_ptr, stride, smem, k, block_start, m, step, tile_i, tile_j, OPT: tl.constexpr):
    """Return the scores of a key block with the query table, [T, T], for the query block at block_start."""
    shift = KeyBlockShift(table_ptr, stride, 0, m + block_start, smem)
    return shifted_scores_of_queries(shift, k, step, tile_j, tile_i, OPT, HAS_BIAS=False)


@triton.jit
def query_table_scores_of_queries(table_ptr, stride, smem, k, block_start, m, step, tile_i, tile_j, OPT: tl.constexpr):
    """Return the scores of the key block at block_start with the query table, [T, T] with keys first."""
    shift = QueryBlockShift(k, table_ptr, stride, m - block_start, smem)
    lower = table_product(shift, step - 1, OPT)
    scores, _ = shifted_scores_of_keys(shift, lower, step, tile_j, tile_i, OPT)
    return scores


@triton.jit
def bias_dot_kernel(
    x_ptr, bias_uv_ptr, products_ptr, stride_x_b, stride_x_h, stride_x_n, stride_products_b, stride_products_h,
    H, GROUP, num_rows, OPT: tl.constexpr,
):  # fmt: skip
    """Compute the dot product of each row of x [B, G, num_rows, E] with a head's bias. One program per row block."""
    b, h = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    rows, offs_e = tl.program_id(0) * OPT.block_n + tl.arange(0, OPT.block_n), tl.arange(0, OPT.block_e)
    x_bh = x_ptr + b * stride_x_b + (h // GROUP) * stride_x_h
    x = load_block(x_bh, stride_x_n, rows, offs_e, num_rows, OPT.width, OPT.block_e)
    bias = tl.load(bias_uv_ptr + h * OPT.width + offs_e, mask=offs_e < OPT.width, other=0.0)
    tl.store(
        products_ptr + b * stride_products_b + h * stride_products_h + rows,
        tl.sum(x.to(tl.float32) * bias, axis=1),
        mask=rows < num_rows,
    )


@triton.jit
def bwd_dense_table_kernel(
    dz_ptr, dense_table_ptr, relative_q_ptr, dq_ptr, d_bias_v_partials_ptr, d_table_ptr, visited_columns_ptr,
    visited_rows_ptr, stride_dz_h, stride_dz_b, stride_dz_n, stride_dense_table_h, stride_dense_table_r,
    stride_d_table_h, stride_d_table_r, stride_relative_q_b, stride_relative_q_h, stride_relative_q_n,
    stride_dq_b, stride_dq_h, stride_dq_n,
    B, chunk_start, chunk_size, column_start, column_end, first_row, num_rows, n, m, scale, OPT: tl.constexpr,
):  # fmt: skip
    """Compute the table's part of dq, and the gradient of the table, from dz of a chunk of queries.

    One program per query block, then one per block of the table's rows. Both read dz of a head, which is cached if they
    read it at about the same time. With OPT.skip_tiles, visited_columns [B, H, blocks, 2 · tiles + 1] lists each query
    block's tiles of columns, and visited_rows [H, blocks, 2 · tiles + 1] each column block's tiles of queries.
    """
    blocks = tl.cdiv(chunk_size, OPT.block_n)
    program = tl.program_id(0)
    h = tl.program_id(1).to(tl.int64)
    dz_ptr += h * stride_dz_h
    if program < B * blocks:
        b, block_start = (program // blocks).to(tl.int64), program % blocks * OPT.block_n
        partial = (b * tl.num_programs(1) + h) * tl.cdiv(n, OPT.block_n) + (chunk_start + block_start) // OPT.block_n
        add_relative_dq(
            dz_ptr + b * stride_dz_b, dense_table_ptr + h * stride_dense_table_h,
            dq_ptr + b * stride_dq_b + h * stride_dq_h, d_bias_v_partials_ptr + partial * OPT.width,
            visited_columns_ptr, (b * tl.num_programs(1) + h) * blocks + program % blocks,
            stride_dz_n, stride_dense_table_r, stride_dq_n,
            block_start, chunk_start, chunk_size, column_start, column_end, first_row, num_rows, m, scale, OPT,
        )  # fmt: skip
    else:
        first_column = (program - B * blocks) * OPT.block_m
        is_visited = True
        if OPT.window:
            is_visited = (first_column < column_end) & (first_column + OPT.block_m > column_start)
        if is_visited:
            add_d_table(
                dz_ptr, relative_q_ptr + h * stride_relative_q_h, d_table_ptr + h * stride_d_table_h,
                visited_rows_ptr, h * (stride_dz_n // OPT.block_m) + first_column // OPT.block_m,
                stride_dz_n, stride_relative_q_b, stride_relative_q_n, stride_d_table_r,
                first_column, B, chunk_size, first_row, num_rows, OPT,
            )  # fmt: skip


@triton.jit
def add_relative_dq(
    dz_ptr, table_ptr, dq_ptr, d_bias_v_ptr, visited_ptr, list_index, stride_dz_n, stride_table_r, stride_dq_n,
    block_start, chunk_start, chunk_size, column_start, column_end, first_row, num_rows, m, scale, OPT: tl.constexpr,
):  # fmt: skip
    """Add dz · table to dq, and store this block's part of the gradient of bias v."""
    BLOCK_N: tl.constexpr = OPT.block_n
    BLOCK_E: tl.constexpr = OPT.block_e
    STEP: tl.constexpr = min(BLOCK_N, 64)
    offs_n, offs_e = block_start + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_E)
    acc = tl.zeros([BLOCK_N, BLOCK_E], tl.float32)
    # The columns in which these queries have a pair.
    if OPT.window:
        lo, hi = column_start // STEP, tl.cdiv(column_end, STEP)
    else:
        lo = tl.maximum(chunk_size - block_start - BLOCK_N, 0) // STEP
        hi = tl.cdiv(chunk_size - block_start - 1 + m, STEP)
    tiles = stride_dz_n // STEP
    if OPT.skip_tiles:
        lo, hi = visited_range(lo, hi, list_index, tiles, visited_ptr)
    for index in range(lo, hi):
        step = visited_tile(index, list_index, tiles, visited_ptr, OPT)
        columns = step * STEP + tl.arange(0, STEP)
        dz = load_block(dz_ptr, stride_dz_n, offs_n.to(tl.int64), columns, chunk_size, STEP, STEP)  # [BLOCK_N, STEP]
        table = load_block(table_ptr, stride_table_r, first_row + columns, offs_e, num_rows, OPT.width, BLOCK_E)
        acc = tl.dot(dz, table, acc, input_precision=OPT.precision)
    acc *= scale
    ptrs = dq_ptr + (chunk_start + offs_n)[:, None] * stride_dq_n + offs_e[None, :]
    mask = (offs_n[:, None] < chunk_size) & (offs_e[None, :] < OPT.width)
    dq = tl.load(ptrs, mask=mask, other=0.0).to(tl.float32) + acc
    tl.store(ptrs, dq.to(dq_ptr.dtype.element_ty), mask=mask)
    tl.store(d_bias_v_ptr + offs_e, tl.sum(acc, axis=0), mask=offs_e < OPT.width)


@triton.jit
def add_d_table(
    dz_ptr, relative_q_ptr, d_table_ptr, visited_ptr, list_index,
    stride_dz_n, stride_relative_q_b, stride_relative_q_n, stride_d_table_r,
    column_start, B, chunk_size, first_row, num_rows, OPT: tl.constexpr,
):  # fmt: skip
    """Add dzᵀ · relative_q of the whole batch to the gradient of the table."""
    BLOCK_M: tl.constexpr = OPT.block_m
    BLOCK_E: tl.constexpr = OPT.block_e
    STEP: tl.constexpr = min(BLOCK_M, 64)
    columns, offs_e = column_start + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_E)
    acc = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
    tiles = tl.cdiv(B * chunk_size, STEP)
    lo, hi = 0, tiles
    if OPT.skip_tiles:
        lo, hi = visited_range(lo, hi, list_index, tiles, visited_ptr)
    for index in range(lo, hi):
        step = visited_tile(index, list_index, tiles, visited_ptr, OPT)
        offs_bn = step * STEP + tl.arange(0, STEP)  # the queries of all batch elements, one after another
        dz = load_block(dz_ptr, stride_dz_n, offs_bn.to(tl.int64), columns, B * chunk_size, BLOCK_M, BLOCK_M)
        q_offsets = (offs_bn // chunk_size).to(tl.int64) * stride_relative_q_b
        q_offsets += offs_bn % chunk_size * stride_relative_q_n
        q_mask = (offs_bn[:, None] < B * chunk_size) & (offs_e[None, :] < OPT.width)
        q = tl.load(relative_q_ptr + q_offsets[:, None] + offs_e[None, :], mask=q_mask, other=0.0)  # [STEP, BLOCK_E]
        acc = tl.dot(tl.trans(dz), q, acc, input_precision=OPT.precision)
    ptrs = d_table_ptr + (first_row + columns)[:, None] * stride_d_table_r + offs_e[None, :]
    mask = (first_row + columns[:, None] < num_rows) & (offs_e[None, :] < OPT.width)
    tl.store(ptrs, tl.load(ptrs, mask=mask) + acc, mask=mask)
