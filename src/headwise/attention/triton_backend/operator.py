"""The Triton backend as PyTorch operators.

Legend: B batch, H query heads, N queries, M keys, E width of queries and keys, R rows of a table.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise import _compat
from headwise.attention.masking import natural_lse
from headwise.attention.operators import Operators
from headwise.attention.triton_backend.launch import kernels
from headwise.attention.triton_backend.layouts import padded_rows
from headwise.attention.triton_backend.passes import backward, fake_backward, forward
from headwise.attention.triton_backend.plan import Plan
from headwise.attention.triton_backend.scheme_inputs import SchemeInputs, kernel_terms, named_tensors, scheme_inputs
from headwise.attention.triton_backend.sequence_bounds import (
    align_sequences,
    needs_alignment,
    select_tokens,
    sequence_bounds,
)
from headwise.attention.types import AttentionInputs, AttentionOutput

#: Schema of the operators' arguments. w and sharpness [H] are w and v of the learnable sigmoid; w alone are slopes of
#: ALiBi. relative_scores [B, H, N, R] are the queries' products with a padded clipped table, bias_uv [2, H, E]
#: Transformer-XL's biases, dense_table [H, R, E] its padded table, query_table [H, R, E] one that is multiplied with
#: keys, in the order of i − j, relative_bias [H, R] biases by clipped relative position, position_q [B, H, N, P] and
#: position_k [B or 1, G or 1, M, P] vectors whose products are added, seq_starts and seq_ends [N] the bounds of each
#: token's sequence in a packed batch (see `sequence_bounds`).
ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? w, Tensor? sharpness, Tensor? relative_scores, Tensor? bias_uv, "
    "Tensor? dense_table, Tensor? query_table, Tensor? relative_bias, Tensor? position_q, Tensor? bias, "
    "Tensor? sinks, Tensor? position_k, Tensor? mask, Tensor? key_padding, Tensor? query_padding, "
    "Tensor? seq_starts, Tensor? seq_ends, Tensor? seed, float scale, float softcap, SymInt q_offset, bool causal, "
    "SymInt window_left, SymInt window_right, bool rectify, SymInt max_offset, bool want_offset_sums, float dropout, "
    "bool want_received, bool want_weight_norms"
)
MAX_WIDTH = 256
MAX_GRID_SIZE = 65_535  # CUDA's limit for the second and third axis of a grid


@cache
def _missing_requirement(device: torch.device) -> str | None:
    if kernels() is None:
        return "the package triton is not installed"
    if _compat.is_interpreted(kernels()["fwd_kernel"]):
        return None
    if device.type != "cuda":
        return f"the Triton kernels need a GPU, and the tensors are on {device}"
    if torch.version.hip is None and (capability := torch.cuda.get_device_capability(device)) < (8, 0):
        name, version = torch.cuda.get_device_name(device), ".".join(map(str, capability))
        return f"the Triton kernels need a GPU of compute capability 8.0 or newer, and {name} has {version}"
    return None


@_compat.mark_constant
def missing_requirement(device: torch.device) -> str | None:
    """Return why no kernel can run on this device, or None. Triton's interpreter (TRITON_INTERPRET=1) runs on any."""
    return _missing_requirement(device)


def why_unsupported(inputs: AttentionInputs) -> str | None:
    """Return why the kernels cannot compute this, or None if they can."""
    terms = inputs.terms
    missing: str | None = missing_requirement(inputs.v.device)
    if missing is not None:
        return missing
    if inputs.out_dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"the Triton kernels support float32, float16 and bfloat16, not {inputs.out_dtype}"
    is_sigmoid = terms.sigmoid is not None and terms.adjust == "early-multiply"
    if terms.coefficients is not None and terms.slopes is None and not is_sigmoid:
        return (
            "the Triton kernels compute factors of distances only as slopes or as the mapping learnable-sigmoid with "
            "the adjustment early-multiply"
        )
    if terms.sigmoid is not None and (_tables(inputs) or terms.relative_bias is not None):
        return "the Triton kernels do not support tables together with distance"
    if terms.slopes is not None and _tables(inputs):
        return "the Triton kernels do not support tables together with slopes"
    is_dense = terms.is_full_table or terms.query_table is not None
    if is_dense and _tables(inputs) and terms.relative_bias is not None:
        return "the Triton kernels do not support a relative bias and a table with a row for every relative position"
    if is_dense and terms.value_table is not None:
        return "the Triton kernels do not support a value table with a row for every relative position"
    clipped_tables = [] if is_dense else _tables(inputs)
    if any(2 * terms.table_start + table.shape[1] != 1 for table in clipped_tables):
        return "the Triton kernels need clipped tables that reach as far forward as back"
    if (
        clipped_tables
        and terms.relative_bias is not None
        and terms.relative_bias.shape[1] != clipped_tables[0].shape[1]
    ):
        return "the Triton kernels need clipped tables and a relative bias with equally many rows"
    if inputs.sinks is not None and not inputs.v.shape[2]:
        return "the Triton kernels need at least one key if there are sinks"
    if inputs.want_weights:
        return "the Triton kernels do not return attention weights"
    if max(inputs.shape[:2]) > MAX_GRID_SIZE:
        return f"the Triton kernels support a batch size of at most {MAX_GRID_SIZE:,} and as many heads"
    terms = kernel_terms(terms)
    widths = [x.shape[3] for x in (terms.q, inputs.v, terms.position_q) if x is not None]
    if max(widths) > MAX_WIDTH:
        return f"the Triton kernels support heads of a width of at most {MAX_WIDTH}"
    return None


