"""Attention of a layer whose batch is packed: its sequences are concatenated without padding."""

from typing import Any

import torch
from torch import Tensor, nn

from headwise.attention import attend
from headwise.integrations.model_utils import UnsupportedAttentionError
from headwise.integrations.window_attention import has_window

#: The attribute of an attention layer whose model packs its batches (`integrations/packing.py`).
PACKING = "_headwise_packing"


def packed_lengths(module: nn.Module, options: dict[str, Any]) -> tuple[Tensor | None, Tensor | None]:
    """Return the cumulative lengths of packed queries, and of keys if these differ; None for padded batches.

    They come from `enable_packing`, or are passed to the model as `cu_seq_lens_q` and `cu_seq_lens_k`, as by
    transformers' `DataCollatorWithFlattening`.
    """
    packing = module.__dict__.get(PACKING)
    if packing is not None and packing.cu_seqlens is not None:
        return packing.cu_seqlens, None
    cu_seqlens, cu_seqlens_k = options.get("cu_seq_lens_q"), options.get("cu_seq_lens_k")
    if cu_seqlens is None or cu_seqlens_k is None or torch.equal(cu_seqlens, cu_seqlens_k):
        return cu_seqlens, None
    return cu_seqlens, cu_seqlens_k


def attend_packed(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position_bias: Tensor | None,
    *,
    is_causal: bool | None,
    sliding_window: int | None,
    **options: Any,
) -> Tensor:
    """Compute a layer's attention inside each sequence; the layer's mask is not used.

    Args:
        module: the layer.
        query, key, value: the tokens of all sequences, (1, heads, tokens, width).
        position_bias: the layer's bias of the scores, which is refused: it has an element for each pair of tokens.
        is_causal: whether the layer is causal; by default the layer's own setting.
        sliding_window: how many tokens the layer sees back, and ahead if it is not causal, including its own.
        options: further arguments of `attend`.
    """
    if has_window(module) and sliding_window is None:
        raise UnsupportedAttentionError(module, "has a window (set_window), so its batches cannot be packed")
    if position_bias is not None:
        raise UnsupportedAttentionError(
            module, "adds a bias by position to its scores, so its batches cannot be packed"
        )
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    window = None if sliding_window is None else (sliding_window - 1, sliding_window - 1)
    output: Tensor = attend(query, key, value, causal=causal, window=window, **options)
    return output
