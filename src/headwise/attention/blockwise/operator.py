"""The blockwise backend as PyTorch operators."""

from typing import Any

import torch
from torch import Tensor

from headwise.attention.blockwise import passes
from headwise.attention.blockwise.block import OperatorArguments
from headwise.attention.masking import natural_lse
from headwise.attention.operators import Operators
from headwise.attention.types import AttentionInputs, AttentionOutput

SCHEMA = (
    "Tensor q, Tensor k, Tensor v, Tensor? relative_q, Tensor? key_table, Tensor? query_table, Tensor? value_table, "
    "Tensor? relative_bias, Tensor? coefficients, Tensor? bias, Tensor? sinks, Tensor? mask, Tensor? key_padding, "
    "Tensor? query_padding, Tensor? cu_seqlens, Tensor? cu_seqlens_k, Tensor? seed, float scale, float softcap, "
    "SymInt offset, bool is_aligned, bool causal, SymInt window_left, SymInt window_right, SymInt table_start, "
    "bool is_full_table, str adjust, bool rectify, float dropout, bool want_received, bool want_weight_norms, "
    "bool want_lse, bool want_weights"
)


def attend(inputs: AttentionInputs) -> AttentionOutput:
    """Compute attention block by block."""
    terms, dtype = inputs.terms, inputs.compute_dtype
    relative_q = None if terms.biases is None else terms.relative_q
    projections = (terms.content_q, terms.k, inputs.v, relative_q)
    tables = (terms.key_table, terms.query_table, terms.value_table, terms.relative_bias)
    differentiable = (*projections, *tables, inputs.distance_coefficients(), inputs.bias, inputs.sinks)
    output, lse, received, weight_norms, weights = operators(
        *(None if x is None else x.to(dtype) for x in differentiable),
        inputs.mask,
        inputs.key_padding,
        inputs.query_padding,
        inputs.cu_seqlens,
        inputs.cu_seqlens_k,
        torch.randint(2**62, ()) if inputs.dropout > 0 else None,
        inputs.scale,
        inputs.softcap or 0.0,
        inputs.offset,
        inputs.is_aligned,
        inputs.causal,
        *((-1, -1) if inputs.window is None else inputs.window),
        terms.table_start,
        terms.is_full_table,
        terms.adjust,
        terms.rectify,
        inputs.dropout,
        inputs.want_received,
        inputs.want_weight_norms,
        inputs.want_lse,
        inputs.want_weights,
    )
    return AttentionOutput(
        output.to(inputs.out_dtype),
        received=received if inputs.want_received else None,
        weight_norms=weight_norms if inputs.want_weight_norms else None,
        lse=natural_lse(lse[..., 0]) if inputs.want_lse else None,
        weights=weights if inputs.want_weights else None,
    )


def _forward(*arguments: Any) -> tuple[Tensor, ...]:
    with torch.autocast(arguments[0].device.type, enabled=False):
        return passes.forward(OperatorArguments(*arguments))


def _backward(*arguments: Any) -> tuple[Tensor, ...]:
    *forward_arguments, needs_grad, lse, d_output, d_lse, d_received, d_weight_norms, d_weights = arguments
    a = OperatorArguments(*forward_arguments)
    with torch.autocast(a.q.device.type, enabled=False):
        grads = passes.backward(a, needs_grad, lse, d_output, d_lse, d_received, d_weight_norms, d_weights)
        return tuple(grads.values())


def _fake_forward(*arguments: Any) -> tuple[Tensor, ...]:
    return passes.allocate_outputs(OperatorArguments(*arguments))


def _fake_backward(*arguments: Any) -> tuple[Tensor, ...]:
    *forward_arguments, needs_grad, _lse, _d_output, _d_lse, _d_received, _d_weight_norms, _d_weights = arguments
    return tuple(passes.allocate_gradients(OperatorArguments(*forward_arguments), needs_grad).values())


operators = Operators(
    "blockwise",
    SCHEMA,
    num_tensors=17,
    num_differentiable=11,
    num_outputs=5,
    saved_outputs=(1,),
    forward=_forward,
    backward=_backward,
    fake_forward=_fake_forward,
    fake_backward=_fake_backward,
)