def _tables(inputs: AttentionInputs) -> list[Tensor]:
    terms = inputs.terms
    return [table for table in (terms.key_table, terms.query_table, terms.value_table) if table is not None]


def attend(inputs: AttentionInputs) -> AttentionOutput:
    """Compute attention with the Triton kernels."""
    if inputs.cu_seqlens_k is not None and needs_alignment(inputs.terms):
        aligned_inputs, query_index, key_index = align_sequences(inputs)
        return select_tokens(attend(aligned_inputs), query_index, key_index)
    terms, dtype = inputs.terms, inputs.out_dtype
    tensors, max_offset = scheme_inputs(terms, inputs.v, dtype, inputs.offset)
    if terms.q.shape[2] == 1 and not torch.compiler.is_compiling():
        from headwise.attention.triton_backend import decoding  # which imports this module

        by_name = named_tensors(inputs, tensors)
        if decoding.can_decode(inputs, by_name):
            call = decoding.DecodeCall(tuple(by_name), scalar_arguments(inputs, max_offset), tuple(by_name.values()))
            output, lse = call.compute(tuple(by_name.values()))
            return AttentionOutput(output, lse=natural_lse(lse) if inputs.want_lse else None)
    seed = torch.randint(2**31 - 1, (), device=inputs.v.device) if inputs.dropout > 0 else None
    relative_q = terms.q if terms.biases is None else terms.relative_q
    output, lse, received, weight_norms = run_operators(
        tensors,
        relative_q.to(dtype),
        inputs.bias,
        None if inputs.sinks is None else inputs.sinks.float().contiguous(),
        inputs.mask,
        inputs.key_padding,
        inputs.query_padding,
        *sequence_bounds(inputs),
        seed,
        *scalar_arguments(inputs, max_offset),
    )
    return AttentionOutput(
        output,
        received=received if inputs.want_received else None,
        weight_norms=weight_norms if inputs.want_weight_norms else None,
        lse=natural_lse(lse) if inputs.want_lse else None,
    )


def scalar_arguments(inputs: AttentionInputs, max_offset: int) -> tuple[Any, ...]:
    """Return the arguments of the operators that are not tensors; see `ARGUMENTS`."""
    return (
        inputs.scale,
        inputs.softcap or 0.0,
        inputs.offset,
        inputs.causal,
        *((-1, -1) if inputs.window is None else inputs.window),
        inputs.terms.rectify,
        max_offset,
        inputs.terms.value_table is not None,
        inputs.dropout,
        inputs.want_received,
        inputs.want_weight_norms,
    )


def run_operators(tensors: SchemeInputs, relative_q: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run the operators and the products with clipped tables, differentiably.

    Args:
        tensors: the tensors of a scheme's terms.
        relative_q: the queries to multiply with a clipped key table.
        arguments: the operators' arguments from the bias on.

    Returns:
        Output, lse in base 2, received and weight norms.
    """
    relative_scores, dtype = None, relative_q.dtype
    if tensors.key_table is not None:
        relative_scores = relative_q @ pad_clipped_table(tensors.key_table.to(dtype)).mT
    output, lse, received, offset_sums, weight_norms = operators(
        *tensors[:5],
        relative_scores,
        tensors.bias_uv,
        tensors.dense_table,
        tensors.query_table,
        tensors.relative_bias,
        tensors.position_q,
        *arguments[:2],
        tensors.position_k,
        *arguments[2:],
    )
    if tensors.value_table is not None:
        output = output + offset_sums @ pad_clipped_table(tensors.value_table.to(dtype))
    return output, lse, received, weight_norms


def pad_clipped_table(table: Tensor) -> Tensor:
    """Add zeros after the rows of a clipped table, so that its products are aligned."""
    num_rows = table.shape[1]
    return pad(table, (0, 0, 0, padded_rows(num_rows // 2) - num_rows))


operators = Operators(
    "triton",
    ARGUMENTS,
    num_tensors=20,
    num_differentiable=13,
    num_outputs=5,
    saved_outputs=(0, 1, 3, 4),
    forward=forward,
    backward=backward,
    fake_forward=lambda *arguments: Plan(*arguments).outputs(arguments[0]),
    fake_backward=fake_backward,
)
