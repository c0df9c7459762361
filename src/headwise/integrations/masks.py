"""Translation of transformers' attention masks to those of `attend`.

Axes: B batch, H heads, N queries, M keys.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.masking_utils import bidirectional_mask_function, sdpa_mask


class SplitMask(NamedTuple):
    """A mask of transformers, divided into what `attend` takes."""

    key_padding: Tensor | None  # (B, M), True for real keys
    mask: Tensor | None  # boolean, broadcastable to (B, H, N, M)
    position_bias: Tensor | None  # added to the scores


def headwise_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,  # a tensor with a static cache
    kv_offset: int = 0,
    mask_function: Any = None,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> Tensor | None:
    """Build the mask that transformers passes to `headwise_attention_forward`.

    A bidirectional mask is (B, 1, 1, M), because it holds padding only; other masks are those of transformers' SDPA.
    With a static cache the mask ends at the last filled position, because the empty ones would count as keys before the
    query.
    """
    if mask_function is bidirectional_mask_function and options.get("local_size") is None:
        if attention_mask is None or attention_mask.dim() != 2:
            return attention_mask
        if not torch.compiler.is_compiling() and bool(attention_mask.all()):
            return None
        return attention_mask.bool()[:, None, None, kv_offset : kv_offset + kv_length]
    mask: Tensor | None = sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        **options,
    )
    if mask is None or torch.compiler.is_compiling():
        return mask
    end = int(q_offset) + q_length - kv_offset
    if not end < mask.shape[-1] or bool(mask[..., end:].any()):  # cross-attention has keys after the last query
        return mask
    return mask[..., :end]


def split_mask(attention_mask: Tensor | None, position_bias: Tensor | None, num_keys: int) -> SplitMask:
    """Divide transformers' mask into key padding, a boolean mask and a bias, for the first `num_keys` keys."""
    if attention_mask is None:
        return SplitMask(None, None, position_bias)
    if attention_mask.dtype != torch.bool:  # an additive mask, far below 0 where a key is hidden
        mask = attention_mask[..., :num_keys] > torch.finfo(attention_mask.dtype).min / 2
        bias = attention_mask[..., :num_keys].masked_fill(~mask, 0.0)
        return SplitMask(None, mask, bias if position_bias is None else position_bias + bias)
    if attention_mask.shape[1:3] == (1, 1):
        padding = attention_mask.flatten(0, 2)
        return SplitMask(padding if padding.shape[1] == num_keys else padding[:, :num_keys], None, position_bias)
    if attention_mask.shape[-1] > num_keys:  # otherwise the layers share what kernels compute from it
        attention_mask = attention_mask[..., :num_keys]
    return SplitMask(None, attention_mask, position_bias)


def trim_keys(
    key: Tensor, value: Tensor, position_bias: Tensor | None, num_keys: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return keys, values and bias of the first `num_keys` positions; a static cache has unused ones after them."""
    if num_keys >= key.shape[2]:
        return key, value, position_bias
    bias = None if position_bias is None else position_bias[..., :num_keys]
    return key[:, :, :num_keys], value[:, :, :num_keys], bias


def first_query_position(mask: Tensor | None, num_queries: int, num_keys: int, *, ends_at_last_query: bool) -> int:
    """Return the position of the first query among the keys.

    Args:
        mask: boolean, (B, H, N, M); None if there is no mask.
        num_queries: N.
        num_keys: M.
        ends_at_last_query: whether the last key is that of the last query, as in masks of `headwise_mask`. In other
            masks, a static cache has unused keys after it, and the last query's key is the last one that it may see.
    """
    if num_keys == num_queries or mask is None or mask.shape[2] != num_queries:
        return num_keys - num_queries
    if torch.compiler.is_compiling():
        raise ValueError("a scheme and a cache cannot be compiled together: generate with disable_compile=True")
    if ends_at_last_query:
        return num_keys - num_queries
    visible = mask[:, :, -1].flatten(0, 1).any(dim=0).nonzero()
    last = int(visible.max()) if len(visible) else num_keys - 1  # no text has a token at the last position
    return max(0, last - num_queries + 1)


def slice_rows(options: Mapping[str, Any], start: int, stop: int) -> dict[str, Any]:
    """Return the options of `attend` for a range of the queries."""
    rows = {
        name: x if x is None or x.shape[2] == 1 else x[:, :, start:stop]
        for name, x in options.items()
        if name in ("mask", "position_bias")
    }
    return {**options, **rows, "offset": options["offset"] + start}


def padded_rows(padding: Tensor, attention_mask: Tensor | None, *, at_end: bool = False) -> tuple[int, int] | None:
    """Return the range of positions with a padding token before a real one in some text, or None if there is none.

    Compiled code, which cannot depend on values, gets the range of all positions.

    Args:
        padding: True for real tokens, (B, N).
        attention_mask: the mask that `padding` comes from. All layers get the same mask, which stores the result,
            because reading it synchronizes a GPU.
        at_end: also include padding tokens after the last real one.
    """
    if torch.compiler.is_compiling():
        return 0, padding.shape[1]
    version = None if attention_mask is None or attention_mask.is_inference() else attention_mask._version
    cached_version, rows = getattr(attention_mask, "_headwise_padded_rows", (-1, None))
    if cached_version != version:
        followed_by_real = padding.flip(1).cumsum(dim=1).flip(1) > 0
        positions = ((followed_by_real | at_end) & ~padding).any(dim=0).nonzero()
        rows = (int(positions.min()), int(positions.max()) + 1) if len(positions) else None
        if attention_mask is not None:
            attention_mask._headwise_padded_rows = (version, rows)  # type: ignore[attr-defined]
    return rows


def real_tokens(key_padding: Tensor | None, mask: Tensor | None, batch_size: int) -> Tensor | None:
    """Return which tokens are visible to at least one query, (B, N); None if all are."""
    if key_padding is not None:
        return key_padding
    return None if mask is None else mask.expand(batch_size, *mask.shape[1:]).any(dim=1).any(dim=1)
