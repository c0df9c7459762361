"""Kernels about tables with a row for every relative position: biases (`biases.py`) and gradients (`strips.py`)."""

import triton
import triton.language as tl

from headwise.attention.triton_backend.tiles import block


@triton.jit
def bias_terms(
    x_ptr, biases_ptr, terms_ptr, x_b, x_h, x_n, terms_b, terms_h, H, GROUP, count, OPT: tl.constexpr,
):  # fmt: skip
    """The product of each of a head's rows x with one of its biases: one program a block of rows."""
    b, h = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    rows, e = tl.program_id(0) * OPT.block_n + tl.arange(0, OPT.block_n), tl.arange(0, OPT.block_e)
    x = block(x_ptr + b * x_b + (h // GROUP) * x_h, x_n, rows, e, count, OPT.width, OPT.block_e)
    bias = tl.load(biases_ptr + h * OPT.width + e, mask=e < OPT.width, other=0.0)
    tl.store(terms_ptr + b * terms_b + h * terms_h + rows, tl.sum(x.to(tl.float32) * bias, axis=1), mask=rows < count)


@triton.jit
def strip_gradients(
    dz_ptr, table_ptr, relative_q_ptr, dq_ptr, of_table_ptr, total_ptr,
    dz_h, dz_b, dz_n, table_h, table_r, total_h, total_r, relative_q_b, relative_q_h, relative_q_n, dq_b, dq_h, dq_n,
    B, start, count, first, rows, n, m, scale, OPT: tl.constexpr,
):  # fmt: skip
    """From dZ of a strip (`strips.py`), the gradients of the queries as they meet the table, and of the table.

    One program a block of queries, then one a block of the table's rows. Both read dZ of a head, which lies in the
    cache if they do it at about the same time.
    """
    blocks = tl.cdiv(count, OPT.block_n)
    number = tl.program_id(0)
    h = tl.program_id(1).to(tl.int64)
    dz_ptr += h * dz_h
    if number < B * blocks:
        b, in_strip = (number // blocks).to(tl.int64), number % blocks * OPT.block_n
        share = (b * tl.num_programs(1) + h) * tl.cdiv(n, OPT.block_n) + (start + in_strip) // OPT.block_n
        relative_query_gradients(
            dz_ptr + b * dz_b, table_ptr + h * table_h, dq_ptr + b * dq_b + h * dq_h, of_table_ptr + share * OPT.width,
            dz_n, table_r, dq_n, in_strip, start, count, first, rows, m, scale, OPT,
        )  # fmt: skip
    else:
        table_gradients(
            dz_ptr, relative_q_ptr + h * relative_q_h, total_ptr + h * total_h, dz_n, relative_q_b, relative_q_n,
            total_r, (number - B * blocks) * OPT.block_m, B, count, first, rows, OPT,
        )  # fmt: skip


@triton.jit
def relative_query_gradients(
    dz_ptr, table_ptr, dq_ptr, share_ptr, dz_n, table_r, dq_n,
    in_strip, start, count, first, rows, m, scale, OPT: tl.constexpr,
):  # fmt: skip
    """dZ · table, added to dQ, and this block's share of the gradient of the bias v."""
    BN: tl.constexpr = OPT.block_n
    BE: tl.constexpr = OPT.block_e
    STEP: tl.constexpr = min(BN, 64)
    i, e = in_strip + tl.arange(0, BN), tl.arange(0, BE)
    total = tl.zeros([BN, BE], tl.float32)
    # The columns in which these queries have a pair.
    for step in range(tl.maximum(count - in_strip - BN, 0) // STEP, tl.cdiv(count - in_strip - 1 + m, STEP)):
        columns = step * STEP + tl.arange(0, STEP)
        dz = block(dz_ptr, dz_n, i.to(tl.int64), columns, count, STEP, STEP)
        table = block(table_ptr, table_r, first + columns, e, rows, OPT.width, BE)
        total = tl.dot(dz, table, total, input_precision=OPT.precision)
    total *= scale
    at = dq_ptr + (start + i)[:, None] * dq_n + e[None, :]
    inside = (i[:, None] < count) & (e[None, :] < OPT.width)
    dq = tl.load(at, mask=inside, other=0.0).to(tl.float32) + total
    tl.store(at, dq.to(dq_ptr.dtype.element_ty), mask=inside)
    tl.store(share_ptr + e, tl.sum(total, axis=0), mask=e < OPT.width)


@triton.jit
def table_gradients(
    dz_ptr, relative_q_ptr, total_ptr, dz_n, relative_q_b, relative_q_n, total_r,
    column, B, count, first, rows, OPT: tl.constexpr,
):  # fmt: skip
    """dZᵀ · relative_q of all texts, added to the table's total."""
    BM: tl.constexpr = OPT.block_m
    BE: tl.constexpr = OPT.block_e
    STEP: tl.constexpr = min(BM, 64)
    columns, e = column + tl.arange(0, BM), tl.arange(0, BE)
    total = tl.zeros([BM, BE], tl.float32)
    for step in range(tl.cdiv(B * count, STEP)):
        i = step * STEP + tl.arange(0, STEP)  # of all texts, one after another
        dz = block(dz_ptr, dz_n, i.to(tl.int64), columns, B * count, BM, BM)
        at = (i // count).to(tl.int64) * relative_q_b + i % count * relative_q_n
        inside = (i[:, None] < B * count) & (e[None, :] < OPT.width)
        q = tl.load(relative_q_ptr + at[:, None] + e[None, :], mask=inside, other=0.0)
        total = tl.dot(tl.trans(dz), q, total, input_precision=OPT.precision)
    at = total_ptr + (first + columns)[:, None] * total_r + e[None, :]
    inside = (first + columns[:, None] < rows) & (e[None, :] < OPT.width)
    tl.store(at, tl.load(at, mask=inside) + total, mask=inside)
