"""Forward and backward pass of the blockwise backend.

Names of tensors of one block follow the equations of `types.py`: x, s, p, w, f, o, and dx, ds, … for their gradients.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.attention.blockwise.block import LOG2E, Block, OperatorArguments
from headwise.attention.diagonals import diagonal_sums

#: With a larger lse, whose rounding error in float32 is 3e-5 or more, weights are normalized in the backward pass.
MAX_LSE = 1000.0


class ForwardOutputs(NamedTuple):
    """Results of the forward pass; received, weight_norms and weights are empty if they were not requested."""

    output: Tensor  # (B, H, N, D)
    lse: Tensor  # (B, H, N, 1), in base 2, +∞ for rows without any key
    received: Tensor  # (B, H, M)
    weight_norms: Tensor  # (B, H, N)
    weights: Tensor  # (B, H, N, M)


def forward(a: OperatorArguments) -> ForwardOutputs:
    """Compute the outputs block by block."""
    output, lse, received, weight_norms, weights = outputs = allocate_outputs(a)
    for block in a.blocks():
        w, norm, lse[block.rows] = block.softmax_parts(block.masked_scores(block.raw_scores()))
        if a.coefficients is not None and a.adjust.startswith("late"):
            w, norm = block.adjust_late(w.mul_(norm)), torch.ones_like(norm)
        if a.want_received:
            received[block.batch, block.heads, block.keys] += (norm.mT @ w)[..., 0, :]
        if a.want_weight_norms:
            weight_norms[block.rows] = (torch.linalg.vector_norm(w, dim=-1) * norm[..., 0]).square_()
        if a.want_weights:
            weights[*block.rows, block.keys] = w * norm
        dropout_mask = block.draw_dropout_mask()
        if dropout_mask is not None:
            w *= dropout_mask
        o = w @ block.v
        if a.value_table is not None:
            o += block.multiply_table_backward(block.sum_by_table_row(w, a.value_table), a.value_table)
        output[block.rows] = o.mul_(norm)
    return outputs


def backward(
    a: OperatorArguments,
    needs_grad: Sequence[bool],
    lse: Tensor,
    d_output: Tensor,
    d_lse: Tensor | None,
    d_received: Tensor,
    d_weight_norms: Tensor,
    d_weights: Tensor,
) -> dict[str, Tensor]:
    """Compute the gradients that are needed, by argument name; the others are empty."""
    grads = allocate_gradients(a, needs_grad)
    needs = {name for name, is_needed in zip(grads, needs_grad, strict=True) if is_needed}
    is_rounded = bool(((lse.abs() > MAX_LSE) & lse.isfinite()).any())
    for block in a.blocks():
        x = block.raw_scores()
        p = block.masked_scores(x).sub_(lse[block.rows]).exp2_()
        if is_rounded:
            p = block.normalize(p, lse[block.rows])
        w = block.adjust_late(p)
        dropout_mask = block.draw_dropout_mask()
        dropped = w if dropout_mask is None else w * dropout_mask
        do = d_output[block.rows]
        if "v" in needs:
            block.add_key_grad(grads["v"], dropped.mT @ do)
        if a.value_table is not None and "value_table" in needs:
            sums = block.sum_by_table_row(dropped, a.value_table)
            block.add_table_grad(sums, do, a.value_table, grads["value_table"])
        if not needs - {"v", "value_table"}:
            continue

        dw = do @ block.v.mT
        if a.value_table is not None:
            dw += block.multiply_table(do, a.value_table)
        if dropout_mask is not None:
            dw *= dropout_mask
        if a.want_received:
            dw += d_received[block.batch, block.heads, None, block.keys]
        if a.want_weight_norms:
            dw.addcmul_(w, d_weight_norms[block.rows][..., None], value=2)
        if a.want_weights:
            dw += d_weights[*block.rows, block.keys]
        ds = _score_gradients(a, block, grads, needs, lse, p, dw, d_lse)
        if "bias" in needs:
            bias_grad = block.slice_map(grads["bias"])
            bias_grad += ds.sum_to_size(bias_grad.shape)
        _input_gradients(a, block, grads, needs, x, ds)
    return grads


def _score_gradients(
    a: OperatorArguments,
    block: Block,
    grads: dict[str, Tensor],
    needs: set[str],
    lse: Tensor,
    p: Tensor,
    dw: Tensor,
    d_lse: Tensor | None,
) -> Tensor:
    """Return ds, the gradient of the scores including their bias; add the gradients of late coefficients and sinks."""
    dp, f = dw, block.f
    if f is not None and a.adjust == "late-multiply":
        dp = dw * f
        _add_coefficient_grad(block, grads, needs, dw * p)
    elif f is not None and a.adjust == "late-add":
        _add_coefficient_grad(block, grads, needs, dw * block.unmasked)
    sinks = block.sink_scores() if "sinks" in needs else None
    if sinks is not None:
        delta = (p * dp).sum(dim=-1, keepdim=True)
        if d_lse is not None:
            delta -= d_lse[block.rows] * LOG2E
        grads["sinks"][block.heads] -= ((sinks - lse[block.rows]).exp2() * delta).sum(dim=(0, 2, 3))
    ds = torch.ops.aten._softmax_backward_data(dp, p, -1, p.dtype)
    if d_lse is not None:
        ds.addcmul_(p, d_lse[block.rows], value=LOG2E)  # lse is in base 2
    return ds  # type: ignore[no-any-return]


def _input_gradients(
    a: OperatorArguments, block: Block, grads: dict[str, Tensor], needs: set[str], x: Tensor, ds: Tensor
) -> None:
    """Add the gradients of everything that the scores are computed from, given ds. Overwrites x and ds."""
    f = block.f
    if a.softcap:
        ds = ds * (1 - block.tanh.square())
    if "relative_bias" in needs:
        block.add_relative_bias_grad(grads["relative_bias"], diagonal_sums(ds.sum(dim=0)))
    dx = ds
    if f is not None and a.adjust == "early-multiply":
        if a.rectify:
            ds = torch.ops.aten.threshold_backward(ds, x, 0)
        _add_coefficient_grad(block, grads, needs, x.mul_(ds), scale=1 / LOG2E)  # x is in base 2
        dx = ds.mul_(f)
    elif f is not None and a.adjust == "early-add":
        _add_coefficient_grad(block, grads, needs, ds)
    if "q" in needs:
        grads["q"][block.rows] += (dx @ block.k).mul_(a.scale)
    if "k" in needs:
        block.add_key_grad(grads["k"], dx.mT @ block.q)
    relative_q = "q" if a.relative_q is None else "relative_q"
    if a.key_table is not None and not needs.isdisjoint(("key_table", relative_q)):
        sums = block.sum_by_table_row(dx, a.key_table)
        if "key_table" in needs:
            block.add_table_grad(sums, block.relative_q, a.key_table, grads["key_table"])
        if relative_q in needs:
            relative_q_grad = grads[relative_q][block.rows]
            relative_q_grad += block.multiply_table_backward(sums, a.key_table).mul_(a.scale)
    if a.query_table is not None:
        d_k, d_table = (grads[name] if name in needs else None for name in ("k", "query_table"))
        block.add_query_table_grads(dx, a.query_table, d_k, d_table)


def _add_coefficient_grad(
    block: Block, grads: dict[str, Tensor], needs: set[str], df: Tensor, *, scale: float = 1.0
) -> None:
    """Add the gradients of each pair's coefficient, times a factor."""
    if "coefficients" in needs:
        df_by_diagonal = diagonal_sums(df.sum(dim=0) if len(df) > 1 else df[0])
        block.add_coefficient_grad(grads["coefficients"], df_by_diagonal * scale)


