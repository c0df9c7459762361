"""The blockwise backend as PyTorch operators."""

from typing import Any

import torch
from torch import Tensor

from headwise.attention.blockwise import passes
from headwise.attention.blockwise.block import Arguments
from headwise.attention.masking import natural
from headwise.attention.operators import Operators
from headwise.attention.types import AttentionInputs, AttentionOutput

ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? relative_q, Tensor? key_table, Tensor? value_table, Tensor? distance, "
    "Tensor? bias, Tensor? mask, Tensor? key_padding, Tensor? query_padding, Tensor? seed, float scale, "
    "SymInt offset, bool causal, SymInt first, bool covers, str adjust, bool rectify, float dropout, "
    "bool want_received, bool want_squares, bool want_log_sums, bool want_weights"
)


def attend(problem: AttentionInputs) -> AttentionOutput:
    terms, dtype = problem.terms, problem.compute_dtype
    relative_q = None if terms.biases is None else terms.relative_q
    learned = (terms.content_q, terms.k, problem.v, relative_q, terms.key_table, terms.value_table, problem.distance())
    output, lse, received, weight_norms, weights = operators(
        *(None if x is None else x.to(dtype) for x in (*learned, problem.bias)),
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
        problem.want_squares,
        problem.want_log_sums,
        problem.want_weights,
    )
    return AttentionOutput(
        output.to(problem.out_dtype),
        received=received if problem.want_received else None,
        weight_norms=weight_norms if problem.want_squares else None,
        lse=natural(lse[..., 0]) if problem.want_log_sums else None,
        weights=weights if problem.want_weights else None,
    )


def _forward(*arguments: Any) -> tuple[Tensor, ...]:
    with torch.autocast(arguments[0].device.type, enabled=False):
        return passes.forward(Arguments(*arguments))


def _backward(*arguments: Any) -> tuple[Tensor, ...]:
    *forward_arguments, needs_bias, lse, d_output, d_log_sums, d_received, d_squares, d_weights = arguments
    a = Arguments(*forward_arguments)
    with torch.autocast(a.q.device.type, enabled=False):
        grads = passes.backward(a, needs_bias, lse, d_output, d_log_sums, d_received, d_squares, d_weights)
        return tuple(grads.values())


def _fake_backward(*arguments: Any) -> tuple[Tensor, ...]:
    *forward_arguments, needs_bias, _log_sums, _d_output, _d_log_sums, _d_received, _d_squares, _d_weights = arguments
    return tuple(passes.gradients(Arguments(*forward_arguments), needs_bias).values())


operators = Operators(
    "blockwise",
    ARGUMENTS,
    tensors=12,
    differentiable=8,
    outputs=5,
    saved=(1,),
    forward=_forward,
    backward=_backward,
    fake_forward=lambda *arguments: passes.outputs(Arguments(*arguments)),
    fake_backward=_fake_backward,
)
