"""The Triton backend as PyTorch operators.

Legend: B batch, H query heads, N queries, M keys, E width of queries and keys, R rows of a table.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headwise.attention.masking import natural_lse
from headwise.attention.operators import Operators, run_backward_operator
from headwise.attention.triton_backend import transformer_xl
from headwise.attention.triton_backend.launch import Launch, on_device
from headwise.attention.triton_backend.layouts import edge_columns, has_contiguous_rows, tensor_strides, with_strides
from headwise.attention.triton_backend.plan import Plan, get_plan, kernels
from headwise.attention.types import AttentionInputs, AttentionOutput

#: Schema of the operators' arguments. relative_scores [B, H, N, R] are the queries' products with a clipped table,
#: bias_uv [2, H, E] Transformer-XL's biases, dense_table [H, R, E] its padded table, seq_starts and seq_ends [N] the
#: bounds of each token's sequence in a packed batch.
ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? w, Tensor? sharpness, Tensor? relative_scores, Tensor? bias_uv, "
    "Tensor? dense_table, Tensor? bias, Tensor? mask, Tensor? key_padding, Tensor? query_padding, Tensor? seq_starts, "
    "Tensor? seq_ends, Tensor? seed, float scale, SymInt q_offset, bool causal, bool rectify, SymInt max_offset, "
    "bool want_offset_sums, float dropout, bool want_received, bool want_weight_norms"
)
NUM_ARGUMENTS = 24
MAX_WIDTH = 256
MAX_GRID_SIZE = 65_535  # CUDA's limit for the second and third axis of a grid


@cache
def _missing_requirement(device: torch.device) -> str | None:
    if kernels() is None:
        return "the package triton is not installed"
    if type(kernels()["fwd_kernel"]).__name__ == "InterpretedFunction":
        return None
    if device.type != "cuda":
        return f"the Triton kernels need a GPU, and the tensors are on {device}"
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0):
        return "the Triton kernels need a GPU of compute capability 8.0 or newer"
    return None


def missing_requirement(device: torch.device) -> str | None:
    """Return why no kernel can run on this device, or None. Triton's interpreter (TRITON_INTERPRET=1) runs on any."""
    return _missing_requirement(device)


# Marks the function as constant for the compiler, like torch.compiler.assume_constant_result, without importing the
# compiler, which takes seconds.
missing_requirement._dynamo_marked_constant = True  # type: ignore[attr-defined]


def why_unsupported(inputs: AttentionInputs) -> str | None:
    """Return why the kernels cannot compute this, or None if they can."""
    terms = inputs.terms
    missing: str | None = missing_requirement(inputs.v.device)
    if missing is not None:
        return missing
    if inputs.out_dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"the Triton kernels support float32, float16 and bfloat16, not {inputs.out_dtype}"
    if terms.coefficients is not None and (terms.sigmoid is None or terms.adjust != "early-multiply"):
        return (
            "the Triton kernels support distance-aware attention only with the mapping learnable-sigmoid and the "
            "adjustment early-multiply"
        )
    if terms.coefficients is not None and _tables(inputs):
        return "the Triton kernels do not support tables together with distance"
    if terms.is_full_table and inputs.cu_seqlens is not None:
        return "the Triton kernels do not support cu_seqlens with a table that has a row for every relative position"
    if terms.is_full_table and terms.value_table is not None:
        return "the Triton kernels do not support a value table with a row for every relative position"
    if not terms.is_full_table and any(2 * terms.table_start + table.shape[1] != 1 for table in _tables(inputs)):
        return "the Triton kernels need clipped tables that reach as far forward as back"
    if inputs.want_weights:
        return "the Triton kernels do not return attention weights"
    if max(inputs.shape[:2]) > MAX_GRID_SIZE:
        return f"the Triton kernels support a batch size of at most {MAX_GRID_SIZE:,} and as many heads"
    if max(terms.q.shape[3], inputs.v.shape[3]) > MAX_WIDTH:
        return f"the Triton kernels support heads of a width of at most {MAX_WIDTH}"
    return None


def _tables(inputs: AttentionInputs) -> list[Tensor]:
    return [table for table in (inputs.terms.key_table, inputs.terms.value_table) if table is not None]


