"""Attention of a layer with a sliding window and global tokens.

A token attends to the tokens of its window and to the global tokens, the first ones of the input; a global token
attends to all tokens. `Window.attend` computes this exactly in three parts, whose cost is proportional to the length:

- the keys of the window, without global keys,
- the global keys; both parts are merged by their log-sum-exp,
- the rows of the global queries.

Axes: B batch, H heads, G key heads, N tokens, D head width.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise._compat import get_config_entry
from headwise.attention import Scheme, attend
from headwise.integrations.model_utils import UnsupportedAttentionError

#: The entry of a model's configuration that describes its window.
CONFIG_ENTRY = "headwise_window"


@dataclass(frozen=True)
class Window:
    """The window of one call of a layer.

    Args:
        left, right: the number of tokens before and after its own that a token attends to.
        global_tokens: the number of global tokens.
    """

    left: int
    right: int
    global_tokens: int

    def is_mergeable(self, scheme: Scheme | None, *others: Any) -> bool:
        """Return whether a layer's attention can be computed in parts.

        Args:
            scheme: the layer's scheme. One that adds to the softmax has a term that lse does not contain.
            others: bias, softcap and sinks, which must be None.
        """
        return getattr(scheme, "adjust", "") != "late-add" and all(x is None for x in others)

    def dense_mask(self, attention_mask: Tensor | None, query: Tensor) -> Tensor:
        """Return the mask of the window, (B or 1, 1, N, N), for layers that are not computed in parts."""
        position = torch.arange(query.shape[2], device=query.device)
        offset = position - position[:, None]
        is_global = position < self.global_tokens
        mask = ((offset >= -self.left) & (offset <= self.right)) | is_global | is_global[:, None]
        return mask[None, None] if attention_mask is None else mask & attention_mask

    def attend(self, q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None, **options: Any) -> Tensor:
        """Compute attention.

        Args:
            q: (B, H, N, D).
            k, v: (B, G, N, D).
            attention_mask: True for real keys, (B, 1, 1, N); None if there is no padding.
            options: scheme, scale and dropout.
        """
        batch, length, count = q.shape[0], q.shape[2], self.global_tokens
        real = None if attention_mask is None else attention_mask.flatten(0, 2).expand(batch, -1)
        window = (self.left, self.right)
        if not count:
            local: Tensor = attend(q, k, v, key_padding=real, window=window, **options)
            return local
        local_keys = torch.ones(batch, length, dtype=torch.bool, device=q.device) if real is None else real.clone()
        local_keys[:, :count] = False
        near = attend(q, k, v, key_padding=local_keys, window=window, return_lse=True, **options)
        far = attend(
            q,
            k[:, :, :count],
            v[:, :, :count],
            key_padding=None if real is None else real[:, :count].contiguous(),
            offset=0,
            return_lse=True,
            **options,
        )
        output = merge(near.output, near.lse, far.output, far.lse)
        rows = attend(q[:, :, :count], k, v, key_padding=real, offset=0, **options)
        return torch.cat([rows.to(output.dtype), output[:, :, count:]], dim=2)


def merge(output_a: Tensor, lse_a: Tensor | None, output_b: Tensor, lse_b: Tensor | None) -> Tensor:
    """Return attention to the keys of two parts, given the output (B, H, N, D) and lse (B, H, N) of each."""
    assert lse_a is not None
    assert lse_b is not None
    is_empty = lse_a.isneginf() & lse_b.isneginf()  # a query without any key
    share = torch.sigmoid((lse_b - lse_a).masked_fill(is_empty, 0.0))[..., None]
    dtype = torch.promote_types(output_a.dtype, share.dtype)
    return torch.lerp(output_a.to(dtype), output_b.to(dtype), share.to(dtype)).to(output_a.dtype)


def has_window(module: nn.Module) -> bool:
    """Return whether the model of a layer has a window."""
    return get_config_entry(getattr(module, "config", None), CONFIG_ENTRY) is not None


def find_window(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    attention_mask: Tensor | None,
    is_causal: bool | None,
    sliding_window: int | None,
) -> Window | None:
    """Return the window of a layer for its inputs; None if it has none, has its own, or the inputs fit in it.

    Raises:
        UnsupportedAttentionError: the layer is causal, has a cache, or a mask for pairs of tokens.
    """
    if not has_window(module) or sliding_window is not None:
        return None
    entry: dict[str, Any] = getattr(module.config, CONFIG_ENTRY)
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    if causal or query.shape[2] != key.shape[2]:
        raise UnsupportedAttentionError(module, "is causal or has a cache; set_window is for encoders")
    if attention_mask is not None and attention_mask.shape[1:3] != (1, 1):
        raise UnsupportedAttentionError(module, "gets a mask for pairs of tokens, which a window does not support")
    left, right = entry["window"]
    if query.shape[2] - 1 <= min(left, right):
        return None
    return Window(left, right, min(entry["global_tokens"], query.shape[2]))
