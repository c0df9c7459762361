"""Kernels of what tokens receive in several layers at once, from queries and keys alone.

The layers are alike but for where they lie in memory: `places` holds, for each of them, how far its q, k, dq and dk, in
this order, lie behind the first layer's, in elements. `tiles.py` says the rest; a program's text is one of all layers'.
"""

import triton
import triton.language as tl

from headwise.attention.triton_backend.tiles import (
    LOG2E,
    SIDES,
    block,
    key_blocks,
    query_blocks,
    scores,
    text_and_head,
)


@triton.jit
def moved(pointer, places, bh, B, H, WHICH: tl.constexpr):
    """A tensor of this program's layer, which lies a multiple of 16 bytes behind, or before, the first layer's."""
    PIECE: tl.constexpr = 128 // pointer.dtype.element_ty.primitive_bitwidth
    return pointer + tl.multiple_of(tl.load(places + bh // H // B * 4 + WHICH), PIECE)


@triton.jit
def weights(x, lse, i, j, n, m, scale, padding, SIDE: tl.constexpr, OPT: tl.constexpr):
    """P of a tile, from its products and the log-sums of its rows."""
    s = scores(x, scale * LOG2E, i, j, n, m, 0, (padding, 0, 0, 0, 0, 0, 0, 0), SIDE, OPT)
    return tl.exp2(s - lse)


@triton.jit
def multi_layer_lse_kernel(
    q_ptr, k_ptr, places, lse_ptr, key_padding, q_b, q_h, q_n, k_b, k_h, k_m,
    B, H, GROUP, n, m, scale, OPT: tl.constexpr,
):  # fmt: skip
    """Each row's log-sum, in units of log 2; +∞ for padding and for a row without a key, so that all its weights are 0:
    one program a block of queries.
    """
    BN: tl.constexpr = OPT.block_n
    BM: tl.constexpr = OPT.block_m
    BE: tl.constexpr = OPT.block_e
    first = tl.program_id(0) * BN
    bh = text_and_head()
    b, h = bh // H % B, bh % H
    rows = first + tl.arange(0, BN)
    e = tl.arange(0, BE)
    q = block(moved(q_ptr, places, bh, B, H, 0) + b * q_b + h * q_h, q_n, rows, e, n, OPT.width, BE)
    k_ptr = moved(k_ptr, places, bh, B, H, 1) + b * k_b + (h // GROUP) * k_h
    top = tl.full([BN], float("-inf"), tl.float32)
    total = tl.zeros([BN], tl.float32)
    admit = (key_padding + b * m, 0, 0, 0, 0, 0, 0, 0)
    for SIDE in tl.static_range(SIDES):
        if (OPT.sides >> SIDE) & 1:
            lo, hi = key_blocks(first, n, m, 0, 0, 0, 0, SIDE, OPT)
            for step in range(lo, hi):
                columns = step * BM + tl.arange(0, BM)
                k = block(k_ptr, k_m, columns, e, m, OPT.width, BE)
                x = tl.dot(q, tl.trans(k), input_precision=OPT.precision)
                s = scores(x, scale * LOG2E, rows[:, None], columns[None, :], n, m, 0, admit, SIDE, OPT)
                new_top = tl.maximum(top, tl.max(s, axis=1))
                safe_top = tl.where(new_top == float("-inf"), 0.0, new_top)
                total = total * tl.exp2(top - safe_top) + tl.sum(tl.exp2(s - safe_top[:, None]), axis=1)
                top = new_top
    real = (top != float("-inf")) & (rows < n)
    if OPT.key_padding:
        real = real & (tl.load(key_padding + b * m + rows, mask=rows < n, other=0) != 0)
    lse = tl.where(real, top + tl.log2(tl.where(real, total, 1.0)), float("inf"))
    tl.store(lse_ptr + bh * n + rows, lse, mask=rows < n)


@triton.jit
def bunched_received(
    q_ptr, k_ptr, places, lse_ptr, received_ptr, key_padding, q_b, q_h, q_n, k_b, k_h, k_m,
    B, H, GROUP, n, m, scale, OPT: tl.constexpr,
):  # fmt: skip
    """received_j = Σ_i P_ij: one program a block of keys."""
    BN: tl.constexpr = OPT.block_n
    BM: tl.constexpr = OPT.block_m
    BE: tl.constexpr = OPT.block_e
    first = tl.program_id(0) * BM
    bh = text_and_head()
    b, h = bh // H % B, bh % H
    columns = first + tl.arange(0, BM)
    e = tl.arange(0, BE)
    k_ptr = moved(k_ptr, places, bh, B, H, 1) + b * k_b + (h // GROUP) * k_h
    k = block(k_ptr, k_m, columns, e, m, OPT.width, BE)
    q_ptr = moved(q_ptr, places, bh, B, H, 0) + b * q_b + h * q_h
    received = tl.zeros([BM], tl.float32)
    for SIDE in tl.static_range(SIDES):
        if (OPT.sides >> SIDE) & 1:
            lo, hi = query_blocks(first, n, m, 0, 0, 0, 0, SIDE, OPT)
            for step in range(lo, hi):
                rows = step * BN + tl.arange(0, BN)
                q = block(q_ptr, q_n, rows, e, n, OPT.width, BE)
                lse = tl.load(lse_ptr + bh * n + rows, mask=rows < n, other=float("inf"))
                x = tl.dot(k, tl.trans(q), input_precision=OPT.precision)
                i, j = rows[None, :], columns[:, None]
                p = weights(x, lse[None, :], i, j, n, m, scale, key_padding + b * m, SIDE, OPT)
                received += tl.sum(p, axis=1)
    tl.store(received_ptr + bh * m + columns, received, mask=columns < m)


@triton.jit
def bunched_query_gradients(
    q_ptr, k_ptr, places, lse_ptr, g_ptr, delta_ptr, dq_ptr, key_padding,
    q_b, q_h, q_n, k_b, k_h, k_m, dq_b, dq_h, dq_n, B, H, GROUP, n, m, scale, OPT: tl.constexpr,
):  # fmt: skip
    """delta_i = Σ_j P_ij g_j, where g is the gradient of received, and dq: one program a block of queries."""
    BN: tl.constexpr = OPT.block_n
    BM: tl.constexpr = OPT.block_m
    BE: tl.constexpr = OPT.block_e
    first = tl.program_id(0) * BN
    bh = text_and_head()
    b, h = bh // H % B, bh % H
    rows = first + tl.arange(0, BN)
    i = rows[:, None]
    e = tl.arange(0, BE)
    q = block(moved(q_ptr, places, bh, B, H, 0) + b * q_b + h * q_h, q_n, rows, e, n, OPT.width, BE)
    k_ptr = moved(k_ptr, places, bh, B, H, 1) + b * k_b + (h // GROUP) * k_h
    lse = tl.load(lse_ptr + bh * n + rows, mask=rows < n, other=float("inf"))[:, None]
    delta = tl.zeros([BN], tl.float32)
    dq = tl.zeros([BN, BE], tl.float32)
    for LOOK in tl.static_range(2):  # delta first, which dq needs whole
        for SIDE in tl.static_range(SIDES):
            if (OPT.sides >> SIDE) & 1:
                lo, hi = key_blocks(first, n, m, 0, 0, 0, 0, SIDE, OPT)
                for step in range(lo, hi):
                    columns = step * BM + tl.arange(0, BM)
                    k = block(k_ptr, k_m, columns, e, m, OPT.width, BE)
                    g = tl.load(g_ptr + bh * m + columns, mask=columns < m, other=0.0)
                    x = tl.dot(q, tl.trans(k), input_precision=OPT.precision)
                    p = weights(x, lse, i, columns[None, :], n, m, scale, key_padding + b * m, SIDE, OPT)
                    if LOOK == 0:
                        delta += tl.sum(p * g[None, :], axis=1)
                    else:
                        dx = p * (g[None, :] - delta[:, None])
                        dq = tl.dot(dx.to(k.dtype), k, dq, input_precision=OPT.precision)
        if LOOK == 0:
            tl.store(delta_ptr + bh * n + rows, delta, mask=rows < n)
    at = moved(dq_ptr, places, bh, B, H, 2) + b * dq_b + h * dq_h + i * dq_n + e[None, :]
    tl.store(at, (dq * scale).to(dq_ptr.dtype.element_ty), mask=(i < n) & (e[None, :] < OPT.width))


@triton.jit
def bunched_key_gradients(
    q_ptr, k_ptr, places, lse_ptr, g_ptr, delta_ptr, dk_ptr, key_padding,
    q_b, q_h, q_n, k_b, k_h, k_m, dk_b, dk_h, dk_m, B, G, GROUP, n, m, scale, OPT: tl.constexpr,
):  # fmt: skip
    """dk, summed over the heads that share a key: one program a block of keys."""
    BN: tl.constexpr = OPT.block_n
    BM: tl.constexpr = OPT.block_m
    BE: tl.constexpr = OPT.block_e
    first = tl.program_id(0) * BM
    bg = text_and_head()
    b, group = bg // G % B, bg % G
    columns = first + tl.arange(0, BM)
    j = columns[:, None]
    e = tl.arange(0, BE)
    k_ptr = moved(k_ptr, places, bg, B, G, 1) + b * k_b + group * k_h
    k = block(k_ptr, k_m, columns, e, m, OPT.width, BE)
    q_ptr = moved(q_ptr, places, bg, B, G, 0) + b * q_b
    dk = tl.zeros([BM, BE], tl.float32)
    for member in range(GROUP):
        bh = bg * GROUP + member
        q_head = q_ptr + (group * GROUP + member) * q_h
        g = tl.load(g_ptr + bh * m + columns, mask=columns < m, other=0.0)[:, None]
        for SIDE in tl.static_range(SIDES):
            if (OPT.sides >> SIDE) & 1:
                lo, hi = query_blocks(first, n, m, 0, 0, 0, 0, SIDE, OPT)
                for step in range(lo, hi):
                    rows = step * BN + tl.arange(0, BN)
                    q = block(q_head, q_n, rows, e, n, OPT.width, BE)
                    lse = tl.load(lse_ptr + bh * n + rows, mask=rows < n, other=float("inf"))
                    delta = tl.load(delta_ptr + bh * n + rows, mask=rows < n, other=0.0)
                    x = tl.dot(k, tl.trans(q), input_precision=OPT.precision)
                    i = rows[None, :]
                    p = weights(x, lse[None, :], i, j, n, m, scale, key_padding + b * m, SIDE, OPT)
                    dx = p * (g - delta[None, :])
                    dk = tl.dot(dx.to(q.dtype), q, dk, input_precision=OPT.precision)
    at = moved(dk_ptr, places, bg, B, G, 3) + b * dk_b + group * dk_h + j * dk_m + e[None, :]
    tl.store(at, (dk * scale).to(dk_ptr.dtype.element_ty), mask=(j < m) & (e[None, :] < OPT.width))
