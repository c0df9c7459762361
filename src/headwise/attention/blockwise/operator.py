"""The blockwise backend as PyTorch operators.

Both passes are custom operators, so `torch.compile` and `torch.export` see one node each, whatever the length, and
`torch.func.vmap` runs them once a model. The autograd function around them is what `torch.func` can differentiate.
"""

from typing import Any

import torch
from torch import Tensor

from headwise.attention.blockwise import passes
from headwise.attention.blockwise.block import Arguments
from headwise.attention.operators import once_a_model, run_once
from headwise.attention.problem import Attended, Problem

TENSORS, DIFFERENTIABLE = 12, 8  # of the arguments, the first so many
ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? relative_q, Tensor? key_table, Tensor? value_table, Tensor? distance, "
    "Tensor? bias, Tensor? mask, Tensor? key_padding, Tensor? query_padding, Tensor? seed, float scale, "
    "SymInt offset, bool causal, SymInt first, bool covers, str adjust, bool rectify, float dropout, "
    "bool want_received, bool want_weights"
)


def attend(problem: Problem) -> Attended:
    terms, dtype = problem.terms, problem.compute_dtype
    learned = (terms.q, terms.k, problem.v, terms.relative_q, terms.key_table, terms.value_table, terms.distance)
    # Views, since the compiler refuses a function that is given one tensor twice, as in attend(x, x, x).
    output, _, received, weights = _Forward.apply(
        *(None if x is None else x.to(dtype).view_as(x) for x in (*learned, problem.bias)),
        problem.mask,
        problem.key_padding,
        problem.query_padding,
        torch.randint(2**62, ()) if problem.dropout > 0 else None,
        problem.scale,
        problem.offset,
        problem.causal,
        terms.first,
        terms.covers,
        terms.adjust,
        terms.rectify,
        problem.dropout,
        problem.want_received,
        problem.want_weights,
    )
    return Attended(
        output.to(problem.out_dtype),
        received if problem.want_received else None,
        weights if problem.want_weights else None,
    )


class _Forward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        return tuple(forward_operator(*arguments))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        log_sums = output[1]
        ctx.mark_non_differentiable(log_sums)
        ctx.save_for_backward(*inputs[:TENSORS], log_sums)
        ctx.settings = inputs[TENSORS:]

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, log_sums = ctx.saved_tensors
        d_output, _, d_received, d_weights = d_outputs
        needs_bias = ctx.needs_input_grad[DIFFERENTIABLE - 1]
        arguments = (*tensors, *ctx.settings, needs_bias, log_sums, d_output, d_received, d_weights)
        grads = run_once(backward_operator, *arguments)
        present = (grad if grad.numel() else None for grad in grads)
        return (*present, *[None] * (len(ctx.needs_input_grad) - DIFFERENTIABLE))


def _forward(*arguments: Any) -> tuple[Tensor, ...]:
    with torch.autocast(arguments[0].device.type, enabled=False):
        return passes.forward(Arguments(*arguments))


def _backward(*arguments: Any) -> tuple[Tensor, ...]:
    *forward_arguments, needs_bias, log_sums, d_output, d_received, d_weights = arguments
    a = Arguments(*forward_arguments)
    with torch.autocast(a.q.device.type, enabled=False):
        return tuple(passes.backward(a, needs_bias, log_sums, d_output, d_received, d_weights).values())


forward_operator = torch.library.custom_op(
    "headwise::blockwise", _forward, mutates_args=(), schema=f"({ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)"
)
backward_operator = torch.library.custom_op(
    "headwise::blockwise_backward",
    _backward,
    mutates_args=(),
    schema=f"({ARGUMENTS}, bool needs_bias, Tensor log_sums, Tensor d_output, Tensor d_received, Tensor d_weights) -> "
    f"({', '.join(['Tensor'] * DIFFERENTIABLE)})",
)


@forward_operator.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    return passes.outputs(Arguments(*arguments))


@backward_operator.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    *forward_arguments, needs_bias, _log_sums, _d_output, _d_received, _d_weights = arguments
    return tuple(passes.gradients(Arguments(*forward_arguments), needs_bias).values())


forward_operator.register_vmap(once_a_model(forward_operator))
backward_operator.register_vmap(once_a_model(backward_operator))