def attend(inputs: AttentionInputs) -> AttentionOutput:
    """Compute attention with the Triton kernels."""
    terms, dtype = inputs.terms, inputs.out_dtype
    q = (terms.q if terms.is_full_table else terms.content_q).to(dtype)
    relative_scores = bias_uv = dense_table = None
    if terms.key_table is not None and terms.is_full_table:
        _, heads, n, m = inputs.shape
        start = 1 - n - inputs.offset - terms.table_start  # the table's first row that a pair needs
        rows = terms.key_table[:, start : start + n + m - 1] if n + m else terms.key_table
        dense_table = transformer_xl.pad_table(rows.to(dtype).expand(heads, -1, -1))
        bias_uv = q.new_zeros(2, *q.shape[1::2], dtype=torch.float32) if terms.biases is None else terms.biases
    elif terms.key_table is not None:
        relative_scores = terms.relative_q.to(dtype) @ terms.key_table.to(dtype).mT
    seq_starts, seq_ends = None, None
    if inputs.cu_seqlens is not None:
        seq_starts, seq_ends = sequence_bounds(inputs.cu_seqlens, inputs.shape[2])
    output, lse, received, offset_sums, weight_norms = operators(
        q,
        terms.k.to(dtype),
        inputs.v.to(dtype),
        *((None, None) if terms.sigmoid is None else (x.float() for x in terms.sigmoid)),
        relative_scores,
        None if bias_uv is None else bias_uv.float(),
        dense_table,
        inputs.bias,
        inputs.mask,
        inputs.key_padding,
        inputs.query_padding,
        seq_starts,
        seq_ends,
        torch.randint(2**31 - 1, (), device=inputs.v.device) if inputs.dropout > 0 else None,
        inputs.scale,
        inputs.offset,
        inputs.causal,
        terms.rectify,
        0 if terms.is_full_table else -terms.table_start,
        terms.value_table is not None,
        inputs.dropout,
        inputs.want_received,
        inputs.want_weight_norms,
    )
    if terms.value_table is not None:
        output = output + offset_sums @ terms.value_table.to(dtype)
    return AttentionOutput(
        output,
        received=received if inputs.want_received else None,
        weight_norms=weight_norms if inputs.want_weight_norms else None,
        lse=natural_lse(lse) if inputs.want_lse else None,
    )


