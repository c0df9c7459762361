"""Forward and backward pass of the Triton backend: buffers and launches.

Legend: B batch, H query heads, N queries, M keys, E width of queries and keys.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.attention.triton_backend import transformer_xl
from headwise.attention.triton_backend.launch import Launch, use_device_of
from headwise.attention.triton_backend.layouts import (
    align,
    edge_columns,
    has_contiguous_rows,
    tensor_strides,
    with_strides,
)
from headwise.attention.triton_backend.plan import Plan, get_plan
from headwise.attention.triton_backend.problem import DIFFERENTIABLE, TENSOR_PARAMS
from headwise.attention.triton_backend.visited_tiles import VisitedTiles

NUM_SCALARS = 12  # arguments of the operators that are not tensors
MASK = TENSOR_PARAMS.index("mask_ptr")  # the index of the mask among these arguments


class StagedTables(NamedTuple):
    """Strides between heads of clipped tables whose products the kernels compute (`staged_tables.py`)."""

    stride_key_table_h: int
    stride_value_table_h: int


def table_arguments(tables: StagedTables | None) -> dict[str, Any]:
    """Return the arguments of a launch for these tables."""
    return dict.fromkeys(StagedTables._fields, 0) if tables is None else {"staged_tables": True, **tables._asdict()}


def forward(*arguments: Any) -> tuple[Tensor | None, ...]:
    """Compute output, lse, received, sums of weights by relative position, and weight norms."""
    return run_forward(get_plan(*arguments), arguments)


def run_forward(plan: Plan, arguments: tuple[Any, ...], *, in_eager_mode: bool = False) -> tuple[Tensor | None, ...]:
    """Run the forward pass of a plan.

    Args:
        plan: the plan.
        arguments: the operators' arguments.
        in_eager_mode: False if a compiled program may contain the call. Nothing is kept then for later calls, because
            memory that a compiled program allocates may belong to a CUDA graph.
    """
    arguments = plan.contiguous_args(arguments)
    q: Tensor = arguments[0]
    output, lse, received, offset_sums, weight_norms = outputs = plan.outputs(q)
    if not lse.numel() or not plan.m:  # no row has a key
        for x in outputs:
            if x is not None:
                x.fill_(torch.inf if x is lse else 0.0)
        return outputs
    tensors = plan.tensors(
        arguments,
        o_ptr=output,
        lse_ptr=lse,
        weight_norms_ptr=weight_norms,
        received_ptr=received,
        offset_sums_ptr=offset_sums,
    )
    visited = VisitedTiles(plan, tensors, arguments[MASK] if in_eager_mode else None)
    run = plan.launches(forward_launches)
    with use_device_of(q):
        if plan.dense_table is not None and plan.want_received:
            transformer_xl.add_bias_products(plan, tensors)
        if plan.sum_far_keys:
            tensors["prefix_sums_ptr"] = lse.new_zeros(plan.key_sums_shape)
            run["value_block_sums"](tensors)
            run["prefix_sums"](tensors)
        visited.set("fwd")
        run["fwd"](tensors)
        if plan.want_received:
            visited.set("received", per_key=True)
            run["received"](tensors)
    return outputs


def forward_launches(plan: Plan, tables: StagedTables | None = None) -> dict[str, Launch]:
    return {
        "value_block_sums": plan.launch("value_block_sums_kernel", "fwd", plan.groups, per_key=True),
        "prefix_sums": plan.launch("prefix_sums_kernel", "fwd", plan.groups, blocks=plan.key_blocks),
        "fwd": plan.launch("fwd_kernel", "fwd", plan.heads, **table_arguments(tables)),
        "received": plan.launch("fwd_received_kernel", "received", plan.heads, per_key=True),
    }


def backward(*arguments: Any) -> Sequence[Tensor | None]:
    """Compute the gradients that are needed, in the order of the differentiable arguments."""
    inputs, needs, others = _split_arguments(arguments)
    plan = get_plan(*inputs)  # not the forward pass's: hooks on saved tensors may have changed the layouts
    return run_backward(plan, inputs, needs, *others)


def run_backward(
    plan: Plan,
    inputs: tuple[Any, ...],
    needs: frozenset[str],
    output: Tensor,
    lse: Tensor,
    offset_sums: Any,
    weight_norms: Any,
    d_output: Tensor,
    d_lse: Tensor | None,
    d_received: Any,
    d_offset_sums: Any,
    d_weight_norms: Any,
    *,
    in_eager_mode: bool = False,
) -> list[Tensor | None]:
    """Run the backward pass of a plan. Gradients of outputs that the plan does not have are not read."""
    inputs = plan.contiguous_args(inputs)
    q: Tensor = inputs[0]
    key_needs = needs & {"k", "v"}
    grads = plan.gradients(q, needs - key_needs)  # those of keys and values come after dz, which takes more memory
    if not lse.numel() or not plan.m:
        grads |= plan.key_gradients(q, key_needs)
        grads |= {
            name: q.new_zeros(x.shape, dtype=torch.float32) for name, x in _partial_sum_arguments(plan, needs).items()
        }
        return [None if grad is None else grad.zero_() for grad in grads.values()]
    d_output = d_output if has_contiguous_rows(d_output) else d_output.contiguous()
    output, lse = with_strides(output, *plan.output_layouts["o"]), lse.contiguous()
    d_bias, d_table = grads["bias"], grads["dense_table"]
    # The bias's gradient without broadcasting along queries and keys.
    full_d_bias = None if plan.dense_table is not None else d_bias
    if full_d_bias is not None and full_d_bias.shape[2:] != (plan.n, plan.m):
        full_d_bias = full_d_bias.new_zeros(*full_d_bias.shape[:2], plan.n, plan.m)
    is_shared_bias = full_d_bias is not None and full_d_bias.shape != (*plan.query_shape, plan.m)
    needs_delta = needs != {"v"}
    needs_dq_kernel = bool(needs - {"k", "v", "query_table", "sinks"} - ({"bias"} if is_shared_bias else set()))
    needs_dq_kernel |= plan.sum_far_keys and "v" in needs
    received_in_dq = plan.received_in_dq and needs_dq_kernel
    if received_in_dq:  # a constant has no effect, and rounding errors grow with the values
        d_received = d_received - d_received.mean(dim=2, keepdim=True)
    needs_distance = not needs.isdisjoint(("w", "sharpness"))
    partials_shape = (2, *plan.query_shape[:2], plan.query_blocks)
    d_distance_partials = lse.new_empty(partials_shape) if needs_distance else None
    # One row for each query block, and another one for diagonals that two tiles of a block share.
    d_bias_partials_shape = (*partials_shape, 2 * plan.max_offset + 1)
    d_relative_bias_partials = lse.new_zeros(d_bias_partials_shape) if "relative_bias" in needs else None
    delta = torch.empty_like(lse) if needs_delta and not plan.single_tile_backward else None
    dq = grads["q"]
    if dq is None and plan.dense_table is not None and needs_dq_kernel:  # the kernels add to it
        dq = q.new_empty_strided(*plan.output_layouts["dq"])
    needs_key_chunks = plan.query_table is not None and not needs.isdisjoint(("k", "query_table"))
    tensors = plan.tensors(
        inputs,
        o_ptr=output,
        lse_ptr=lse,
        d_lse_ptr=None if d_lse is None else align(d_lse),
        weight_norms_ptr=weight_norms.contiguous() if plan.want_weight_norms else None,
        d_weight_norms_ptr=align(d_weight_norms) if plan.want_weight_norms else None,
        offset_sums_ptr=offset_sums.contiguous() if plan.want_offset_sums else None,
        do_ptr=d_output,
        d_received_ptr=align(d_received) if plan.want_received else None,
        d_offset_sums_ptr=d_offset_sums.contiguous() if plan.want_offset_sums else None,
        d_edge_sums_ptr=edge_columns(d_offset_sums, plan.max_offset) if plan.want_offset_sums else None,
        delta_ptr=delta,
        d_distance_partials_ptr=d_distance_partials,
        d_relative_bias_partials_ptr=d_relative_bias_partials,
        dq_ptr=dq,
        d_position_q_ptr=grads["position_q"],
        d_relative_scores_ptr=grads["relative_scores"],
        d_bias_ptr=full_d_bias,
        d_scores_ptr=full_d_bias,
    )
    visited = VisitedTiles(plan, tensors, inputs[MASK] if in_eager_mode else None)
    run = plan.launches(backward_launches, d_output, full_d_bias, is_shared_bias, d_lse is not None, needs)
    with use_device_of(q):
        if plan.dense_table is not None:
            transformer_xl.add_bias_products(plan, tensors)
        if plan.sum_far_keys:
            tensors["prefix_sums_ptr"] = lse.new_zeros(plan.query_sums_shape)
        if delta is not None and (not needs_dq_kernel or (plan.want_received and not received_in_dq)):
            visited.set("received")
            run["received"](tensors)
        if needs_dq_kernel and plan.dense_table is not None:
            visited.set("dq")
            grads["bias_uv"] = transformer_xl.compute_gradients(plan, tensors, d_table, d_bias, d_lse is not None)
        elif needs_dq_kernel and not plan.single_tile_backward:
            visited.set("dq")
            run["dq"](tensors)
        if plan.sum_far_keys:
            run["prefix_sums"](tensors)
        key_grads = plan.key_gradients(q, key_needs | ({"k"} if needs_key_chunks else set()))
        tensors |= {"dk_ptr": key_grads.get("k"), "dv_ptr": key_grads.get("v")}
        grads |= {name: key_grads[name] for name in key_needs}
        if needs_key_chunks:
            visited.set("dkv", per_key=True)
            transformer_xl.compute_key_gradients(plan, tensors, grads["query_table"], d_lse is not None, needs)
        elif plan.single_tile_backward or not needs.isdisjoint(("k", "v")):
            visited.set("dkv", per_key=True)
            run["dkv"](tensors)
        if is_shared_bias:
            run["dbias"](tensors)
    if d_distance_partials is not None:
        grads["w"], d_sharpness = d_distance_partials.sum((1, 3)).unbind()
        grads["sharpness"] = d_sharpness if plan.has_distance else None
    if d_relative_bias_partials is not None:
        grads["relative_bias"] = d_relative_bias_partials.sum((0, 1, 3))
    if full_d_bias is not None and d_bias is not None and full_d_bias is not d_bias:
        d_bias.copy_(full_d_bias.sum_to_size(d_bias.shape))
    if "sinks" in needs and delta is not None:
        sinks = inputs[DIFFERENTIABLE.index("sinks")][:, None] * math.log2(math.e)
        grads["sinks"] = -(torch.exp2(sinks - lse) * delta).sum((0, 2))
    return list(grads.values())


def _split_arguments(arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], frozenset[str], tuple[Any, ...]]:
    """Return the forward pass's arguments, the names of those whose gradients are needed, and the other arguments."""
    num_inputs = len(TENSOR_PARAMS) + NUM_SCALARS
    inputs, needs_grad = arguments[:num_inputs], arguments[num_inputs]
    pairs = zip(DIFFERENTIABLE, inputs, needs_grad, strict=False)
    needs = frozenset(name for name, x, is_needed in pairs if is_needed and x is not None)
    return inputs, needs, arguments[num_inputs + 1 :]


