"""The tensors that the kernels get for the terms of a scheme.

Legend: B batch, H query heads, G key heads, N queries, M keys, E width of queries and keys, D width of values, R rows
of a table.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from headwise.attention.diagonals import clip_to_rows
from headwise.attention.triton_backend import transformer_xl
from headwise.attention.triton_backend.sequence_bounds import sequence_bounds
from headwise.attention.types import AttentionInputs, SchemeTerms


class SchemeInputs(NamedTuple):
    """The differentiable tensors of a call except a bias and sinks, None for terms that a scheme does not have."""

    q: Tensor  # [B, H, N, E]
    k: Tensor  # [B, G, M, E]
    v: Tensor  # [B, G, M, D]
    w: Tensor | None = None  # [H], of the learnable sigmoid, or slopes of ALiBi
    sharpness: Tensor | None = None  # [H], v of the learnable sigmoid
    key_table: Tensor | None = None  # [H or 1, R, E], clipped
    value_table: Tensor | None = None  # [H or 1, R, D], clipped
    bias_uv: Tensor | None = None  # [2, H, E], Transformer-XL's biases
    dense_table: Tensor | None = None  # [H, R, E], with a row for every relative position, padded
    query_table: Tensor | None = None  # [H, R, E], padded, in the order of i − j
    relative_bias: Tensor | None = None  # [H, R], clipped
    position_q: Tensor | None = None  # [B, H, N, P]
    position_k: Tensor | None = None  # [B or 1, G or 1, M, P], constant


def scheme_inputs(terms: SchemeTerms, v: Tensor, dtype: torch.dtype, offset: int) -> tuple[SchemeInputs, int]:
    """Return the tensors of a scheme's terms, and the largest relative position of its clipped tables.

    Args:
        terms: the terms. Biases with a clipped table are added to q; `terms.relative_q` is compared with the table.
        v: the values.
        dtype: dtype of queries, keys, values and dense tables.
        offset: position of the first query.
    """
    terms = kernel_terms(terms)
    is_dense = terms.query_table is not None or (terms.key_table is not None and terms.is_full_table)
    q = to_dtype(terms.q if is_dense else terms.content_q, dtype)
    k, v = to_dtype(terms.k, dtype), to_dtype(v, dtype)
    bias_uv = dense_table = query_table = None
    if is_dense:
        dense_table, query_table = _dense_tables(terms, q, k, offset)
        bias_uv = _bias_uv(terms, q)
    if query_table is not None and k.shape[1] != q.shape[1]:  # each query head adds to the gradient of its keys
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    w, sharpness = _distance_parameters(terms)
    relative_bias, max_offset = _relative_bias(terms, q.shape[1])
    inputs = SchemeInputs(
        q,
        k,
        v,
        w,
        sharpness,
        key_table=None if is_dense else terms.key_table,
        value_table=terms.value_table,
        bias_uv=bias_uv,
        dense_table=dense_table,
        query_table=query_table,
        relative_bias=relative_bias,
        position_q=None if terms.position_q is None else terms.position_q.to(dtype),
        position_k=None if terms.position_k is None else terms.position_k.to(dtype),
    )
    return inputs, max_offset


def to_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor in a dtype; `to` takes a microsecond even if nothing is to be done."""
    return x if x.dtype == dtype else x.to(dtype)


def named_tensors(inputs: AttentionInputs, tensors: SchemeInputs) -> dict[str, Tensor]:
    """Return all tensors of a call by name: those of the terms, then bias, sinks, mask, padding and sequences."""
    seq_starts, seq_ends = sequence_bounds(inputs)
    others = {
        "bias": inputs.bias,
        "sinks": None if inputs.sinks is None else inputs.sinks.float().contiguous(),
        "mask": inputs.mask,
        "key_padding": inputs.key_padding,
        "query_padding": inputs.query_padding,
        "seq_starts": seq_starts,
        "seq_ends": seq_ends,
    }
    return {name: x for name, x in (tensors._asdict() | others).items() if x is not None}


def kernel_terms(terms: SchemeTerms) -> SchemeTerms:
    """Return the terms with position_q and position_k as columns of q and k, unless kernels multiply them.

    Kernels do not compute the gradient of position_k, and no other position terms beside its products.
    """
    has_other_terms = terms.coefficients is not None or terms.value_table is not None or terms.relative_bias is not None
    is_constant = terms.position_k is not None and not terms.position_k.requires_grad
    return terms if is_constant and not has_other_terms else terms.widened()


def _dense_tables(terms: SchemeTerms, q: Tensor, k: Tensor, offset: int) -> tuple[Tensor, Tensor | None]:
    """Return the key table and the query table with a row for every relative position, padded, [H, N + M − 1, E].

    The rows of the query table are in the order of i − j, so that it is the key table of the transposed problem.
    """
    heads, n, m = q.shape[1], q.shape[2], k.shape[2]
    start = 1 - n - offset  # the smallest relative position

    def get_rows(table: Tensor) -> Tensor:
        num_rows = max(n + m - 1, 0)
        if terms.is_full_table:
            if table.shape[1] != num_rows or start != terms.table_start:
                table = table[:, start - terms.table_start :][:, :num_rows]
        else:
            positions = torch.arange(start, start + num_rows, device=table.device)
            table = table[:, clip_to_rows(positions, terms.table_start, table.shape[1])]
        table = to_dtype(table, q.dtype)
        return table if table.shape[0] == heads else table.expand(heads, -1, -1)

    query_rows = None if terms.query_table is None else get_rows(terms.query_table)
    if terms.key_table is not None:
        key_rows = get_rows(terms.key_table)
    else:
        assert query_rows is not None
        key_rows = torch.zeros_like(query_rows)
    query_table = None if query_rows is None else transformer_xl.pad_table(query_rows.flip(1))
    return transformer_xl.pad_table(key_rows), query_table


def _bias_uv(terms: SchemeTerms, q: Tensor) -> Tensor:
    """Return the biases u and v, [2, H, E]."""
    if terms.biases is None:
        return q.new_zeros(2, *q.shape[1::2], dtype=torch.float32)
    return terms.biases.float().contiguous()


def _relative_bias(terms: SchemeTerms, heads: int) -> tuple[Tensor | None, int]:
    """Return the relative bias, [H, R], with as many relative positions before as after, and the largest of them."""
    bias, start = terms.relative_bias, terms.table_start
    if bias is None:
        return None, 0 if terms.is_full_table else -start
    max_offset = max(-start, start + bias.shape[1] - 1, 0)
    if 2 * start + bias.shape[1] != 1:
        positions = torch.arange(-max_offset, max_offset + 1, device=bias.device)
        bias = bias[:, clip_to_rows(positions, start, bias.shape[1])]
    return bias.float().expand(heads, -1).contiguous(), max_offset


def _distance_parameters(terms: SchemeTerms) -> tuple[Tensor | None, Tensor | None]:
    """Return w and v of the learnable sigmoid, or the slopes and None, or neither."""
    if terms.slopes is not None:
        return terms.slopes.float().contiguous(), None
    if terms.sigmoid is not None:
        w, sharpness = terms.sigmoid
        return w.float().contiguous(), sharpness.float().contiguous()
    return None, None
