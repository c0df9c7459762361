"""T5 with fused attention: a bias for each bucket of relative positions, in `headwise.T5Bias`.

The first layer computes the biases, and the other layers of the stack get them from it. The fused layers pass on one
number for each relative position, (H, positions), instead of an N × M map.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import EncoderDecoderCache
from transformers.models.t5.modeling_t5 import T5Attention

from headwise.attention.position_constants import position_constant
from headwise.attention.schemes.t5_bias import t5_buckets_in_reach
from headwise.integrations.fusion.attention import PositionTerms, dropout_probability, fused_attention, split_heads
from headwise.integrations.fusion.family import Family


class T5Fusion:
    """The forward pass of T5's attention layers, for the classes of T5, mT5 and UMT5."""

    def relative_bias(self: Any, device: torch.device) -> Tensor:
        """Return the bias of each relative position up to the maximum distance, (H, 2 · maximum + 1)."""
        buckets = position_constant(
            t5_buckets_in_reach,
            self.relative_attention_num_buckets,
            self.relative_attention_max_distance,
            not self.is_decoder,
            device=device,
        )
        bias: Tensor = self.relative_attention_bias(buckets)
        return bias.T

    def keys_and_values(self: Any, states: Tensor, cache: Any, *, is_cross_attention: bool) -> tuple[Tensor, Tensor]:
        """Return keys and values, with those of the cache, which is updated."""
        is_encoder_decoder = isinstance(cache, EncoderDecoderCache)
        layer_cache = cache
        if is_encoder_decoder:
            layer_cache = cache.cross_attention_cache if is_cross_attention else cache.self_attention_cache
            if is_cross_attention and cache.is_updated.get(self.layer_idx):
                stored = layer_cache.layers[self.layer_idx]
                return stored.keys, stored.values
        k, v = (split_heads(projection(states), self.key_value_proj_dim) for projection in (self.k, self.v))
        if layer_cache is not None:
            k, v = layer_cache.update(k, v, self.layer_idx)
            if is_cross_attention and is_encoder_decoder:
                cache.is_updated[self.layer_idx] = True
        return k, v

    def attend(
        self: Any,
        hidden_states: Tensor,
        mask: Tensor | None,
        key_value_states: Tensor | None,
        relative_bias: Tensor | None,
        past_key_values: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output of the layer, and the weights if they are requested."""
        is_cross_attention = key_value_states is not None
        q = split_heads(self.q(hidden_states), self.key_value_proj_dim)
        k, v = self.keys_and_values(
            key_value_states if is_cross_attention else hidden_states,
            past_key_values,
            is_cross_attention=is_cross_attention,
        )
        scheme = None
        if relative_bias is not None:
            scheme = PositionTerms(relative_bias=relative_bias, table_start=-(relative_bias.shape[1] // 2))
        output, weights = fused_attention(
            self,
            q,
            k,
            v,
            mask,
            scheme=scheme,
            scale=self.scaling,
            dropout=dropout_probability(self, self.dropout),
            is_causal=self.is_decoder and not is_cross_attention,  # is_causal is wrong in 5.17 (UMT5)
        )
        return self.o(output), weights


class T5BiasFromFirstLayer(T5Fusion):
    """Layers that get the biases of the first layer as an argument (T5 and mT5)."""

    def forward(
        self: Any,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        position_bias: Tensor | None = None,
        past_key_values: Any = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        if position_bias is None and self.has_relative_attention_bias:
            position_bias = self.relative_bias(hidden_states.device)
        output, weights = self.attend(hidden_states, mask, key_value_states, position_bias, past_key_values)
        return output, position_bias, weights


class FusedT5Attention(T5BiasFromFirstLayer, T5Attention):
    """Self-attention and cross-attention of T5."""


FAMILY = Family(name="T5", layers={T5Attention: FusedT5Attention}, uses_mask_interface=True, num_maps=1)
