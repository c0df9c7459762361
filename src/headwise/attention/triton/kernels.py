"""Triton kernels for attention with learnable distance: forward, received, and the backward passes.

One tile function computes the scores of a block of queries against a block of keys; every kernel is a loop over such
tiles. Scores are in units of log 2. Three things keep the distance cheap:

- The scale, log₂e and σ(v) are folded into F = scale · log₂e · f = 1 / (c + a · e^(−w|i−j|)), one reciprocal a pair.
- For a tile whose keys all lie before (or after) its queries, e^(−w|i−j|) is an outer product of a row and a column.
  Both factors lie on the same side of 1, so it never is 0 · ∞.
- Far away f is constant to the last bit (1/σ(−v) for w > 0, 0 for w < 0): such tiles cost what plain attention costs.

Axes: B batch, H query heads, G key heads, N queries, M keys, E width of queries and keys, D width of values.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)

#: Where a tile's keys lie: far before its queries' positions, before, among them, after, far after.
FAR_BEFORE, BEFORE, AMONG, AFTER = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
SIDES = tl.constexpr(5)


@triton.jit
def block(base, stride_row, stride_column, rows, columns, n_rows, n_columns, EVEN: tl.constexpr):
    """Load a (rows × columns) block, zero outside (n_rows × n_columns); EVEN: no column is outside."""
    pointers = base + rows[:, None] * stride_row + columns[None, :] * stride_column
    if EVEN:
        return tl.load(pointers, mask=rows[:, None] < n_rows, other=0.0)
    return tl.load(pointers, mask=(rows[:, None] < n_rows) & (columns[None, :] < n_columns), other=0.0)


@triton.jit
def reciprocal(x, FAST: tl.constexpr):
    if FAST:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return 1.0 / x


@triton.jit
def head_parameters(w_ptr, sharpness_ptr, h, scale, DISTANCE: tl.constexpr):
    """Of a head: w in units of log 2, c and a of F, F far away, and from which distance on that is."""
    if DISTANCE:
        w = tl.load(w_ptr + h).to(tl.float32)
        v = tl.load(sharpness_ptr + h).to(tl.float32)
        c = tl.sigmoid(-v) / (scale * LOG2E)
        a = tl.maximum(tl.sigmoid(v), 1e-30) / (scale * LOG2E)
        far = tl.minimum((24.0 + tl.abs(v)) / tl.maximum(tl.abs(w), 1e-9), 1e9).to(tl.int32)
        return w * LOG2E, c, a, tl.where(w > 0.0, 1.0 / c, 0.0), far
    return 0.0, 0.0, 0.0, scale * LOG2E, 0


@triton.jit
def coefficients(i, j, w, c, a, SIDE: tl.constexpr, FAST: tl.constexpr):
    """a · e^(−w|i−j|) and F = scale · log₂e · f of eq. 5 for positions i of queries and j of keys."""
    if SIDE == BEFORE:
        between = tl.min(i, axis=0)
        row = a * tl.exp2(-w * (i - between).to(tl.float32))
        e = row[:, None] * tl.exp2(-w * (between - j).to(tl.float32))[None, :]
    elif SIDE == AFTER:
        between = tl.min(j, axis=0)
        row = a * tl.exp2(-w * (between - i).to(tl.float32))
        e = row[:, None] * tl.exp2(-w * (j - between).to(tl.float32))[None, :]
    else:
        e = a * tl.exp2(-w * tl.abs(i[:, None] - j[None, :]).to(tl.float32))
    e = tl.minimum(e, 1e30)  # where F is 0 to every purpose, and e · F still finite
    return e, reciprocal(c + e, FAST)


@triton.jit
def tile_scores(
    q, k, i, j, n, m, w, c, a, far_f, key_padding, mask, mask_row, mask_column, bias, bias_row, bias_column, offset,
    SIDE: tl.constexpr, CAUSAL: tl.constexpr, DISTANCE: tl.constexpr, RECTIFY: tl.constexpr,
    KEY_PADDING: tl.constexpr, MASK: tl.constexpr, BIAS: tl.constexpr, EVEN_M: tl.constexpr, FAST: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores in units of log 2, −∞ where a key may not be attended; also q·k, and e and F, numbers where constant.

    i and j are indices of queries and keys; query i stands at position offset + i.
    """
    x = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if DISTANCE and SIDE >= BEFORE and SIDE <= AFTER:
        e, f = coefficients(i + offset, j, w, c, a, SIDE, FAST)
    else:
        e, f = 0.0, far_f
    s = tl.maximum(x, 0.0) * f if DISTANCE and RECTIFY else x * f
    if BIAS or MASK:
        inside = (i[:, None] < n) & (j[None, :] < m)
    if BIAS:
        added = tl.load(bias + i[:, None] * bias_row + j[None, :] * bias_column, mask=inside, other=0.0)
        s += added.to(tl.float32) * LOG2E
    if not EVEN_M:
        s = tl.where(j[None, :] < m, s, float("-inf"))
    if CAUSAL and SIDE == AMONG:
        s = tl.where(j[None, :] <= i[:, None] + offset, s, float("-inf"))
    if KEY_PADDING:
        s = tl.where((tl.load(key_padding + j, mask=j < m, other=0) != 0)[None, :], s, float("-inf"))
    if MASK:
        may = tl.load(mask + i[:, None] * mask_row + j[None, :] * mask_column, mask=inside, other=0)
        s = tl.where(may != 0, s, float("-inf"))
    return s, x, e, f


