"""Kernels for products with clipped tables of relative positions; `clipped_table.py` describes their layouts.

Legend: B batch, H query heads, N queries, R rows of a table, E width of the table and of the queries (or gradients of
the output) that are multiplied with it.
"""

import triton
import triton.language as tl

from headwise.attention.triton_backend.clipped_table import row_stride
from headwise.attention.triton_backend.tiles import batch_head_index, load_block


@triton.jit
def load_clipped_rows(table_ptr, rows, offs_e, max_offset, DTYPE: tl.constexpr, OPT: tl.constexpr):
    """Load rows of a contiguous table, [rows, BLOCK_E]; the padding after them is 0."""
    return load_block(table_ptr, OPT.width, rows, offs_e, 2 * max_offset + 1, OPT.width, OPT.block_e).to(DTYPE)


@triton.jit
def table_scores_kernel(
    x_ptr, table_ptr, scores_ptr, edges_ptr, zeros_ptr, stride_x_b, stride_x_h, stride_x_n, stride_table_h, H, n,
    max_offset, OPT: tl.constexpr,
):  # fmt: skip
    """Compute the products of x [B, H, N, E] with a table, [B, H, N, R], and its edge columns. Optionally zero another
    such tensor. One program per block of queries.
    """
    BLOCK_N: tl.constexpr = OPT.block_n
    BLOCK_R: tl.constexpr = OPT.block_r
    BLOCK_E: tl.constexpr = OPT.block_e
    bh = batch_head_index()
    b, h = bh // H, bh % H
    offs_n, offs_e = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_E)
    x = load_block(x_ptr + b * stride_x_b + h * stride_x_h, stride_x_n, offs_n, offs_e, n, OPT.width, BLOCK_E)
    table_ptr += h * stride_table_h
    before = tl.zeros([BLOCK_N], tl.float32)
    after = tl.zeros([BLOCK_N], tl.float32)
    num_columns = row_stride(max_offset)
    for start in range(0, num_columns, BLOCK_R):
        offs_r = start + tl.arange(0, BLOCK_R)
        rows = load_clipped_rows(table_ptr, offs_r, offs_e, max_offset, x.dtype, OPT)
        scores = tl.dot(x, tl.trans(rows), input_precision=OPT.precision)  # [BLOCK_N, BLOCK_R]
        index = (bh * n + offs_n[:, None]) * num_columns + offs_r[None, :]
        mask = (offs_n[:, None] < n) & (offs_r[None, :] < num_columns)
        tl.store(scores_ptr + index, scores.to(scores_ptr.dtype.element_ty), mask=mask)
        if OPT.zeros:
            tl.store(zeros_ptr + index, tl.zeros_like(scores).to(zeros_ptr.dtype.element_ty), mask=mask)
        before += tl.sum(tl.where(offs_r[None, :] == 0, scores, 0.0), axis=1)
        after += tl.sum(tl.where(offs_r[None, :] == 2 * max_offset, scores, 0.0), axis=1)
    edges = edges_ptr + bh * 2 * n + offs_n
    tl.store(edges, before.to(edges_ptr.dtype.element_ty), mask=offs_n < n)
    tl.store(edges + n, after.to(edges_ptr.dtype.element_ty), mask=offs_n < n)


@triton.jit
def add_table_product_kernel(
    sums_ptr, table_ptr, out_ptr, stride_out_b, stride_out_h, stride_out_n, stride_table_h, H, n, max_offset,
    OPT: tl.constexpr,
):  # fmt: skip
    """Add the products of sums [B, H, N, R] with a table to out [B, H, N, E]. One program per block of queries."""
    BLOCK_N: tl.constexpr = OPT.block_n
    BLOCK_R: tl.constexpr = OPT.block_r
    BLOCK_E: tl.constexpr = OPT.block_e
    bh = batch_head_index()
    b, h = bh // H, bh % H
    offs_n, offs_e = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_E)
    table_ptr += h * stride_table_h
    acc = tl.zeros([BLOCK_N, BLOCK_E], tl.float32)
    num_columns = row_stride(max_offset)
    for start in range(0, num_columns, BLOCK_R):
        offs_r = start + tl.arange(0, BLOCK_R)
        index = (bh * n + offs_n[:, None]) * num_columns + offs_r[None, :]
        mask = (offs_n[:, None] < n) & (offs_r[None, :] < num_columns)
        sums = tl.load(sums_ptr + index, mask=mask, other=0.0)  # [BLOCK_N, BLOCK_R]
        rows = load_clipped_rows(table_ptr, offs_r, offs_e, max_offset, sums.dtype, OPT)
        acc = tl.dot(sums, rows, acc, input_precision=OPT.precision)
    ptrs = out_ptr + b * stride_out_b + h * stride_out_h + offs_n[:, None] * stride_out_n + offs_e[None, :]
    mask = (offs_n[:, None] < n) & (offs_e[None, :] < OPT.width)
    out = tl.load(ptrs, mask=mask, other=0.0).to(tl.float32) + acc
    tl.store(ptrs, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def table_gradient_kernel(
    sums_ptr, x_ptr, partials_ptr, stride_x_b, stride_x_h, stride_x_n, H, TABLE_HEADS, num_parts, n, max_offset,
    OPT: tl.constexpr,
):  # fmt: skip
    """Sum sums [B, H, N, R]ᵀ · x [B, H, N, E] over queries and batch elements, and over heads if these share a table.

    A part is a batch element, or a batch element and head if heads share a table. The grid is (programs that share the
    parts, blocks of rows, heads of the table). Each program stores its sum in partials [programs, heads, R, E].
    """
    BLOCK_N: tl.constexpr = OPT.block_n
    BLOCK_R: tl.constexpr = OPT.block_r
    BLOCK_E: tl.constexpr = OPT.block_e
    table_head = tl.program_id(2)
    offs_r, offs_e = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_E)
    num_columns = row_stride(max_offset)
    acc = tl.zeros([BLOCK_R, BLOCK_E], tl.float32)
    for part in range(tl.program_id(0), num_parts, tl.num_programs(0)):
        bh = (part * TABLE_HEADS + table_head).to(tl.int64)
        b, h = bh // H, bh % H
        x_bh = x_ptr + b * stride_x_b + h * stride_x_h
        for start in range(0, n, BLOCK_N):
            offs_n = start + tl.arange(0, BLOCK_N)
            index = (bh * n + offs_n[:, None]) * num_columns + offs_r[None, :]
            mask = (offs_n[:, None] < n) & (offs_r[None, :] < num_columns)
            sums = tl.load(sums_ptr + index, mask=mask, other=0.0)  # [BLOCK_N, BLOCK_R]
            x = load_block(x_bh, stride_x_n, offs_n, offs_e, n, OPT.width, BLOCK_E)  # [BLOCK_N, BLOCK_E]
            acc = tl.dot(tl.trans(sums), x, acc, input_precision=OPT.precision)
    num_rows = 2 * max_offset + 1
    row = (tl.program_id(0) * TABLE_HEADS + table_head) * num_rows + offs_r[:, None]
    mask = (offs_r[:, None] < num_rows) & (offs_e[None, :] < OPT.width)
    tl.store(partials_ptr + row * OPT.width + offs_e[None, :], acc, mask=mask)
