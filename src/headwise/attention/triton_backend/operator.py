"""The Triton backend as PyTorch operators."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headwise.attention.masking import natural_lse
from headwise.attention.operators import Operators
from headwise.attention.triton_backend import query_chunks
from headwise.attention.triton_backend.biases import add_terms
from headwise.attention.triton_backend.launch import Launch, on_device
from headwise.attention.triton_backend.plan import Plan, edges, in_rows, kernels, laid, plan_of, strides, surrounded
from headwise.attention.types import AttentionInputs, AttentionOutput

ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? w, Tensor? sharpness, Tensor? relative, Tensor? biases, "
    "Tensor? table, Tensor? bias, Tensor? mask, Tensor? key_padding, Tensor? query_padding, Tensor? starts, "
    "Tensor? ends, Tensor? seed, float scale, SymInt offset, bool causal, bool rectify, SymInt reach, bool want_bins, "
    "float dropout, bool want_received, bool want_squares"
)
GIVEN = 24  # arguments
WIDEST = 256
MOST = 65_535  # CUDA's limit for all but the first number of a grid


@cache
def _lacking(device: torch.device) -> str | None:
    """What the kernels lack on this machine; Triton's interpreter (TRITON_INTERPRET=1) runs them on any."""
    if kernels() is None:
        return "the package triton is not installed"
    if type(kernels()["forward"]).__name__ == "InterpretedFunction":
        return None
    if device.type != "cuda":
        return f"Triton's kernels run on a GPU, and the tensors are on {device}"
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0):
        return "Triton's kernels need a GPU of compute capability 8.0 or newer"
    return None


def missing(device: torch.device) -> str | None:
    return _lacking(device)


# So that the compiler does not trace it: what torch.compiler.assume_constant_result does, without the seconds that it
# takes to import the compiler.
missing._dynamo_marked_constant = True  # type: ignore[attr-defined]


def why_unsupported(problem: AttentionInputs) -> str | None:
    """Why the kernels cannot solve this problem, or None if they can."""
    terms = problem.terms
    lacking: str | None = missing(problem.v.device)
    if lacking is not None:
        return lacking
    if problem.out_dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"Triton's kernels compute in float32, float16 and bfloat16, not in {problem.out_dtype}"
    if terms.coefficients is not None and (terms.sigmoid is None or terms.adjust != "early-multiply"):
        return "of distance-aware attention there is a kernel for the learnable sigmoid that multiplies early"
    if terms.coefficients is not None and _tables(problem):
        return "there is no kernel for tables and distance together"
    if terms.is_full_table and problem.cu_seqlens is not None:
        return "there is no kernel for cu_seqlens texts and a table with a row for every relative position"
    if terms.is_full_table and terms.value_table is not None:
        return "there is no kernel for a values' table with a row for every relative position"
    if not terms.is_full_table and any(2 * terms.table_start + table.shape[1] != 1 for table in _tables(problem)):
        return "the kernels' tables reach as far forward as back"
    if problem.want_weights:
        return "whole maps are what the kernels avoid"
    if max(problem.shape[:2]) > MOST:
        return f"the kernels take at most {MOST:,} texts of at most {MOST:,} heads at a time"
    if max(terms.q.shape[3], problem.v.shape[3]) > WIDEST:
        return f"the kernels' heads are at most {WIDEST} wide"
    return None


def _tables(problem: AttentionInputs) -> list[Tensor]:
    return [table for table in (problem.terms.key_table, problem.terms.value_table) if table is not None]


