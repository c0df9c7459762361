"""LayoutLMv3 with fused attention: biases for buckets of positions in the text and on the page.

Positions on the page do not follow from the order of the tokens, so one map of biases is computed for all layers. It
is not trained: the model computes it without gradients. The maps of scores and weights are not stored.
"""

import math
from typing import Any

from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.layoutlmv3.modeling_layoutlmv3 import LayoutLMv3Encoder, LayoutLMv3SelfAttention

from headwise.integrations.fusion.attention import dropout_probability, fused_attention, split_heads
from headwise.integrations.fusion.family import Family
from headwise.integrations.fusion.offloading import load_offloaded, modules_with_name

#: The layers of the encoder whose weights are the biases of positions in the text and on the page.
BIASES = ("rel_pos_bias", "rel_pos_x_bias", "rel_pos_y_bias")


class FusedLayoutLMv3SelfAttention(LayoutLMv3SelfAttention):
    """Self-attention of LayoutLMv3."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        rel_pos: Tensor | None = None,
        rel_2d_pos: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        projections = (self.query, self.key, self.value)
        q, k, v = (split_heads(projection(hidden_states), self.attention_head_size) for projection in projections)
        return fused_attention(
            self,
            q,
            k,
            v,
            attention_mask,
            position_bias=rel_pos,
            scale=1.0 / math.sqrt(self.attention_head_size),
            dropout=dropout_probability(self, self.dropout),
        )


class FusedLayoutLMv3Encoder(LayoutLMv3Encoder):
    """The encoder of LayoutLMv3, which adds and scales the biases once for all layers."""

    def forward(
        self,
        hidden_states: Tensor,
        bbox: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        patch_height: int | None = None,
        patch_width: int | None = None,
        **kwargs: Any,
    ) -> Any:
        bias = None
        if self.has_relative_attention_bias:
            with load_offloaded(modules_with_name(self, BIASES)):
                bias = self._cal_1d_pos_emb(position_ids)
                if self.has_spatial_attention_bias:
                    bias = bias + self._cal_2d_pos_emb(bbox)
            bias = bias / math.sqrt(self.config.hidden_size // self.config.num_attention_heads)
        for layer in self.layer:
            hidden_states = layer(hidden_states, attention_mask, rel_pos=bias, **kwargs)
        states: Any = hidden_states
        return BaseModelOutput(last_hidden_state=states)


FAMILY = Family(
    name="LayoutLMv3",
    layers={LayoutLMv3SelfAttention: FusedLayoutLMv3SelfAttention},
    containers={LayoutLMv3Encoder: FusedLayoutLMv3Encoder},
    uses_mask_interface=True,
    read_directly=BIASES,
    num_maps=3,
)