def sequence_bounds(cu_seqlens: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return the start and end of each token's sequence, [length] each, from cumulative lengths."""
    cu_seqlens = cu_seqlens.int().clamp(0, length)
    tokens = torch.arange(length, device=cu_seqlens.device)
    sequence = torch.searchsorted(cu_seqlens[1:].contiguous(), tokens, right=True)
    sequence = sequence.clamp(max=len(cu_seqlens) - 2)
    return cu_seqlens[sequence], cu_seqlens[sequence + 1]


def _forward(*arguments: Any) -> tuple[Tensor | None, ...]:
    plan = get_plan(*arguments)
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
    run = plan.launches(_forward_launches)
    with on_device(q):
        if plan.dense_table is not None and plan.want_received:
            transformer_xl.add_bias_products(plan, tensors)
        if plan.sum_far_keys:
            tensors["prefix_sums_ptr"] = lse.new_zeros(plan.key_sums_shape)
            run["value_block_sums"](tensors)
            run["prefix_sums"](tensors)
        run["fwd"](tensors)
        if plan.want_received:
            run["received"](tensors)
    return outputs


def _forward_launches(plan: Plan) -> dict[str, Launch]:
    return {
        "value_block_sums": plan.launch("value_block_sums_kernel", "fwd", plan.groups, per_key=True),
        "prefix_sums": plan.launch("prefix_sums_kernel", "fwd", plan.groups, blocks=plan.key_blocks),
        "fwd": plan.launch("fwd_kernel", "fwd", plan.heads),
        "received": plan.launch("fwd_received_kernel", "received", plan.heads, per_key=True),
    }


def _backward(*arguments: Any) -> Sequence[Tensor | None]:
    inputs, (needs_bias, *others) = arguments[:NUM_ARGUMENTS], arguments[NUM_ARGUMENTS:]
    output, lse, offset_sums, weight_norms, d_output, d_lse, d_received, d_offset_sums, d_weight_norms = others
    plan = get_plan(*inputs)  # not the forward pass's: hooks on saved tensors may have changed the layouts
    inputs = plan.contiguous_args(inputs)
    q: Tensor = inputs[0]
    dq, dk, dv, _, _, d_relative_scores, _, d_table, d_bias = grads = plan.gradients(q, needs_bias)
    if not lse.numel() or not plan.m:
        if plan.w is not None:
            grads[3:5] = [lse.new_zeros(plan.heads) for _ in range(2)]
        if plan.bias_uv is not None:
            grads[6] = lse.new_zeros(plan.bias_uv.shape)
        return [None if grad is None else grad.zero_() for grad in grads]
    d_output = d_output if has_contiguous_rows(d_output) else d_output.contiguous()
    output, lse = with_strides(output, *plan.output_layouts["o"]), lse.contiguous()
    # The bias's gradient without broadcasting along queries and keys.
    full_d_bias = None if plan.dense_table is not None else d_bias
    if full_d_bias is not None and full_d_bias.shape[2:] != (plan.n, plan.m):
        full_d_bias = full_d_bias.new_empty(*full_d_bias.shape[:2], plan.n, plan.m)
    is_shared_bias = full_d_bias is not None and full_d_bias.shape != (*plan.query_shape, plan.m)
    d_distance_partials = None if plan.w is None else lse.new_empty(2, *plan.query_shape[:2], plan.query_blocks)
    tensors = plan.tensors(
        inputs,
        o_ptr=output,
        lse_ptr=lse,
        d_lse_ptr=None if d_lse is None else d_lse.contiguous(),
        weight_norms_ptr=weight_norms.contiguous() if plan.want_weight_norms else None,
        d_weight_norms_ptr=d_weight_norms.contiguous() if plan.want_weight_norms else None,
        offset_sums_ptr=offset_sums.contiguous() if plan.want_offset_sums else None,
        do_ptr=d_output,
        d_received_ptr=d_received.contiguous() if plan.want_received else None,
        d_offset_sums_ptr=d_offset_sums.contiguous() if plan.want_offset_sums else None,
        d_edge_sums_ptr=edge_columns(d_offset_sums) if plan.want_offset_sums else None,
        delta_ptr=None if plan.single_tile_backward else torch.empty_like(lse),
        d_distance_partials_ptr=d_distance_partials,
        dq_ptr=dq,
        dk_ptr=dk,
        dv_ptr=dv,
        d_relative_scores_ptr=d_relative_scores,
        d_bias_ptr=full_d_bias,
        d_scores_ptr=full_d_bias,
    )
    run = plan.launches(_backward_launches, d_output, full_d_bias, is_shared_bias, d_lse is not None)
    with on_device(q):
        if plan.dense_table is not None:
            transformer_xl.add_bias_products(plan, tensors)
        if plan.sum_far_keys:
            tensors["prefix_sums_ptr"] = lse.new_zeros(plan.query_sums_shape)
        if plan.want_received and not plan.single_tile_backward:
            run["received"](tensors)
        if d_table is not None:
            grads[6] = transformer_xl.compute_gradients(plan, tensors, d_table, d_bias, d_lse is not None)
        elif not plan.single_tile_backward:
            run["dq"](tensors)
        if plan.sum_far_keys:
            run["prefix_sums"](tensors)
        run["dkv"](tensors)
        if is_shared_bias:
            run["dbias"](tensors)
    if d_distance_partials is not None:
        grads[3:5] = d_distance_partials.sum((1, 3)).unbind()
    if full_d_bias is not None and d_bias is not None and full_d_bias is not d_bias:
        d_bias.copy_(full_d_bias.sum_to_size(d_bias.shape))
    return grads


def _backward_launches(
    plan: Plan, d_output: Tensor, d_bias: Tensor | None, is_shared_bias: bool, has_d_lse: bool
) -> dict[str, Launch]:
    store_d_scores = d_bias is not None and not is_shared_bias
    common: dict[str, Any] = {"has_d_lse": has_d_lse, **tensor_strides("do", "bhn", d_output)}
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


def _fake_backward(*arguments: Any) -> Sequence[Tensor | None]:
    plan = Plan(*arguments[:NUM_ARGUMENTS])
    grads = plan.gradients(arguments[0], arguments[NUM_ARGUMENTS])
    if plan.w is not None:
        grads[3:5] = [torch.empty_like(plan.w) for _ in range(2)]
    if plan.bias_uv is not None:
        grads[6] = plan.bias_uv.new_empty(plan.bias_uv.shape)
    return grads


operators = Operators(
    "triton",
    ARGUMENTS,
    num_tensors=15,
    num_differentiable=9,
    num_outputs=5,
    saved_outputs=(0, 1, 3, 4),
    forward=_forward,
    backward=_backward,
    fake_forward=lambda *arguments: Plan(*arguments).outputs(arguments[0]),
    fake_backward=_fake_backward,
)


def compute_gradients(
    plan: Plan, inputs: tuple[Tensor | None, ...], output: Tensor, lse: Tensor, d_output: Tensor
) -> tuple[Tensor | None, ...]:
    """Compute the gradients of q, k, v, w and sharpness of a call without tables, bias, mask and packing.

    Args:
        plan: the call's plan.
        inputs: q, k, v, w, sharpness, key_padding and seed.
        output: the call's output.
        lse: its log-sum-exps.
        d_output: the output's gradient.
    """
    q, k, v, w, sharpness, key_padding, seed = inputs
    tensors = (q, k, v, w, sharpness, None, None, None, None, None, key_padding, None, None, None, seed)
    scalars = (plan.scale, plan.q_offset, plan.causal, plan.rectify, 0, False, plan.dropout, False, False)
    empty = lse.new_empty(0)
    d_outputs = (d_output, torch.zeros_like(lse), empty, empty, empty)
    grads = run_backward_operator(operators.backward, *tensors, *scalars, False, output, lse, empty, empty, *d_outputs)
    return (*grads[:3], *((None, None) if w is None else grads[3:5]))
