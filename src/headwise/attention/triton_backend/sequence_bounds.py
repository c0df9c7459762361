"""Bounds of concatenated sequences, as the kernels take them, and their alignment for dense tables.

Axes: N queries, M keys, S sequences.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.attention.checks import to_cu_seqlens
from headwise.attention.triton_backend.tensor_cache import get_cache
from headwise.attention.types import AttentionInputs, AttentionOutput, SchemeTerms


def sequence_bounds(inputs: AttentionInputs) -> tuple[Tensor | None, Tensor | None]:
    """Return the arguments seq_starts and seq_ends of the operators.

    They are the start and end of each token's sequence, (N,) each. With `cu_seqlens_k` they are (N + N + M,) and
    (N + M,), as `sequence_tiles.py` describes.
    """
    if inputs.cu_seqlens is None:
        return None, None
    _, _, n, m = inputs.shape
    if inputs.cu_seqlens_k is None:
        return token_bounds(inputs.cu_seqlens, n)
    bounds = inputs.cu_seqlens.int().clamp(0, n)
    sequences = token_sequences(bounds, n)
    key_bounds = inputs.cu_seqlens_k.int().clamp(0, m)
    key_sequences = token_sequences(key_bounds, m)
    aligned = sequences + int(inputs.is_aligned)  # of the first or the last tokens of a sequence
    offsets = key_bounds[aligned] - bounds[aligned]
    return (
        torch.cat([key_bounds[sequences], offsets, bounds[key_sequences]]),
        torch.cat([key_bounds[sequences + 1], bounds[key_sequences + 1]]),
    )


def token_bounds(cu_seqlens: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return the start and end of each token's sequence, (length,) each. The layers of a model share them.

    Raises:
        ValueError: the cumulative lengths are invalid, and they are on a CPU or new.
    """
    if torch.compiler.is_compiling():
        return compute_bounds(cu_seqlens, length)
    cache = get_cache(cu_seqlens)
    if length not in cache:
        checked = to_cu_seqlens("cu_seqlens", cu_seqlens, length, cu_seqlens.device)
        with torch.inference_mode(False), torch.no_grad():  # autograd rejects tensors of inference mode
            cache[length] = compute_bounds(checked, length)
    starts, ends = cache[length]
    return starts, ends


def compute_bounds(cu_seqlens: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return the start and end of each token's sequence, (length,) each."""
    bounds = cu_seqlens.int().clamp(0, length)
    sequences = token_sequences(bounds, length)
    return bounds[sequences], bounds[sequences + 1]


def token_sequences(cu_seqlens: Tensor, length: int) -> Tensor:
    """Return the index of each token's sequence, (length,)."""
    tokens = torch.arange(length, device=cu_seqlens.device)
    sequences = torch.searchsorted(cu_seqlens[1:].contiguous(), tokens, right=True)
    return sequences.clamp(max=len(cu_seqlens) - 2)


def needs_alignment(terms: SchemeTerms) -> bool:
    """Return whether kernels need queries and keys of equal lengths in each sequence; see `align_sequences`."""
    return terms.is_full_table or terms.query_table is not None or terms.relative_bias is not None


def align_sequences(inputs: AttentionInputs) -> tuple[AttentionInputs, Tensor, Tensor]:
    """Give queries and keys of each sequence the same length, by padding both to the sum of their lengths.

    Kernels that shift or sum tiles along their diagonals (`needs_alignment`) do so for all queries of a tile, so the
    positions of all queries must differ from their indices by one number.

    Returns:
        The inputs, and the indices of the queries, (N,), and keys, (M,), in them.
    """
    assert inputs.cu_seqlens is not None
    assert inputs.cu_seqlens_k is not None
    _, _, n, m = inputs.shape
    bounds, key_bounds = inputs.cu_seqlens.int(), inputs.cu_seqlens_k.int()
    sequences, key_sequences = token_sequences(bounds, n), token_sequences(key_bounds, m)
    offsets = (key_bounds.diff() - bounds.diff()).clamp(min=0) * inputs.is_aligned
    query_index = torch.arange(n, device=bounds.device) + (key_bounds[:-1] + offsets)[sequences]
    key_index = torch.arange(m, device=bounds.device) + bounds[key_sequences]
    length = n + m
    is_query, is_key = (
        torch.zeros(1, length, dtype=torch.bool, device=bounds.device).index_fill(1, index, True)
        for index in (query_index, key_index)
    )

    def scatter(x: Tensor, index: Tensor) -> Tensor:
        return x.new_zeros(*x.shape[:2], length, x.shape[3]).index_copy(2, index, x)

    terms = replace(inputs.terms, q=scatter(inputs.terms.q, query_index), k=scatter(inputs.terms.k, key_index))
    if terms.is_full_table:
        num_rows = max(2 * length - 1, 0)
        rows_before = length - 1 + terms.table_start  # rows of relative positions that no pair has; cut off if negative

        def extend(table: Tensor | None) -> Tensor | None:
            if table is None:
                return None
            rows_after = num_rows - table.shape[1] - rows_before
            return pad(table, (0, 0, rows_before, rows_after) if table.dim() == 3 else (rows_before, rows_after))

        terms = replace(
            terms,
            key_table=extend(terms.key_table),
            query_table=extend(terms.query_table),
            relative_bias=extend(terms.relative_bias),
            table_start=1 - length,
        )
    aligned_inputs = replace(
        inputs,
        terms=terms,
        v=scatter(inputs.v, key_index),
        key_padding=is_key,
        query_padding=is_query,
        cu_seqlens=bounds + key_bounds,
        cu_seqlens_k=None,
        offset=0,
    )
    return aligned_inputs, query_index, key_index


def select_tokens(result: AttentionOutput, query_index: Tensor, key_index: Tensor) -> AttentionOutput:
    """Return the results of the queries and keys at these indices."""

    def select(x: Tensor | None, index: Tensor) -> Tensor | None:
        return None if x is None else x.index_select(2, index)

    return AttentionOutput(
        result.output.index_select(2, query_index),
        received=select(result.received, key_index),
        weight_norms=select(result.weight_norms, query_index),
        lse=select(result.lse, query_index),
    )
