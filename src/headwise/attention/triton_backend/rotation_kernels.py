"""Kernels that add TENER's biases to queries and rotate them, and the gradients.

Legend: B batch, H heads, N queries, E width, an even number. Columns of the first half belong to sines, those of the
second half to cosines.
"""

import triton
import triton.language as tl

from headwise.attention.triton_backend.tiles import batch_head_index, load_block


@triton.jit
def load_halves(ptr, stride, rows, n, OPT: tl.constexpr):
    """Load both halves of the columns of a block of rows, [ROWS, HALF] each, in float32."""
    offs = tl.arange(0, OPT.block_half)
    first = load_block(ptr, stride, rows, offs, n, OPT.half_width, OPT.block_half)
    second = load_block(ptr + OPT.half_width, stride, rows, offs, n, OPT.half_width, OPT.block_half)
    return first.to(tl.float32), second.to(tl.float32)


@triton.jit
def load_bias_halves(ptr, OPT: tl.constexpr):
    """Load both halves of a bias, [1, HALF] each."""
    offs = tl.arange(0, OPT.block_half)
    first = tl.load(ptr + offs, mask=offs < OPT.half_width, other=0.0)
    second = tl.load(ptr + OPT.half_width + offs, mask=offs < OPT.half_width, other=0.0)
    return first.to(tl.float32)[None, :], second.to(tl.float32)[None, :]


@triton.jit
def store_halves(ptr, stride, rows, n, first, second, OPT: tl.constexpr):
    """Store both halves of the columns of a block of rows."""
    offs = tl.arange(0, OPT.block_half)
    ptrs = ptr + rows[:, None] * stride + offs[None, :]
    mask = (rows[:, None] < n) & (offs[None, :] < OPT.half_width)
    tl.store(ptrs, first.to(ptr.dtype.element_ty), mask=mask)
    tl.store(ptrs + OPT.half_width, second.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def store_sums(ptr, first, second, OPT: tl.constexpr):
    """Store the sums of both halves over the rows."""
    offs = tl.arange(0, OPT.block_half)
    tl.store(ptr + offs, tl.sum(first, axis=0), mask=offs < OPT.half_width)
    tl.store(ptr + OPT.half_width + offs, tl.sum(second, axis=0), mask=offs < OPT.half_width)


@triton.jit
def rotate(first, second, sin, cos):
    """Return rot_i of vectors whose halves are given (`sinusoids.rotate`). The matrix of rot_i is symmetric."""
    return second * sin - first * cos, second * cos + first * sin


@triton.jit
def rotate_queries_kernel(
    q_ptr, u_ptr, v_ptr, embeddings_ptr, content_q_ptr, position_q_ptr, stride_q_b, stride_q_h, stride_q_n,
    stride_out_b, stride_out_h, stride_out_n, H, n, OPT: tl.constexpr,
):  # fmt: skip
    """Compute q + u and rot_i(q + v). One program per block of queries."""
    bh = batch_head_index()
    b, h = bh // H, bh % H
    rows = tl.program_id(0) * OPT.block_n + tl.arange(0, OPT.block_n)
    first, second = load_halves(q_ptr + b * stride_q_b + h * stride_q_h, stride_q_n, rows, n, OPT)
    sin, cos = load_halves(embeddings_ptr, 2 * OPT.half_width, rows, n, OPT)
    u_first, u_second = load_bias_halves(u_ptr + h * 2 * OPT.half_width, OPT)
    v_first, v_second = load_bias_halves(v_ptr + h * 2 * OPT.half_width, OPT)
    out = b * stride_out_b + h * stride_out_h
    store_halves(content_q_ptr + out, stride_out_n, rows, n, first + u_first, second + u_second, OPT)
    first, second = rotate(first + v_first, second + v_second, sin, cos)
    store_halves(position_q_ptr + out, stride_out_n, rows, n, first, second, OPT)


@triton.jit
def bwd_rotate_queries_kernel(
    d_content_q_ptr, d_position_q_ptr, embeddings_ptr, q_ptr, partials_ptr, stride_d_content_q_b, stride_d_content_q_h,
    stride_d_content_q_n, stride_d_position_q_b, stride_d_position_q_h, stride_d_position_q_n, stride_q_b, stride_q_h,
    stride_q_n, B, H, n, OPT: tl.constexpr,
):  # fmt: skip
    """Compute dq, at q_ptr, and this block's part of the gradients of u and v, [2, B, H, blocks, E].

    One program per block of queries.
    """
    bh = batch_head_index()
    b, h = bh // H, bh % H
    rows = tl.program_id(0) * OPT.block_n + tl.arange(0, OPT.block_n)
    d_content = d_content_q_ptr + b * stride_d_content_q_b + h * stride_d_content_q_h
    first, second = load_halves(d_content, stride_d_content_q_n, rows, n, OPT)
    partials = partials_ptr + (bh * tl.num_programs(0) + tl.program_id(0)) * 2 * OPT.half_width
    store_sums(partials, first, second, OPT)
    d_position = d_position_q_ptr + b * stride_d_position_q_b + h * stride_d_position_q_h
    position_first, position_second = load_halves(d_position, stride_d_position_q_n, rows, n, OPT)
    sin, cos = load_halves(embeddings_ptr, 2 * OPT.half_width, rows, n, OPT)
    rotated_first, rotated_second = rotate(position_first, position_second, sin, cos)
    count = B * H * tl.num_programs(0) * 2 * OPT.half_width
    store_sums(partials + count, rotated_first, rotated_second, OPT)
    dq = q_ptr + b * stride_q_b + h * stride_q_h
    store_halves(dq, stride_q_n, rows, n, first + rotated_first, second + rotated_second, OPT)
