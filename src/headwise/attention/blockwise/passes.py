"""Forward and backward, block after block."""

import torch
from torch import Tensor

from headwise.attention.blockwise.block import LOG2E, Arguments
from headwise.attention.diagonals import collect, diagonal_sums


def forward(a: Arguments) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Output, log-sums, received, weight_norms, weights; the last three are empty unless asked for."""
    output, lse, received, weight_norms, weights = outputs(a)
    for block in a.blocks():
        w, norm, lse[block.place] = block.exponentials(block.scores(block.raw_scores()))
        if a.distance is not None and a.adjust.startswith("late"):
            w, norm = block.adjusted_late(w.mul_(norm)), torch.ones_like(norm)
        if a.want_received:
            received[block.batch, block.heads, block.keys] += (norm.mT @ w)[..., 0, :]
        if a.want_squares:
            weight_norms[block.place] = (torch.linalg.vector_norm(w, dim=-1) * norm[..., 0]).square_()
        if a.want_weights:
            weights[*block.place, block.keys] = w * norm
        keep = block.dropout_mask()
        if keep is not None:
            w *= keep
        o = w @ block.v
        if a.value_table is not None:
            by_row = collect(w, block.pair_rows(a.value_table), a.value_table.shape[1])
            o += by_row @ block.of_heads(a.value_table)
        output[block.place] = o.mul_(norm)
    return output, lse, received, weight_norms, weights


def backward(
    a: Arguments,
    needs_bias: bool,
    lse: Tensor,
    d_output: Tensor,
    d_log_sums: Tensor | None,
    d_received: Tensor,
    d_squares: Tensor,
    d_weights: Tensor,
) -> dict[str, Tensor]:
    """The gradient of each differentiable argument, by name; empty where there is none."""
    grads = gradients(a, needs_bias)
    for block in a.blocks():
        x = block.raw_scores()
        p = block.scores(x).sub_(lse[block.place]).exp2_()
        w = block.adjusted_late(p)
        f = block.f
        keep = block.dropout_mask()
        dropped = w if keep is None else w * keep
        do = d_output[block.place]

        block.add_to_key_heads(grads["v"], dropped.mT @ do)
        dw = do @ block.v.mT
        if a.value_table is not None:
            dw += block.from_table(do, a.value_table)
            block.through_table(dropped, a.value_table, do, grads["value_table"])
        if keep is not None:
            dw *= keep
        if a.want_received:
            dw += d_received[block.batch, block.heads, None, block.keys]
        if a.want_squares:
            dw.addcmul_(w, d_squares[block.place][..., None], value=2)
        if a.want_weights:
            dw += d_weights[*block.place, block.keys]

        dp, df = dw, None
        if f is not None and a.adjust == "late-multiply":
            dp, df = dw * f, dw * p
        elif f is not None and a.adjust == "late-add":
            df = dw * block.kept
        ds = torch.ops.aten._softmax_backward_data(dp, p, -1, p.dtype)
        if d_log_sums is not None:
            ds.addcmul_(p, d_log_sums[block.place], value=LOG2E)  # as log-sums are in units of log 2
        if needs_bias:
            into = block.of(grads["bias"])
            into += ds.sum_to_size(into.shape)

        dx = ds
        if f is not None and a.adjust == "early-multiply":
            if a.rectify:
                ds = torch.ops.aten.threshold_backward(ds, x, 0)
            df = x.mul_(ds)
            dx = ds.mul_(f)
        elif f is not None and a.adjust == "early-add":
            df = ds
        if df is not None and a.distance is not None:
            part = diagonal_sums(df.sum(dim=0) if len(df) > 1 else df[0])
            if a.adjust == "early-multiply":
                part /= LOG2E  # as x is in units of log 2
            block.add_to_distance(grads["distance"], part)

        grads["q"][block.place] += (dx @ block.k).mul_(a.scale)
        block.add_to_key_heads(grads["k"], dx.mT @ block.q)
        if a.key_table is not None:
            into = grads["q" if a.relative_q is None else "relative_q"][block.place]
            into += block.through_table(dx, a.key_table, block.relative_q, grads["key_table"]).mul_(a.scale)
    return grads


def outputs(a: Arguments) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    (batch, heads, n, _), m = a.q.shape, a.k.shape[2]
    return (
        a.q.new_zeros(batch, heads, n, a.v.shape[3]),
        a.q.new_zeros(batch, heads, n, 1),
        a.q.new_zeros((batch, heads, m) if a.want_received else (0,)),
        a.q.new_zeros((batch, heads, n) if a.want_squares else (0,)),
        a.q.new_zeros((batch, heads, n, m) if a.want_weights else (0,)),
    )


def gradients(a: Arguments, needs_bias: bool) -> dict[str, Tensor]:
    tensors = {
        "q": a.q,
        "k": a.k,
        "v": a.v,
        "relative_q": a.relative_q,
        "key_table": a.key_table,
        "value_table": a.value_table,
        "distance": a.distance,
        "bias": a.bias if needs_bias else None,
    }
    return {name: a.q.new_zeros(0 if x is None else x.shape) for name, x in tensors.items()}