@triton.jit
def kept(seed, i, j, m, dropout):
    """1/(1−p) where a weight is kept, 0 where it is dropped: a function of the seed and the pair alone."""
    return tl.where(tl.rand(seed, i[:, None] * m + j[None, :]) >= dropout, 1.0 / (1.0 - dropout), 0.0)


@triton.jit
def key_blocks(first, n, m, offset, far, SIDE: tl.constexpr, CAUSAL: tl.constexpr, DISTANCE: tl.constexpr,
               BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr):  # fmt: skip
    """From which to which block of keys lies on a side of the block of queries from index `first` on."""
    blocks = tl.cdiv(m, BLOCK_M)
    low = offset + first
    high = offset + tl.minimum(first + BLOCK_N, n) - 1
    before = blocks
    among = blocks
    if DISTANCE or CAUSAL:
        before = tl.minimum(low // BLOCK_M, blocks)
        among = tl.minimum(high // BLOCK_M + 1, blocks)
    far_before = before
    after = blocks
    if DISTANCE:
        far_before = tl.minimum(tl.maximum(low - far + 1, 0) // BLOCK_M, before)
        after = tl.maximum(tl.minimum(tl.cdiv(high + far, BLOCK_M), blocks), among)
    if CAUSAL:
        after = among
        blocks = among
    if SIDE == 0:
        return 0, far_before
    if SIDE == 1:
        return far_before, before
    if SIDE == 2:
        return before, among
    if SIDE == 3:
        return among, after
    return after, blocks


@triton.jit
def query_blocks(first, n, m, offset, far, SIDE: tl.constexpr, CAUSAL: tl.constexpr, DISTANCE: tl.constexpr,
                 BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr):  # fmt: skip
    """The same the other way round: blocks of queries for which the keys from index `first` on lie on a side."""
    blocks = tl.cdiv(n, BLOCK_N)
    low = first - offset
    high = tl.minimum(first + BLOCK_M, m) - 1 - offset
    after = 0
    among = 0
    if DISTANCE or CAUSAL:
        after = tl.minimum(tl.maximum(low, 0) // BLOCK_N, blocks)  # queries that come before these keys
        among = tl.minimum(tl.maximum(high + BLOCK_N, 0) // BLOCK_N, blocks)
    far_after = 0
    before = among
    if DISTANCE:
        far_after = tl.minimum(tl.maximum(low - far + 1, 0) // BLOCK_N, after)
        before = tl.maximum(tl.minimum(tl.cdiv(tl.maximum(high + far, 0), BLOCK_N), blocks), among)
    if SIDE == 0:
        return before, blocks
    if SIDE == 1:
        return among, before
    if SIDE == 2:
        return after, among
    if SIDE == 3:
        return far_after, far_after if CAUSAL else after
    return 0, 0 if CAUSAL else far_after


@triton.jit
def forward(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, w_ptr, sharpness_ptr, key_padding, query_padding, mask, bias, seed_ptr,
    q_b, q_h, q_n, q_e, k_b, k_h, k_m, k_e, v_b, v_h, v_m, v_d, o_b, o_h, o_n, o_d,
    mask_b, mask_h, mask_n, mask_m, bias_b, bias_h, bias_n, bias_m,
    H, GROUP, n, m, offset, scale, dropout,
    E: tl.constexpr, D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
    CAUSAL: tl.constexpr, DISTANCE: tl.constexpr, RECTIFY: tl.constexpr, KEY_PADDING: tl.constexpr,
    QUERY_PADDING: tl.constexpr, MASK: tl.constexpr, BIAS: tl.constexpr, DROPOUT: tl.constexpr, EVEN_M: tl.constexpr,
    FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o and the rows' log-sums: one program a block of queries."""
    first = tl.program_id(0) * BLOCK_N
    bh = tl.program_id(1)
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    g = h // GROUP
    i = first + tl.arange(0, BLOCK_N)
    e, d = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_D)
    q = block(q_ptr + b * q_b + h * q_h, q_n, q_e, i, e, n, E, E == BLOCK_E)
    k_ptr += b * k_b + g * k_h
    v_ptr += b * v_b + g * v_h
    key_padding += b * m
    mask += b * mask_b + h * mask_h
    bias += b * bias_b + h * bias_h
    w, c, a, far_f, far = head_parameters(w_ptr, sharpness_ptr, h, scale, DISTANCE)
    seed = 0
    if DROPOUT:
        seed = tl.load(seed_ptr).to(tl.int32) + bh

    top = tl.full([BLOCK_N], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_N], tl.float32)
    acc = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for SIDE in tl.static_range(SIDES):
        lo, hi = key_blocks(first, n, m, offset, far, SIDE, CAUSAL, DISTANCE, BLOCK_N, BLOCK_M)
        for step in range(lo, hi):
            j = step * BLOCK_M + tl.arange(0, BLOCK_M)
            k = block(k_ptr, k_m, k_e, j, e, m, E, E == BLOCK_E)
            s, _, _, _ = tile_scores(
                q, k, i, j, n, m, w, c, a, far_f, key_padding, mask, mask_n, mask_m, bias, bias_n, bias_m, offset,
                SIDE, CAUSAL, DISTANCE, RECTIFY, KEY_PADDING, MASK, BIAS, EVEN_M, FAST, PRECISION,
            )  # fmt: skip
            new_top = tl.maximum(top, tl.max(s, axis=1))
            safe_top = tl.where(new_top == float("-inf"), 0.0, new_top)
            p = tl.exp2(s - safe_top[:, None])
            rescale = tl.exp2(top - safe_top)
            total = total * rescale + tl.sum(p, axis=1)
            acc = acc * rescale[:, None]
            if DROPOUT:
                p *= kept(seed, i, j, m, dropout)
            v = block(v_ptr, v_m, v_d, j, d, m, D, D == BLOCK_D)
            acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
            top = new_top

    real = (top != float("-inf")) & (i < n)
    if QUERY_PADDING:
        real = real & (tl.load(query_padding + b * n + i, mask=i < n, other=0) != 0)
    total = tl.where(real, total, 1.0)
    inverse = tl.where(real, 1.0 / total, 0.0)
    # A row without a key has log-sum +∞, so that 2^(s − log-sum) is 0 in the backward pass too.
    lse = tl.where(real, top + tl.log2(total), float("inf"))
    tl.store(lse_ptr + bh.to(tl.int64) * n + i, lse, mask=i < n)
    pointers = o_ptr + b * o_b + h * o_h + i[:, None] * o_n + d[None, :] * o_d
    tl.store(pointers, (acc * inverse[:, None]).to(o_ptr.dtype.element_ty), mask=(i[:, None] < n) & (d[None, :] < D))


@triton.jit
def column_sums(
    q_ptr, k_ptr, lse_ptr, received_ptr, w_ptr, sharpness_ptr, key_padding, mask, bias,
    q_b, q_h, q_n, q_e, k_b, k_h, k_m, k_e, mask_b, mask_h, mask_n, mask_m, bias_b, bias_h, bias_n, bias_m,
    H, GROUP, n, m, offset, scale,
    E: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
    CAUSAL: tl.constexpr, DISTANCE: tl.constexpr, RECTIFY: tl.constexpr, KEY_PADDING: tl.constexpr,
    MASK: tl.constexpr, BIAS: tl.constexpr, EVEN_M: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """received_j = Σ_i P_ij: one program a block of keys."""
    first = tl.program_id(0) * BLOCK_M
    bh = tl.program_id(1)
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    j = first + tl.arange(0, BLOCK_M)
    e = tl.arange(0, BLOCK_E)
    k = block(k_ptr + b * k_b + (h // GROUP) * k_h, k_m, k_e, j, e, m, E, E == BLOCK_E)
    q_ptr += b * q_b + h * q_h
    lse_ptr += bh.to(tl.int64) * n
    key_padding += b * m
    mask += b * mask_b + h * mask_h
    bias += b * bias_b + h * bias_h
    w, c, a, far_f, far = head_parameters(w_ptr, sharpness_ptr, h, scale, DISTANCE)
    received = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)  # summed over rows once, at the end
    for SIDE in tl.static_range(SIDES):
        lo, hi = query_blocks(first, n, m, offset, far, SIDE, CAUSAL, DISTANCE, BLOCK_N, BLOCK_M)
        for step in range(lo, hi):
            i = step * BLOCK_N + tl.arange(0, BLOCK_N)
            q = block(q_ptr, q_n, q_e, i, e, n, E, E == BLOCK_E)
            s, _, _, _ = tile_scores(
                q, k, i, j, n, m, w, c, a, far_f, key_padding, mask, mask_n, mask_m, bias, bias_n, bias_m, offset,
                SIDE, CAUSAL, DISTANCE, RECTIFY, KEY_PADDING, MASK, BIAS, EVEN_M, FAST, PRECISION,
            )  # fmt: skip
            lse = tl.load(lse_ptr + i, mask=i < n, other=float("inf"))
            received += tl.exp2(s - lse[:, None])
    tl.store(received_ptr + bh.to(tl.int64) * m + j, tl.sum(received, axis=0), mask=j < m)


@triton.jit
def row_terms(
    o_ptr, do_ptr, delta_ptr, q_ptr, k_ptr, lse_ptr, g_ptr, w_ptr, sharpness_ptr, key_padding, mask, bias,
    o_b, o_h, o_n, o_d, do_b, do_h, do_n, do_d, q_b, q_h, q_n, q_e, k_b, k_h, k_m, k_e,
    mask_b, mask_h, mask_n, mask_m, bias_b, bias_h, bias_n, bias_m,
    H, GROUP, n, m, offset, scale,
    E: tl.constexpr, D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
    CAUSAL: tl.constexpr, DISTANCE: tl.constexpr, RECTIFY: tl.constexpr, KEY_PADDING: tl.constexpr,
    MASK: tl.constexpr, BIAS: tl.constexpr, RECEIVED: tl.constexpr,
    EVEN_M: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """delta_i = Σ_d dO O + Σ_j P_ij g_j, where g is the gradient of received: one program a block of queries."""
    first = tl.program_id(0) * BLOCK_N
    bh = tl.program_id(1)
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    i = first + tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    o = block(o_ptr + b * o_b + h * o_h, o_n, o_d, i, d, n, D, D == BLOCK_D).to(tl.float32)
    do = block(do_ptr + b * do_b + h * do_h, do_n, do_d, i, d, n, D, D == BLOCK_D).to(tl.float32)
    delta = tl.sum(o * do, axis=1)
    if RECEIVED:
        e = tl.arange(0, BLOCK_E)
        q = block(q_ptr + b * q_b + h * q_h, q_n, q_e, i, e, n, E, E == BLOCK_E)
        lse = tl.load(lse_ptr + bh.to(tl.int64) * n + i, mask=i < n, other=float("inf"))
        k_ptr += b * k_b + (h // GROUP) * k_h
        g_ptr += bh.to(tl.int64) * m
        key_padding += b * m
        mask += b * mask_b + h * mask_h
        bias += b * bias_b + h * bias_h
        w, c, a, far_f, far = head_parameters(w_ptr, sharpness_ptr, h, scale, DISTANCE)
        for SIDE in tl.static_range(SIDES):
            lo, hi = key_blocks(first, n, m, offset, far, SIDE, CAUSAL, DISTANCE, BLOCK_N, BLOCK_M)
            for step in range(lo, hi):
                j = step * BLOCK_M + tl.arange(0, BLOCK_M)
                k = block(k_ptr, k_m, k_e, j, e, m, E, E == BLOCK_E)
                s, _, _, _ = tile_scores(
                q, k, i, j, n, m, w, c, a, far_f, key_padding, mask, mask_n, mask_m, bias, bias_n, bias_m, offset,
                SIDE, CAUSAL, DISTANCE, RECTIFY, KEY_PADDING, MASK, BIAS, EVEN_M, FAST, PRECISION,
            )  # fmt: skip
                g = tl.load(g_ptr + j, mask=j < m, other=0.0)
                delta += tl.sum(tl.exp2(s - lse[:, None]) * g[None, :], axis=1)
    tl.store(delta_ptr + bh.to(tl.int64) * n + i, delta, mask=i < n)


@triton.jit
def key_gradients(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, g_ptr, dk_ptr, dv_ptr, shares_ptr, w_ptr, sharpness_ptr,
    key_padding, mask, bias, seed_ptr,
    q_b, q_h, q_n, q_e, k_b, k_h, k_m, k_e, v_b, v_h, v_m, v_d, do_b, do_h, do_n, do_d,
    mask_b, mask_h, mask_n, mask_m, bias_b, bias_h, bias_n, bias_m,
    H, GROUP, n, m, offset, scale, dropout,
    E: tl.constexpr, D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
    CAUSAL: tl.constexpr, DISTANCE: tl.constexpr, RECTIFY: tl.constexpr, KEY_PADDING: tl.constexpr,
    MASK: tl.constexpr, BIAS: tl.constexpr, DROPOUT: tl.constexpr, RECEIVED: tl.constexpr,
    EVEN_M: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dK, dV and this block of keys' share of the gradients of w and v: one program a block of keys."""
    first = tl.program_id(0) * BLOCK_M
    bg = tl.program_id(1)
    G = H // GROUP
    b, g_head = (bg // G).to(tl.int64), (bg % G).to(tl.int64)
    j = first + tl.arange(0, BLOCK_M)
    e, d = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_D)
    k = block(k_ptr + b * k_b + g_head * k_h, k_m, k_e, j, e, m, E, E == BLOCK_E)
    v = block(v_ptr + b * v_b + g_head * v_h, v_m, v_d, j, d, m, D, D == BLOCK_D)
    key_padding += b * m
    dk = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
    dv = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for member in range(GROUP):
        h = g_head * GROUP + member
        bh = b * H + h
        w, c, a, far_f, far = head_parameters(w_ptr, sharpness_ptr, h, scale, DISTANCE)
        dw = tl.zeros([BLOCK_N], tl.float32)
        d_sharpness = tl.zeros([BLOCK_N], tl.float32)
        seed = 0
        if DROPOUT:
            seed = tl.load(seed_ptr).to(tl.int32) + bh.to(tl.int32)
        g = tl.zeros([BLOCK_M], tl.float32)
        if RECEIVED:
            g = tl.load(g_ptr + bh * m + j, mask=j < m, other=0.0)
        for SIDE in tl.static_range(SIDES):
            lo, hi = query_blocks(first, n, m, offset, far, SIDE, CAUSAL, DISTANCE, BLOCK_N, BLOCK_M)
            for step in range(lo, hi):
                i = step * BLOCK_N + tl.arange(0, BLOCK_N)
                q = block(q_ptr + b * q_b + h * q_h, q_n, q_e, i, e, n, E, E == BLOCK_E)
                do = block(do_ptr + b * do_b + h * do_h, do_n, do_d, i, d, n, D, D == BLOCK_D)
                s, x, e_tile, f = tile_scores(
                    q, k, i, j, n, m, w, c, a, far_f, key_padding, mask + b * mask_b + h * mask_h, mask_n, mask_m,
                    bias + b * bias_b + h * bias_h, bias_n, bias_m, offset,
                    SIDE, CAUSAL, DISTANCE, RECTIFY, KEY_PADDING, MASK, BIAS, EVEN_M, FAST, PRECISION,
                )  # fmt: skip
                lse = tl.load(lse_ptr + bh * n + i, mask=i < n, other=float("inf"))
                delta = tl.load(delta_ptr + bh * n + i, mask=i < n, other=0.0)
                p = tl.exp2(s - lse[:, None])
                dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
                dropped = p
                if DROPOUT:
                    keep = kept(seed, i, j, m, dropout)
                    dropped = p * keep
                    dp *= keep
                dv = tl.dot(tl.trans(dropped).to(do.dtype), do, dv, input_precision=PRECISION)
                if RECEIVED:
                    dp += g[None, :]
                dx = p * (dp - delta[:, None])
                if DISTANCE:
                    if RECTIFY:
                        dx = tl.where(x > 0.0, dx, 0.0)
                    dx *= f
                    # ∂f/∂w = |i−j| f · eF  and  ∂f/∂v = f · σ(v) (1 − e/a) · σ(−v) f, neither with a cancellation.
                    dfx = dx * x
                    if SIDE >= BEFORE and SIDE <= AFTER:
                        dfx *= f
                        away = tl.abs((i + offset).to(tl.float32)[:, None] - j.to(tl.float32)[None, :])
                        dw += tl.sum(dfx * e_tile * away, axis=1)
                        d_sharpness += tl.sum(dfx * (a - e_tile), axis=1)
                    else:
                        d_sharpness += tl.sum(dfx, axis=1) * (a * far_f)
                dk = tl.dot(tl.trans(dx.to(q.dtype)), q, dk, input_precision=PRECISION)
        if DISTANCE:
            share = shares_ptr + (bh * tl.num_programs(0) + tl.program_id(0)) * 2
            tl.store(share, tl.sum(dw) / LOG2E)
            tl.store(share + 1, tl.sum(d_sharpness) * (c * scale))
    row = bg.to(tl.int64) * m + j[:, None]
    dk = (dk * (1.0 / LOG2E if DISTANCE else scale)).to(dk_ptr.dtype.element_ty)
    tl.store(dk_ptr + row * E + e[None, :], dk, mask=(j[:, None] < m) & (e[None, :] < E))
    dv = dv.to(dv_ptr.dtype.element_ty)
    tl.store(dv_ptr + row * D + d[None, :], dv, mask=(j[:, None] < m) & (d[None, :] < D))


@triton.jit
def query_gradients(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, g_ptr, dq_ptr, w_ptr, sharpness_ptr,
    key_padding, mask, bias, seed_ptr,
    q_b, q_h, q_n, q_e, k_b, k_h, k_m, k_e, v_b, v_h, v_m, v_d, do_b, do_h, do_n, do_d,
    mask_b, mask_h, mask_n, mask_m, bias_b, bias_h, bias_n, bias_m,
    H, GROUP, n, m, offset, scale, dropout,
    E: tl.constexpr, D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
    CAUSAL: tl.constexpr, DISTANCE: tl.constexpr, RECTIFY: tl.constexpr, KEY_PADDING: tl.constexpr,
    MASK: tl.constexpr, BIAS: tl.constexpr, DROPOUT: tl.constexpr, RECEIVED: tl.constexpr,
    EVEN_M: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dQ: one program a block of queries."""
    first = tl.program_id(0) * BLOCK_N
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    i = first + tl.arange(0, BLOCK_N)
    e, d = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_D)
    q = block(q_ptr + b * q_b + h * q_h, q_n, q_e, i, e, n, E, E == BLOCK_E)
    do = block(do_ptr + b * do_b + h * do_h, do_n, do_d, i, d, n, D, D == BLOCK_D)
    lse = tl.load(lse_ptr + bh * n + i, mask=i < n, other=float("inf"))
    delta = tl.load(delta_ptr + bh * n + i, mask=i < n, other=0.0)
    k_ptr += b * k_b + (h // GROUP) * k_h
    v_ptr += b * v_b + (h // GROUP) * v_h
    key_padding += b * m
    mask += b * mask_b + h * mask_h
    bias += b * bias_b + h * bias_h
    w, c, a, far_f, far = head_parameters(w_ptr, sharpness_ptr, h, scale, DISTANCE)
    seed = 0
    if DROPOUT:
        seed = tl.load(seed_ptr).to(tl.int32) + bh.to(tl.int32)
    dq = tl.zeros([BLOCK_N, BLOCK_E], tl.float32)
    for SIDE in tl.static_range(SIDES):
        lo, hi = key_blocks(first, n, m, offset, far, SIDE, CAUSAL, DISTANCE, BLOCK_N, BLOCK_M)
        for step in range(lo, hi):
            j = step * BLOCK_M + tl.arange(0, BLOCK_M)
            k = block(k_ptr, k_m, k_e, j, e, m, E, E == BLOCK_E)
            v = block(v_ptr, v_m, v_d, j, d, m, D, D == BLOCK_D)
            s, x, e_tile, f = tile_scores(
                q, k, i, j, n, m, w, c, a, far_f, key_padding, mask, mask_n, mask_m, bias, bias_n, bias_m, offset,
                SIDE, CAUSAL, DISTANCE, RECTIFY, KEY_PADDING, MASK, BIAS, EVEN_M, FAST, PRECISION,
            )  # fmt: skip
            p = tl.exp2(s - lse[:, None])
            dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
            if DROPOUT:
                dp *= kept(seed, i, j, m, dropout)
            if RECEIVED:
                dp += tl.load(g_ptr + bh * m + j, mask=j < m, other=0.0)[None, :]
            dx = p * (dp - delta[:, None])
            if DISTANCE:
                if RECTIFY:
                    dx = tl.where(x > 0.0, dx, 0.0)
                dx *= f
            dq = tl.dot(dx.to(k.dtype), k, dq, input_precision=PRECISION)
    at = dq_ptr + (bh * n + i[:, None]) * E + e[None, :]
    dq *= 1.0 / LOG2E if DISTANCE else scale
    tl.store(at, dq.to(dq_ptr.dtype.element_ty), mask=(i[:, None] < n) & (e[None, :] < E))
