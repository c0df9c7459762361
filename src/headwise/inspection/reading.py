"""Attention maps of a Hugging Face model, read off its layers as they run."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headwise.guidance import NotThroughTheInterface
from headwise.guidance.attaching import attached, evaluating, listened, unwrapped
from headwise.guidance.heard import Heard, Need


class _Keeper:
    """Keeps the maps of the layers in the order in which they run."""

    listening, wants = True, frozenset[Need]({"weights"})

    def __init__(self) -> None:
        self.maps: list[Tensor] = []

    def hear(self, layer: nn.Module, heard: Heard) -> None:
        assert heard.weights is not None
        self.maps.append(heard.weights)


def attention_maps(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """What every head looks at, (layers, B, heads, N, N), by the model's own scheme where it has one.

    Args:
        model: any Hugging Face model that asks transformers' `AttentionInterface`; it is left as it was.
        inputs: a batch of it.

    Raises:
        NotThroughTheInterface: the model's attention never asks it.

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertModel
        >>> model = BertModel(BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=3, num_attention_heads=2))
        >>> attention_maps(model, {"input_ids": torch.tensor([[5, 6, 7, 8]])}).shape
        torch.Size([3, 1, 2, 4, 4])
    """
    inner, keeper = unwrapped(model), _Keeper()
    with attached(inner), listened(inner, keeper), evaluating(inner):
        inner(**inputs)
    if not keeper.maps:
        raise NotThroughTheInterface(inner)
    return torch.stack(keeper.maps)
