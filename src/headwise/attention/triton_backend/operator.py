"""The Triton backend as PyTorch operators.

Legend: B batch, H query heads, N queries, M keys, E width of queries and keys, R rows of a table.
"""

from functools import cache

import torch
from torch import Tensor

from headwise import _compat
from headwise.attention.masking import natural_lse
from headwise.attention.operators import Operators
from headwise.attention.triton_backend import transformer_xl
from headwise.attention.triton_backend.launch import kernels
from headwise.attention.triton_backend.passes import backward, fake_backward, forward
from headwise.attention.triton_backend.plan import Plan
from headwise.attention.types import AttentionInputs, AttentionOutput, SchemeTerms

#: Schema of the operators' arguments. w and sharpness [H] are w and v of the learnable sigmoid; w alone are slopes of
#: ALiBi. relative_scores [B, H, N, R] are the queries' products with a clipped table,
#: bias_uv [2, H, E] Transformer-XL's biases, dense_table [H, R, E] its padded table, seq_starts and seq_ends [N] the
#: bounds of each token's sequence in a packed batch.
ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? w, Tensor? sharpness, Tensor? relative_scores, Tensor? bias_uv, "
    "Tensor? dense_table, Tensor? bias, Tensor? sinks, Tensor? mask, Tensor? key_padding, Tensor? query_padding, "
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
            "the Triton kernels support distance-aware attention only with the mapping learnable-sigmoid and the "
            "adjustment early-multiply"
        )
    if terms.sigmoid is not None and _tables(inputs):
        return "the Triton kernels do not support tables together with distance"
    if terms.is_full_table and terms.value_table is not None:
        return "the Triton kernels do not support a value table with a row for every relative position"
    if not terms.is_full_table and any(2 * terms.table_start + table.shape[1] != 1 for table in _tables(inputs)):
        return "the Triton kernels need clipped tables that reach as far forward as back"
    if inputs.sinks is not None and not inputs.v.shape[2]:
        return "the Triton kernels need at least one key if there are sinks"
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
        *_distance_parameters(terms),
        relative_scores,
        None if bias_uv is None else bias_uv.float(),
        dense_table,
        inputs.bias,
        None if inputs.sinks is None else inputs.sinks.float(),
        inputs.mask,
        inputs.key_padding,
        inputs.query_padding,
        seq_starts,
        seq_ends,
        torch.randint(2**31 - 1, (), device=inputs.v.device) if inputs.dropout > 0 else None,
        inputs.scale,
        inputs.softcap or 0.0,
        inputs.offset,
        inputs.causal,
        *((-1, -1) if inputs.window is None else inputs.window),
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


def _distance_parameters(terms: SchemeTerms) -> tuple[Tensor | None, Tensor | None]:
    """Return w and v of the learnable sigmoid, or the slopes and None, or neither."""
    if terms.slopes is not None:
        return terms.slopes.float(), None
    if terms.sigmoid is not None:
        return terms.sigmoid[0].float(), terms.sigmoid[1].float()
    return None, None


def sequence_bounds(cu_seqlens: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return the start and end of each token's sequence, [length] each, from cumulative lengths."""
    cu_seqlens = cu_seqlens.int().clamp(0, length)
    tokens = torch.arange(length, device=cu_seqlens.device)
    sequence = torch.searchsorted(cu_seqlens[1:].contiguous(), tokens, right=True)
    sequence = sequence.clamp(max=len(cu_seqlens) - 2)
    return cu_seqlens[sequence], cu_seqlens[sequence + 1]


operators = Operators(
    "triton",
    ARGUMENTS,
    num_tensors=16,
    num_differentiable=10,
    num_outputs=5,
    saved_outputs=(0, 1, 3, 4),
    forward=forward,
    backward=backward,
    fake_forward=lambda *arguments: Plan(*arguments).outputs(arguments[0]),
    fake_backward=fake_backward,
)
