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
A tile of z has pairs of two steps, so bwd_dq_kernel has a tile of dz one step later (`add_dz_tile`).
The legend is in `tiles.py`; T is BLOCK_N = BLOCK_M, R the rows of the table.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from headwise.attention.triton_backend.shared_memory import (
    barrier,
    load_eight,
    load_smem,
    pack_pairs,
    round_product,
    store_eight,
    store_smem,
    store_smem_eight,
    zero_like,
)
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
    return load_rows(table_ptr, stride, first_row + tl.arange(0, OPT.block_m), OPT)


@triton.jit
def load_rows(table_ptr, stride, offs_r, OPT: tl.constexpr):
    """Load these rows of a table."""
    offs_e = tl.arange(0, OPT.block_e)
    ptrs = table_ptr + offs_r[:, None] * stride + offs_e[None, :]
    if OPT.width == OPT.block_e:
        return tl.load(ptrs)
    return tl.load(ptrs, mask=offs_e[None, :] < OPT.width, other=0.0)


@triton.jit
def table_product(shift, step, OPT: tl.constexpr):
    """Compute the product of a query block that a key block needs in addition to the previous one, [T, T].

    In half precision, its columns are in an order in which a thread has eight neighbors of a row (`store_product`).
    """
    DTYPE: tl.constexpr = shift.relative_q.dtype
    columns = tl.arange(0, OPT.block_m)
    if OPT.fast and DTYPE != tl.float32:
        GROUP: tl.constexpr = OPT.block_m // 4
        columns = ((columns & 6) // 2 * GROUP) | (columns // 32 * 8) | ((columns & 24) // 4) | (columns & 1)
    rows = load_rows(shift.table_ptr, shift.stride_table_r, shift.first_row + step * OPT.block_m + columns, OPT)
    z = tl.dot(shift.relative_q, tl.trans(rows), input_precision=OPT.precision)
    return round_product(z, shift.relative_q.dtype, OPT)


@triton.jit
def store_product(address, product, OPT: tl.constexpr):
    """Store a product of table_product at this address of shared memory, whose rows have a pitch of 2 T + 8 elements.

    In half precision a thread stores 16 bytes at once. Two rows have 64 bytes in each instruction and are 16 bytes
    apart in the banks, so a thread has every other 16 bytes of a row.
    """
    T: tl.constexpr = OPT.block_n
    if product.dtype == tl.float32:
        rows, pairs = tl.arange(0, T)[:, None], tl.arange(0, T // 2)[None, :]
        store_smem(address + rows * ((2 * T + 8) * 4) + pairs * 8, product)
    else:
        words = tl.permute(tl.reshape(product, (T, T // 32, 2, 2, 4)), (0, 4, 1, 2, 3))
        even, odd = tl.split(words)
        a, c = tl.split(even)
        b, d = tl.split(odd)
        SHAPE: tl.constexpr = (T, T // 8)
        a, b, c, d = tl.reshape(a, SHAPE), tl.reshape(b, SHAPE), tl.reshape(c, SHAPE), tl.reshape(d, SHAPE)
        rows, groups = tl.arange(0, T)[:, None], tl.arange(0, T // 8)[None, :]
        store_smem_eight(address + rows * ((2 * T + 8) * 2) + groups * 16, a, b, c, d)


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
        address = smem + barrier()
        store_product(address, lower, OPT)
        store_product(address + T * BYTES, upper, OPT)
        address = smem + barrier() + (T - 1) * BYTES + tile_i * (PITCH - BYTES) + tile_j * BYTES
        scores = load_smem(address + zero_of_pairs(upper), DTYPE)
    else:
        z = tl.where(tile_j + tile_i + 1 < T, upper, lower)
        scores = tl.gather(z, (tile_j - tile_i - 1) & (T - 1), 1).to(tl.float32)
    return scores, upper


@triton.jit
def zero_of_pairs(rounded):
    """Return zeros, [T, T], in the layout of a product, given what round_product returned for it.

    Addresses to which they are added have this layout, too, and so have the elements that are loaded from there.
    """
    zero = zero_like(rounded)
    if rounded.dtype != tl.float32:
        zero = tl.reshape(tl.join(zero, zero), (rounded.shape[0], 2 * rounded.shape[1]))
    return zero


@triton.jit
def initial_dx(DTYPE: tl.constexpr, OPT: tl.constexpr):
    """Return the gradient of the scores before a query block's first step, which is 0, for `add_dz_tile`."""
    T: tl.constexpr = OPT.block_n
    if OPT.fast and DTYPE != tl.float32:
        dx = tl.zeros([T, T // 2], tl.int32)
    else:
        dx = tl.zeros([T, T], DTYPE)
    return dx


@triton.jit
def store_dz_tile(shift, lower, dx, dz_ptr, stride_dz_n, step, tile_i, tile_j, OPT: tl.constexpr):
    """Store the tile of dz before a step, [T, T].

    lower is the gradient of the scores of the previous step, as this function returned it. dz_ptr is the address of
    the query block's first row and key block 0.

    Returns:
        The gradient of the scores to pass in the next step.
    """
    T: tl.constexpr = OPT.block_n
    DTYPE: tl.constexpr = shift.relative_q.dtype
    BYTES: tl.constexpr = DTYPE.primitive_bitwidth // 8
    PITCH: tl.constexpr = (2 * T + 8) * BYTES
    smem = shift.smem
    dz_ptr += (step - 1) * T
    upper = dx.to(DTYPE)
    if OPT.fast and BYTES == 2:
        upper = pack_pairs(upper)
    if OPT.fast:
        address = smem + barrier() + tl.arange(0, T)[:, None] * PITCH + tl.arange(0, T // 2)[None, :] * (2 * BYTES)
        store_smem(address, lower)
        store_smem(address + T * BYTES, upper)
    if OPT.fast and BYTES == 2:
        # A thread has eight neighbors of a row, so that it can store 16 bytes.
        row, group = tl.arange(0, T)[:, None], tl.arange(0, T // 8)[None, :]
        address = smem + barrier() + row * PITCH + (row + 1) // 2 * 4 + group * 16 + zero_of_groups(upper, OPT)
        a, b, c, d = load_eight(address, (row + 1) % 2 * 16 + group * 0)
        store_eight(dz_ptr + row * stride_dz_n + group * 8, a, b, c, d)
    else:
        if OPT.fast:
            dz = load_smem(smem + barrier() + BYTES + tile_i * (PITCH + BYTES) + tile_j * BYTES, DTYPE)
        else:
            dz = tl.gather(tl.where(tile_j <= tile_i, upper, lower), (tile_j + tile_i + 1) & (T - 1), 1)
        tl.store(dz_ptr + tile_i * stride_dz_n + tile_j, dz)
    return upper


@triton.jit
def zero_of_groups(pairs, OPT: tl.constexpr):
    """Return zeros, [T, T / 8], in a layout in which a thread has groups of eight columns.

    Addresses to which they are added have this layout, too. Otherwise the compiler loads everything twice.
    """
    T: tl.constexpr = OPT.block_n
    by_column = tl.permute(tl.reshape(pairs, (T, T // 32, 2, 2, 4)), (0, 1, 4, 2, 3))
    even, _ = tl.split(by_column)
    first, _ = tl.split(even)
    return zero_like(tl.reshape(first, (T, T // 8)))


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
        upper = round_product(upper, q.dtype, OPT)
        store_smem(address + T * PITCH, upper)
        address = smem + barrier() + (T - 1) * PITCH + tile_j * PITCH - tile_i * (PITCH - BYTES)
        if OPT.block_e <= 64:  # wider heads would spill more registers
            address += zero_of_pairs(upper)
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
    """Compute the table's part of dq, if bwd_dq_kernel has not, and the gradient of the table, from dz of a chunk.

    One program per query block, then one per block of the table's rows. Both read dz of a head, which
    is cached if they read it at about the same time. OPT.even_n states that bwd_dq_kernel stored whole tiles, so that
    chunk_size is a multiple of them, and relative_q is in the order of dz. With OPT.skip_tiles, visited_columns
    [B, H, blocks, 2 · tiles + 1] lists each query block's tiles of columns, and visited_rows [H, blocks, 2 · tiles + 1]
    each column block's tiles of queries.
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
            block_start, chunk_start, chunk_size, column_start, column_end, first_row, num_rows, n, m, scale, OPT,
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
    block_start, chunk_start, chunk_size, column_start, column_end, first_row, num_rows, n, m, scale,
    OPT: tl.constexpr,
):  # fmt: skip
    """Add dz · table to dq, and store this block's part of the gradient of bias v."""
    BLOCK_N: tl.constexpr = OPT.block_n
    BLOCK_E: tl.constexpr = OPT.block_e
    STEP: tl.constexpr = min(BLOCK_N, 64)
    tile_i, offs_e = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_E)
    offs_n = block_start + tile_i
    dz_ptr += block_start.to(tl.int64) * stride_dz_n
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
        # [BLOCK_N, STEP]
        dz = load_block(dz_ptr, stride_dz_n, tile_i, columns, chunk_size - block_start, STEP, STEP, OPT.even_n)
        table = load_block(table_ptr, stride_table_r, first_row + columns, offs_e, num_rows, OPT.width, BLOCK_E)
        acc = tl.dot(dz, table, acc, input_precision=OPT.precision)
    acc *= scale
    ptrs = dq_ptr + (chunk_start + offs_n)[:, None] * stride_dq_n + offs_e[None, :]
    num_queries = tl.minimum(n - chunk_start, chunk_size)
    mask = (offs_n[:, None] < num_queries) & (offs_e[None, :] < OPT.width)
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
        if OPT.even_n:
            offs_s, first = tl.arange(0, STEP), (step * STEP).to(tl.int64)
            dz_step, q_step = dz_ptr + first * stride_dz_n, relative_q_ptr + first * stride_relative_q_n
            dz = load_block(dz_step, stride_dz_n, offs_s, columns, STEP, BLOCK_M, BLOCK_M, EVEN=True)
            q = load_block(q_step, stride_relative_q_n, offs_s, offs_e, STEP, OPT.width, BLOCK_E, EVEN=True)
        else:
            offs_bn = step * STEP + tl.arange(0, STEP)  # the queries of all batch elements, one after another
            dz = load_block(dz_ptr, stride_dz_n, offs_bn.to(tl.int64), columns, B * chunk_size, BLOCK_M, BLOCK_M)
            q_offsets = (offs_bn // chunk_size).to(tl.int64) * stride_relative_q_b
            q_offsets += offs_bn % chunk_size * stride_relative_q_n
            q_mask = (offs_bn[:, None] < B * chunk_size) & (offs_e[None, :] < OPT.width)
            q_ptrs = relative_q_ptr + q_offsets[:, None] + offs_e[None, :]
            q = tl.load(q_ptrs, mask=q_mask, other=0.0)  # [STEP, BLOCK_E]
        acc = tl.dot(tl.trans(dz), q, acc, input_precision=OPT.precision)
    ptrs = d_table_ptr + (first_row + columns)[:, None] * stride_d_table_r + offs_e[None, :]
    mask = (first_row + columns[:, None] < num_rows) & (offs_e[None, :] < OPT.width)
    tl.store(ptrs, tl.load(ptrs, mask=mask) + acc, mask=mask)
