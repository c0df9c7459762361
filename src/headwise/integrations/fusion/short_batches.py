"""The attention of short batches in fused layers: whole maps, as in the model, in fewer operators.

For short batches, Python and the launches of kernels take longer than the kernels. These functions compute the formulas
of the models with as few operators as possible: embeddings of positions are projected once for all inputs, the relative
shift is a view, and masks are converted once per pass.

Axes: B batch, H heads, N queries, M keys, D head width, R rows of a table.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

#: Kernels of torch copy a bias whose rows do not start at multiples of this number of elements.
_ALIGNMENT = 8


def attend_transformer_xl(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    table: Tensor,
    key_bias: Tensor,
    table_bias: Tensor,
    scale: float,
    dropout: float,
    hidden_score: float | None = None,
) -> Tensor:
    """Compute attention with Transformer-XL's relative positions.

    Args:
        q: (B, N, H, D).
        k, v: (B, H, M, D).
        mask: True where attention is allowed, broadcastable to (B, H, N, M); None if there is no mask.
        table: the projected embeddings of one input, (R, H · D). Row N − 1 − i + j is that of query i and key j.
        key_bias: the bias of queries that are multiplied with keys, (H, D).
        table_bias: the bias of queries that are multiplied with the table, (H, D).
        scale: the factor of the scores.
        dropout: the dropout probability of the weights.
        hidden_score: the position score of hidden keys; by default the smallest number.

    Returns:
        The output, (B, N, H · D).
    """
    num_keys, rows = k.shape[2], table.shape[0]
    width = -(-num_keys // _ALIGNMENT) * _ALIGNMENT
    if width >= rows:  # the view would leave its rows
        width = num_keys
    bias = scores_by_pair(q + table_bias, table.view(rows, *table_bias.shape), width) * scale
    if mask is not None:
        hidden = compute_once(mask, _hidden_keys, width)
        bias.masked_fill_(hidden, torch.finfo(bias.dtype).min if hidden_score is None else hidden_score)
    if width != num_keys:
        bias = bias[..., :num_keys]
    return attend_with_bias((q + key_bias).transpose(1, 2), k, v, bias, scale=scale, dropout=dropout)


def attend_disentangled(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    *,
    key_table: Tensor | None = None,
    query_table: Tensor | None = None,
    scale: float,
    dropout: float,
) -> Tensor:
    """Compute DeBERTa's attention, with at least one of the tables.

    As in the model, the scores of queries that see no key are constants, without gradients.

    Args:
        q, k, v: (B, N, H, D).
        mask: True where attention is allowed, (B, 1, N, N).
        key_table: the projected embeddings that queries are multiplied with, (2N − 1, H · D), in the order of j − i.
        query_table: the projected embeddings that keys are multiplied with, (2N − 1, H · D), in the order of i − j.
        scale: the factor of the scores.
        dropout: the dropout probability of the weights.

    Returns:
        The output, (B, N, H · D).
    """
    n, by_head = q.shape[1], (-1, *q.shape[2:])
    hidden, query_scale = compute_once(mask, _hidden_keys_and_scales, scale, q.dtype)
    q = q * query_scale
    of_queries = None if key_table is None else scores_by_pair(q, key_table.view(by_head), n)
    of_keys = None if query_table is None else scores_by_pair(k, query_table.view(by_head), n, of_keys=True)
    if of_keys is None:
        assert of_queries is not None
        bias = of_queries.clone()
    else:
        bias = of_keys * scale if of_queries is None else torch.add(of_queries, of_keys, alpha=scale)
    bias.masked_fill_(hidden, torch.finfo(bias.dtype).min)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return attend_with_bias(q, k, v, bias, scale=1.0, dropout=dropout)


def attend_with_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *, scale: float, dropout: float) -> Tensor:
    """Compute attention with a bias or a boolean mask, and return the output, (B, N, H · D)."""
    if k.shape[1] != q.shape[1]:  # torch's fast kernels need as many key heads if there is a mask
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    output = scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale)
    return output.transpose(1, 2).flatten(2)


def scores_by_pair(x: Tensor, table: Tensor, width: int, *, of_keys: bool = False) -> Tensor:
    """Return the product of token i with row N − 1 − i + j of a table, for each other token j, as a view.

    Args:
        x: (B, N, H, D).
        table: (R, H, D).
        width: the number of other tokens. Columns that have no row are filled with other products.
        of_keys: whether the tokens are keys, so that the other tokens are queries.

    Returns:
        (B, H, N, width), for keys (B, H, width, N).
    """
    batch_size, n, heads, _ = x.shape
    rows = table.shape[0]
    by_row = torch.bmm(x.flatten(0, 1).transpose(0, 1), table.permute(1, 2, 0))  # (H, B · N, R)
    outer = n * rows, batch_size * n * rows
    if of_keys:
        return by_row.as_strided((batch_size, heads, width, n), (*outer, 1, rows - 1), n - 1)
    return by_row.as_strided((batch_size, heads, n, width), (*outer, rows - 1, 1), n - 1)


def compute_once(mask: Tensor, compute: Callable[..., Any], *arguments: Any) -> Any:
    """Return compute(mask, *arguments). All layers get the same mask, which stores the result.

    A CUDA graph that is recorded computes it in each layer, because it could read the result after the mask is freed.
    """
    if mask.is_cuda and torch.cuda.is_current_stream_capturing():
        return compute(mask, *arguments)
    key = compute, arguments, None if mask.is_inference() else mask._version
    stored_key, result = getattr(mask, "_headwise_short_batch", (None, None))
    if stored_key != key:
        with torch.inference_mode(False), torch.no_grad():  # autograd rejects tensors of inference mode
            result = compute(mask, *arguments)
        mask._headwise_short_batch = key, result  # type: ignore[attr-defined]
    return result


def _hidden_keys(mask: Tensor, width: int) -> Tensor:
    """Return which keys are hidden, with more columns if the width is larger."""
    hidden = mask.logical_not()
    return torch.nn.functional.pad(hidden, (0, width - mask.shape[-1]))


def _hidden_keys_and_scales(mask: Tensor, scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return which keys are hidden, (B, 1, N, N), and the factor of each query, 0 if it sees no key, (B, N, 1, 1)."""
    mask = mask.bool()
    pairs = mask & mask.transpose(-1, -2) if mask.shape[-2] == 1 else mask
    return ~pairs, pairs.any(dim=-1).transpose(1, 2)[..., None].to(dtype) * scale
