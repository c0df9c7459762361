"""UMT5 with fused attention: T5's, with biases of its own in every layer."""

from typing import Any

from torch import Tensor
from transformers.models.umt5.modeling_umt5 import UMT5Attention

from headwise.integrations.fusion.family import Family
from headwise.integrations.fusion.t5 import T5Fusion


class FusedUMT5Attention(T5Fusion, UMT5Attention):
    """Self-attention and cross-attention of UMT5."""

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        relative_bias = self.relative_bias(hidden_states.device) if self.has_relative_attention_bias else None
        return self.attend(hidden_states, attention_mask, encoder_hidden_states, relative_bias, past_key_values)


FAMILY = Family(name="UMT5", layers={UMT5Attention: FusedUMT5Attention}, uses_mask_interface=True, num_maps=1)