def _partial_sum_arguments(plan: Plan, needs: frozenset[str]) -> dict[str, Tensor]:
    """Return the arguments whose gradients are sums of partial sums, if these are needed."""
    tensors = {
        "w": plan.w,
        "sharpness": plan.w,
        "bias_uv": plan.bias_uv,
        "relative_bias": plan.relative_bias,
        "sinks": plan.sinks,
    }
    return {name: x for name, x in tensors.items() if name in needs and x is not None}


def backward_launches(
    plan: Plan,
    d_output: Tensor,
    d_bias: Tensor | None,
    is_shared_bias: bool,
    has_d_lse: bool,
    needs: frozenset[str],
    sums_in_output: bool = False,
    tables: StagedTables | None = None,
) -> dict[str, Launch]:
    store_d_scores = "after-softcap" if d_bias is not None and not is_shared_bias else ""
    flags: dict[str, Any] = {"has_d_lse": has_d_lse, "needs": needs, "sums_in_output": sums_in_output}
    common: dict[str, Any] = {**flags, **tensor_strides("do", "bhn", d_output), **table_arguments(tables)}
    d_scores_strides = tensor_strides("d_scores", "bhn", d_bias if store_d_scores else None)
    launches = {
        "received": plan.launch("bwd_received_kernel", "received", plan.heads, **common),
        "dq": plan.launch(
            "bwd_dq_kernel", "dq", plan.heads, store_d_scores=store_d_scores, **common, **d_scores_strides
        ),
        "prefix_sums": plan.launch("prefix_sums_kernel", "dq", plan.heads, blocks=plan.query_blocks),
        "dkv": plan.launch("bwd_dkv_kernel", "dkv", plan.groups, per_key=True, **common),
    }
    if d_bias is not None and is_shared_bias:
        bias_batch, bias_heads = d_bias.shape[:2]
        launches["dbias"] = plan.launch(
            "bwd_dbias_kernel", "dbias", bias_batch * bias_heads, BIAS_B=bias_batch, BIAS_H=bias_heads, **common
        )
    return launches


def fake_backward(*arguments: Any) -> Sequence[Tensor | None]:
    """Return tensors of the shapes of the gradients, for tracing."""
    inputs, needs, _ = _split_arguments(arguments)
    plan = Plan(*inputs)
    grads = plan.gradients(arguments[0], needs)
    reduced = _partial_sum_arguments(plan, needs)
    if not needs.isdisjoint(("w", "sharpness")):  # both are computed
        names = ("w", "sharpness") if plan.has_distance else ("w",)
        reduced |= {name: plan.w for name in names if plan.w is not None}
    if plan.bias_uv is not None and needs - {"k", "v", "query_table", "sinks"}:
        reduced["bias_uv"] = plan.bias_uv
    grads |= {name: torch.empty_like(x, dtype=torch.float32) for name, x in reduced.items()}
    return list(grads.values())
