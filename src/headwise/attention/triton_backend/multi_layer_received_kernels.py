"""Kernels of received attention in several layers at once, from queries and keys only.

The layers differ only in the addresses of their tensors. `layer_offsets` [layers, 4] holds the offsets of each layer's
q, k, dq and dk, in this order, from those of the first layer, in elements. The third axis of the grid runs over the
batches of all layers. The rest of the legend is in `tiles.py`.
"""

import triton
import triton.language as tl

from headwise.attention.triton_backend.tiles import (
    LOG2E,
    NUM_REGIONS,
    MaskAndBias,
    batch_head_index,
    compute_scores,
    key_block_range,
    load_block,
    load_numbers,
    query_block_range,
)

#: Columns of layer_offsets.
Q, K, DQ, DK = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)


@triton.jit
def layer_pointer(ptr, layer_offsets_ptr, bh, B, H, COLUMN: tl.constexpr):
    """Return the pointer to a tensor of this program's layer. Offsets are multiples of 16 bytes and can be negative."""
    ALIGNMENT: tl.constexpr = 128 // ptr.dtype.element_ty.primitive_bitwidth
    return ptr + tl.multiple_of(tl.load(layer_offsets_ptr + bh // H // B * 4 + COLUMN), ALIGNMENT)


@triton.jit
def attention_weights(x, lse, i, j, n, m, scale, key_padding_ptr, REGION: tl.constexpr, OPT: tl.constexpr):
    """Compute P of a tile from q · k and lse."""
    mods = MaskAndBias(key_padding_ptr, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    s, _ = compute_scores(x, scale * LOG2E, i, j, n, m, 0, mods, REGION, OPT)
    return tl.exp2(s - lse)


@triton.jit
def multi_layer_lse_kernel(
    q_ptr, k_ptr, layer_offsets_ptr, lse_ptr, key_padding_ptr,
    stride_q_b, stride_q_h, stride_q_n, stride_k_b, stride_k_h, stride_k_m,
    B, H, GROUP, n, m, scale, OPT: tl.constexpr,
):  # fmt: skip
    """Compute lse in base 2. One program per query block.

    lse is +∞ for padding and for rows without a key, so that all their weights are 0.
    """
    BLOCK_N: tl.constexpr = OPT.block_n
    BLOCK_M: tl.constexpr = OPT.block_m
    BLOCK_E: tl.constexpr = OPT.block_e
    block_start = tl.program_id(0) * BLOCK_N
    bh = batch_head_index()
    b, h = bh // H % B, bh % H
    offs_n = block_start + tl.arange(0, BLOCK_N)
    offs_e = tl.arange(0, BLOCK_E)
    q_ptr = layer_pointer(q_ptr, layer_offsets_ptr, bh, B, H, Q) + b * stride_q_b + h * stride_q_h
    q = load_block(q_ptr, stride_q_n, offs_n, offs_e, n, OPT.width, BLOCK_E)  # [BLOCK_N, BLOCK_E]
    k_ptr = layer_pointer(k_ptr, layer_offsets_ptr, bh, B, H, K) + b * stride_k_b + (h // GROUP) * stride_k_h
    row_max = tl.full([BLOCK_N], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_N], tl.float32)
    mods = MaskAndBias(key_padding_ptr + b * m, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    for REGION in tl.static_range(NUM_REGIONS):
        if (OPT.regions >> REGION) & 1:
            lo, hi = key_block_range(block_start, n, m, 0, 0, 0, REGION, OPT)
            for step in range(lo, hi):
                offs_m = step * BLOCK_M + tl.arange(0, BLOCK_M)
                k = load_block(k_ptr, stride_k_m, offs_m, offs_e, m, OPT.width, BLOCK_E, OPT.even_m)
                x = tl.dot(q, tl.trans(k), input_precision=OPT.precision)  # [BLOCK_N, BLOCK_M]
                i, j = offs_n[:, None], offs_m[None, :]
                s, _ = compute_scores(x, scale * LOG2E, i, j, n, m, 0, mods, REGION, OPT)
                new_max = tl.maximum(row_max, tl.max(s, axis=1))
                finite_max = tl.where(new_max == float("-inf"), 0.0, new_max)
                row_sum = row_sum * tl.exp2(row_max - finite_max) + tl.sum(tl.exp2(s - finite_max[:, None]), axis=1)
                row_max = new_max
    is_valid = (row_max != float("-inf")) & (offs_n < n)
    if OPT.key_padding:
        is_valid = is_valid & (tl.load(key_padding_ptr + b * m + offs_n, mask=offs_n < n, other=0) != 0)
    lse = tl.where(is_valid, row_max + tl.log2(tl.where(is_valid, row_sum, 1.0)), float("inf"))
    tl.store(lse_ptr + bh * n + offs_n, lse, mask=offs_n < n)


@triton.jit
def multi_layer_received_kernel(
    q_ptr, k_ptr, layer_offsets_ptr, lse_ptr, received_ptr, key_padding_ptr,
    stride_q_b, stride_q_h, stride_q_n, stride_k_b, stride_k_h, stride_k_m,
    B, H, GROUP, n, m, scale, OPT: tl.constexpr,
):  # fmt: skip
    """Compute received_j = Σ_i P_ij. One program per key block."""
    BLOCK_N: tl.constexpr = OPT.block_n
    BLOCK_M: tl.constexpr = OPT.block_m
    BLOCK_E: tl.constexpr = OPT.block_e
    block_start = tl.program_id(0) * BLOCK_M
    bh = batch_head_index()
    b, h = bh // H % B, bh % H
    offs_m = block_start + tl.arange(0, BLOCK_M)
    offs_e = tl.arange(0, BLOCK_E)
    k_ptr = layer_pointer(k_ptr, layer_offsets_ptr, bh, B, H, K) + b * stride_k_b + (h // GROUP) * stride_k_h
    k = load_block(k_ptr, stride_k_m, offs_m, offs_e, m, OPT.width, BLOCK_E)  # [BLOCK_M, BLOCK_E]
    q_ptr = layer_pointer(q_ptr, layer_offsets_ptr, bh, B, H, Q) + b * stride_q_b + h * stride_q_h
    received = tl.zeros([BLOCK_M], tl.float32)
    for REGION in tl.static_range(NUM_REGIONS):
        if (OPT.regions >> REGION) & 1:
            lo, hi = query_block_range(block_start, n, m, 0, 0, 0, REGION, OPT)
            for step in range(lo, hi):
                offs_n = step * BLOCK_N + tl.arange(0, BLOCK_N)
                q = load_block(q_ptr, stride_q_n, offs_n, offs_e, n, OPT.width, BLOCK_E, OPT.even_n)
                lse = load_numbers(lse_ptr + bh * n, offs_n, n, float("inf"), OPT.even_n)
                x = tl.dot(k, tl.trans(q), input_precision=OPT.precision)  # [BLOCK_M, BLOCK_N]
                i, j = offs_n[None, :], offs_m[:, None]
                p = attention_weights(x, lse[None, :], i, j, n, m, scale, key_padding_ptr + b * m, REGION, OPT)
                received += tl.sum(p, axis=1)
    tl.store(received_ptr + bh * m + offs_m, received, mask=offs_m < m)


@triton.jit
def multi_layer_rows_kernel(
    q_ptr, k_ptr, layer_offsets_ptr, lse_ptr, received_ptr, key_padding_ptr,
    stride_q_b, stride_q_h, stride_q_n, stride_k_b, stride_k_h, stride_k_m,
    B, H, GROUP, n, m, scale, OPT: tl.constexpr,
):  # fmt: skip
    """Compute what the two kernels above do, if a tile holds all keys. One program per head.

    A query's exponentials are computed once, because its sum is known before they are added to received.
    """
    BLOCK_N: tl.constexpr = OPT.block_n
    BLOCK_M: tl.constexpr = OPT.block_m
    BLOCK_E: tl.constexpr = OPT.block_e
    bh = batch_head_index()
    b, h = bh // H % B, bh % H
    offs_m = tl.arange(0, BLOCK_M)
    offs_e = tl.arange(0, BLOCK_E)
    k_ptr = layer_pointer(k_ptr, layer_offsets_ptr, bh, B, H, K) + b * stride_k_b + (h // GROUP) * stride_k_h
    k = load_block(k_ptr, stride_k_m, offs_m, offs_e, m, OPT.width, BLOCK_E, OPT.even_m)  # [BLOCK_M, BLOCK_E]
    q_ptr = layer_pointer(q_ptr, layer_offsets_ptr, bh, B, H, Q) + b * stride_q_b + h * stride_q_h
    is_key = offs_m < m
    if OPT.key_padding:
        is_key = is_key & (tl.load(key_padding_ptr + b * m + offs_m, mask=offs_m < m, other=0) != 0)
    weights = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)  # sums over blocks of queries
    for block_start in range(0, n, BLOCK_N):
        offs_n = block_start + tl.arange(0, BLOCK_N)
        q = load_block(q_ptr, stride_q_n, offs_n, offs_e, n, OPT.width, BLOCK_E, OPT.even_n)  # [BLOCK_N, BLOCK_E]
        s = tl.dot(q, tl.trans(k), input_precision=OPT.precision) * (scale * LOG2E)  # [BLOCK_N, BLOCK_M]
        if OPT.key_padding or not OPT.even_m:
            s = tl.where(is_key[None, :], s, float("-inf"))
        if OPT.causal:
            s = tl.where(offs_m[None, :] <= offs_n[:, None], s, float("-inf"))
        row_max = tl.max(s, axis=1)
        is_valid = (row_max != float("-inf")) & (offs_n < n)
        if OPT.key_padding:
            is_valid = is_valid & (tl.load(key_padding_ptr + b * m + offs_n, mask=offs_n < n, other=0) != 0)
        row_max = tl.where(is_valid, row_max, 0.0)
        exponentials = tl.exp2(s - row_max[:, None])
        row_sum = tl.where(is_valid, tl.sum(exponentials, axis=1), 1.0)
        lse = tl.where(is_valid, row_max + tl.log2(row_sum), float("inf"))
        tl.store(lse_ptr + bh * n + offs_n, lse, mask=offs_n < n)
        weights += exponentials * tl.where(is_valid, 1.0 / row_sum, 0.0)[:, None]
    tl.store(received_ptr + bh * m + offs_m, tl.sum(weights, axis=0), mask=offs_m < m)


@triton.jit
def multi_layer_bwd_dq_kernel(
    q_ptr, k_ptr, layer_offsets_ptr, lse_ptr, d_received_ptr, delta_ptr, dq_ptr, key_padding_ptr,
    stride_q_b, stride_q_h, stride_q_n, stride_k_b, stride_k_h, stride_k_m, stride_dq_b, stride_dq_h, stride_dq_n,
    B, H, GROUP, n, m, scale, OPT: tl.constexpr,
):  # fmt: skip
    """Compute delta_i = Σ_j P_ij d_received_j, and dq. One program per query block.

    dq = Σ_j P_ij d_received_j k_j − delta_i Σ_j P_ij k_j, so that one pass over the keys computes both.
    """
    BLOCK_N: tl.constexpr = OPT.block_n
    BLOCK_M: tl.constexpr = OPT.block_m
    BLOCK_E: tl.constexpr = OPT.block_e
    block_start = tl.program_id(0) * BLOCK_N
    bh = batch_head_index()
    b, h = bh // H % B, bh % H
    offs_n = block_start + tl.arange(0, BLOCK_N)
    i = offs_n[:, None]
    offs_e = tl.arange(0, BLOCK_E)
    q_ptr = layer_pointer(q_ptr, layer_offsets_ptr, bh, B, H, Q) + b * stride_q_b + h * stride_q_h
    q = load_block(q_ptr, stride_q_n, offs_n, offs_e, n, OPT.width, BLOCK_E)  # [BLOCK_N, BLOCK_E]
    k_ptr = layer_pointer(k_ptr, layer_offsets_ptr, bh, B, H, K) + b * stride_k_b + (h // GROUP) * stride_k_h
    lse = tl.load(lse_ptr + bh * n + offs_n, mask=offs_n < n, other=float("inf"))[:, None]
    delta = tl.zeros([BLOCK_N], tl.float32)
    dq = tl.zeros([BLOCK_N, BLOCK_E], tl.float32)
    weighted_k = tl.zeros([BLOCK_N, BLOCK_E], tl.float32)
    for REGION in tl.static_range(NUM_REGIONS):
        if (OPT.regions >> REGION) & 1:
            lo, hi = key_block_range(block_start, n, m, 0, 0, 0, REGION, OPT)
            for step in range(lo, hi):
                offs_m = step * BLOCK_M + tl.arange(0, BLOCK_M)
                k = load_block(k_ptr, stride_k_m, offs_m, offs_e, m, OPT.width, BLOCK_E, OPT.even_m)
                d_received = tl.load(d_received_ptr + bh * m + offs_m, mask=offs_m < m, other=0.0)
                x = tl.dot(q, tl.trans(k), input_precision=OPT.precision)  # [BLOCK_N, BLOCK_M]
                j = offs_m[None, :]
                p = attention_weights(x, lse, i, j, n, m, scale, key_padding_ptr + b * m, REGION, OPT)
                dx = p * d_received[None, :]
                delta += tl.sum(dx, axis=1)
                dq = tl.dot(dx.to(k.dtype), k, dq, input_precision=OPT.precision)
                weighted_k = tl.dot(p.to(k.dtype), k, weighted_k, input_precision=OPT.precision)
    dq -= delta[:, None] * weighted_k
    tl.store(delta_ptr + bh * n + offs_n, delta, mask=offs_n < n)
    dq_ptrs = layer_pointer(dq_ptr, layer_offsets_ptr, bh, B, H, DQ) + b * stride_dq_b + h * stride_dq_h
    dq_ptrs = dq_ptrs + i * stride_dq_n + offs_e[None, :]
    tl.store(dq_ptrs, (dq * scale).to(dq_ptr.dtype.element_ty), mask=(i < n) & (offs_e[None, :] < OPT.width))


@triton.jit
def multi_layer_bwd_dk_kernel(
    q_ptr, k_ptr, layer_offsets_ptr, lse_ptr, d_received_ptr, delta_ptr, dk_ptr, key_padding_ptr,
    stride_q_b, stride_q_h, stride_q_n, stride_k_b, stride_k_h, stride_k_m, stride_dk_b, stride_dk_h, stride_dk_m,
    B, G, GROUP, n, m, scale, OPT: tl.constexpr,
):  # fmt: skip
    """Compute dk, summed over the query heads of each key head. One program per key block."""
    BLOCK_N: tl.constexpr = OPT.block_n
    BLOCK_M: tl.constexpr = OPT.block_m
    BLOCK_E: tl.constexpr = OPT.block_e
    block_start = tl.program_id(0) * BLOCK_M
    bg = batch_head_index()
    b, g = bg // G % B, bg % G
    offs_m = block_start + tl.arange(0, BLOCK_M)
    j = offs_m[:, None]
    offs_e = tl.arange(0, BLOCK_E)
    k_ptr = layer_pointer(k_ptr, layer_offsets_ptr, bg, B, G, K) + b * stride_k_b + g * stride_k_h
    k = load_block(k_ptr, stride_k_m, offs_m, offs_e, m, OPT.width, BLOCK_E)  # [BLOCK_M, BLOCK_E]
    q_ptr = layer_pointer(q_ptr, layer_offsets_ptr, bg, B, G, Q) + b * stride_q_b
    dk = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
    for head_in_group in range(GROUP):
        bh = bg * GROUP + head_in_group
        q_head_ptr = q_ptr + (g * GROUP + head_in_group) * stride_q_h
        d_received = tl.load(d_received_ptr + bh * m + offs_m, mask=offs_m < m, other=0.0)[:, None]
        for REGION in tl.static_range(NUM_REGIONS):
            if (OPT.regions >> REGION) & 1:
                lo, hi = query_block_range(block_start, n, m, 0, 0, 0, REGION, OPT)
                for step in range(lo, hi):
                    offs_n = step * BLOCK_N + tl.arange(0, BLOCK_N)
                    q = load_block(q_head_ptr, stride_q_n, offs_n, offs_e, n, OPT.width, BLOCK_E, OPT.even_n)
                    lse = load_numbers(lse_ptr + bh * n, offs_n, n, float("inf"), OPT.even_n)
                    delta = load_numbers(delta_ptr + bh * n, offs_n, n, 0.0, OPT.even_n)
                    x = tl.dot(k, tl.trans(q), input_precision=OPT.precision)  # [BLOCK_M, BLOCK_N]
                    i = offs_n[None, :]
                    p = attention_weights(x, lse[None, :], i, j, n, m, scale, key_padding_ptr + b * m, REGION, OPT)
                    dx = p * (d_received - delta[None, :])
                    dk = tl.dot(dx.to(q.dtype), q, dk, input_precision=OPT.precision)
    dk_ptrs = layer_pointer(dk_ptr, layer_offsets_ptr, bg, B, G, DK) + b * stride_dk_b + g * stride_dk_h
    dk_ptrs = dk_ptrs + j * stride_dk_m + offs_e[None, :]
    tl.store(dk_ptrs, (dk * scale).to(dk_ptr.dtype.element_ty), mask=(j < m) & (offs_e[None, :] < OPT.width))