def attend(problem: AttentionInputs) -> AttentionOutput:
    terms, dtype = problem.terms, problem.out_dtype
    q = (terms.q if terms.is_full_table else terms.content_q).to(dtype)
    relative = biases = table = None
    if terms.key_table is not None and terms.is_full_table:
        _, heads, n, m = problem.shape
        start = 1 - n - problem.offset - terms.table_start  # of the rows that the table must have
        rows = terms.key_table[:, start : start + n + m - 1] if n + m else terms.key_table
        table = surrounded(rows.to(dtype).expand(heads, -1, -1))
        biases = q.new_zeros(2, *q.shape[1::2], dtype=torch.float32) if terms.biases is None else terms.biases
    elif terms.key_table is not None:
        relative = terms.relative_q.to(dtype) @ terms.key_table.to(dtype).mT
    starts, ends = (None, None) if problem.cu_seqlens is None else spans(problem.cu_seqlens, problem.shape[2])
    output, lse, received, bins, weight_norms = operators(
        q,
        terms.k.to(dtype),
        problem.v.to(dtype),
        *((None, None) if terms.sigmoid is None else (x.float() for x in terms.sigmoid)),
        relative,
        None if biases is None else biases.float(),
        table,
        problem.bias,
        problem.mask,
        problem.key_padding,
        problem.query_padding,
        starts,
        ends,
        torch.randint(2**31 - 1, (), device=problem.v.device) if problem.dropout > 0 else None,
        problem.scale,
        problem.offset,
        problem.causal,
        terms.rectify,
        0 if terms.is_full_table else -terms.table_start,
        terms.value_table is not None,
        problem.dropout,
        problem.want_received,
        problem.want_weight_norms,
    )
    if terms.value_table is not None:
        output = output + bins @ terms.value_table.to(dtype)
    return AttentionOutput(
        output,
        received=received if problem.want_received else None,
        weight_norms=weight_norms if problem.want_weight_norms else None,
        lse=natural_lse(lse) if problem.want_lse else None,
    )