def allocate_outputs(a: OperatorArguments) -> ForwardOutputs:
    """Return zeros of the shapes of the outputs."""
    (batch, heads, n, _), m = a.q.shape, a.k.shape[2]
    return ForwardOutputs(
        output=a.q.new_zeros(batch, heads, n, a.v.shape[3]),
        lse=a.q.new_zeros(batch, heads, n, 1),
        received=a.q.new_zeros((batch, heads, m) if a.want_received else (0,)),
        weight_norms=a.q.new_zeros((batch, heads, n) if a.want_weight_norms else (0,)),
        weights=a.q.new_zeros((batch, heads, n, m) if a.want_weights else (0,)),
    )


def allocate_gradients(a: OperatorArguments, needs_grad: Sequence[bool]) -> dict[str, Tensor]:
    """Return zeros of the shapes of the arguments that need a gradient, in the order of all differentiable ones."""
    tensors = {
        "q": a.q,
        "k": a.k,
        "v": a.v,
        "relative_q": a.relative_q,
        "key_table": a.key_table,
        "query_table": a.query_table,
        "value_table": a.value_table,
        "relative_bias": a.relative_bias,
        "coefficients": a.coefficients,
        "bias": a.bias,
        "sinks": a.sinks,
    }
    return {
        name: a.q.new_zeros(0 if x is None or not is_needed else x.shape)
        for (name, x), is_needed in zip(tensors.items(), needs_grad, strict=True)
    }