def spans(cu_seqlens: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """For every token, where its text starts and ends, from cumulative lengths."""
    cu_seqlens = cu_seqlens.int().clamp(0, length)
    text = torch.searchsorted(cu_seqlens[1:].contiguous(), torch.arange(length, device=cu_seqlens.device), right=True)
    text = text.clamp(max=len(cu_seqlens) - 2)
    return cu_seqlens[text], cu_seqlens[text + 1]


def _forward(*arguments: Any) -> tuple[Tensor | None, ...]:
    plan = plan_of(*arguments)
    arguments = plan.together(arguments)
    q: Tensor = arguments[0]
    output, lse, received, bins, weight_norms = results = plan.outputs(q)
    if not lse.numel() or not plan.m:
        for x in results:
            if x is not None:
                x.fill_(torch.inf if x is lse else 0.0)  # as of rows without a key
        return results
    outputs = {"o_ptr": output, "lse_ptr": lse, "squares_ptr": weight_norms, "received_ptr": received, "bins_ptr": bins}
    tensors = plan.tensors(arguments, **outputs)
    run = plan.launches(_forward_launches)
    with on_device(q):
        if plan.table is not None and plan.want_received:
            add_terms(plan, tensors)
        if plan.skips:
            blocks = plan.key_blocks + 1
            tensors["sums_ptr"] = lse.new_zeros(plan.batch, plan.groups, blocks, plan.value_width + 1)
            run["block_sums"](tensors)
            run["running_sums"](tensors)
        run["forward"](tensors)
        if plan.want_received:
            run["column_sums"](tensors)
    return results


def _forward_launches(plan: Plan) -> dict[str, Launch]:
    return {
        "block_sums": plan.launch("block_sums", "forward", plan.groups, per_key=True),
        "running_sums": plan.launch("running_sums", "forward", plan.groups, blocks=plan.key_blocks),
        "forward": plan.launch("forward", "forward", plan.heads),
        "column_sums": plan.launch("column_sums", "sums", plan.heads, per_key=True),
    }


def _backward(*arguments: Any) -> Sequence[Tensor | None]:
    given, (needs_bias, *others) = arguments[:GIVEN], arguments[GIVEN:]
    output, lse, bins, weight_norms, d_output, d_log_sums, d_received, d_bins, d_squares = others
    plan = plan_of(*given)  # not the forward pass's: hooks on saved tensors may have laid them out anew
    given = plan.together(given)
    q: Tensor = given[0]
    dq, dk, dv, _, _, d_relative, _, d_table, d_bias = grads = plan.gradients(q, needs_bias)
    if not lse.numel() or not plan.m:
        if plan.w is not None:
            grads[3:5] = [lse.new_zeros(plan.heads) for _ in range(2)]
        if plan.biases is not None:
            grads[6] = lse.new_zeros(plan.biases.shape)
        return [None if grad is None else grad.zero_() for grad in grads]
    d_output = d_output if in_rows(d_output) else d_output.contiguous()
    output, lse = laid(output, *plan.lying["o"]), lse.contiguous()
    whole_bias = None if plan.table is not None else d_bias
    if whole_bias is not None and whole_bias.shape[2:] != (plan.n, plan.m):
        whole_bias = whole_bias.new_empty(*whole_bias.shape[:2], plan.n, plan.m)
    shared = whole_bias is not None and whole_bias.shape != (*plan.rows, plan.m)
    shares = None if plan.w is None else lse.new_empty(2, *plan.rows[:2], plan.query_blocks)
    tensors = plan.tensors(
        given,
        o_ptr=output,
        lse_ptr=lse,
        d_lse_ptr=None if d_log_sums is None else d_log_sums.contiguous(),
        squares_ptr=weight_norms.contiguous() if plan.want_squares else None,
        d_squares_ptr=d_squares.contiguous() if plan.want_squares else None,
        bins_ptr=bins.contiguous() if plan.want_bins else None,
        do_ptr=d_output,
        g_ptr=d_received.contiguous() if plan.want_received else None,
        d_bins_ptr=d_bins.contiguous() if plan.want_bins else None,
        d_edges_ptr=edges(d_bins) if plan.want_bins else None,
        delta_ptr=None if plan.alone else torch.empty_like(lse),
        shares_ptr=shares,
        dq_ptr=dq,
        dk_ptr=dk,
        dv_ptr=dv,
        d_relative_ptr=d_relative,
        d_bias_ptr=whole_bias,
        d_pairs_ptr=whole_bias,
    )
    run = plan.launches(_backward_launches, d_output, whole_bias, shared, d_log_sums is not None)
    with on_device(q):
        if plan.table is not None:
            add_terms(plan, tensors)
        if plan.skips:
            blocks = plan.query_blocks + 1
            tensors["sums_ptr"] = lse.new_zeros(plan.batch, plan.heads, blocks, plan.value_width + 1)
        if plan.want_received and not plan.alone:
            run["received_terms"](tensors)
        if d_table is not None:
            grads[6] = query_chunks.gradients(plan, tensors, d_table, d_bias, d_log_sums is not None)
        elif not plan.alone:
            run["query_gradients"](tensors)
        if plan.skips:
            run["running_sums"](tensors)
        run["key_gradients"](tensors)
        if shared:
            run["bias_gradients"](tensors)
    if shares is not None:
        grads[3:5] = shares.sum((1, 3)).unbind()
    if whole_bias is not None and d_bias is not None and whole_bias is not d_bias:
        d_bias.copy_(whole_bias.sum_to_size(d_bias.shape))
    return grads


def _backward_launches(
    plan: Plan, d_output: Tensor, d_bias: Tensor | None, shared: bool, d_log_sums: bool
) -> dict[str, Launch]:
    d_pairs = d_bias is not None and not shared
    more: dict[str, Any] = {"d_log_sums": d_log_sums, **strides("do", "bhn", d_output)}
    of_pairs = strides("d_pairs", "bhn", d_bias if d_pairs else None)
    found = {
        "received_terms": plan.launch("received_terms", "sums", plan.heads, **more),
        "query_gradients": plan.launch("query_gradients", "queries", plan.heads, d_pairs=d_pairs, **more, **of_pairs),
        "running_sums": plan.launch("running_sums", "queries", plan.heads, blocks=plan.query_blocks),
        "key_gradients": plan.launch("key_gradients", "keys", plan.groups, per_key=True, **more),
    }
    if d_bias is not None and shared:
        of_bias: dict[str, Any] = {"BIAS_B": d_bias.shape[0], "BIAS_H": d_bias.shape[1]}
        programs = d_bias.shape[0] * d_bias.shape[1]
        found["bias_gradients"] = plan.launch("bias_gradients", "bias", programs, **more, **of_bias)
    return found


def _fake_backward(*arguments: Any) -> Sequence[Tensor | None]:
    plan = Plan(*arguments[:GIVEN])
    grads = plan.gradients(arguments[0], arguments[GIVEN])
    if plan.w is not None:
        grads[3:5] = [torch.empty_like(plan.w) for _ in range(2)]
    if plan.biases is not None:
        grads[6] = plan.biases.new_empty(plan.biases.shape)
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
