"""MPNet with fused attention: a bias for each bucket of relative positions, as in `headwise.T5Bias`.

The encoder computes the biases for all layers. The fused encoder passes on one number for each relative position, (H,
positions), instead of a map for each text.
"""

import math
from typing import Any

import torch
from torch import Tensor
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder, MPNetSelfAttention

from headwise.integrations.fusion.attention import (
    PositionTerms,
    dropout_probability,
    fused_attention,
    split_heads,
)
from headwise.integrations.fusion.family import Family

#: The distance from which on all keys of a direction share a bucket; MPNet has no option for it.
MAX_DISTANCE = 128


class FusedMPNetSelfAttention(MPNetSelfAttention):
    """Self-attention of MPNet."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
        **_: Any,
    ) -> tuple[Tensor, ...]:
        q, k, v = (split_heads(p(hidden_states), self.attention_head_size) for p in (self.q, self.k, self.v))
        output, weights = fused_attention(
            self,
            q,
            k,
            v,
            attention_mask,
            scheme=None
            if position_bias is None
            else PositionTerms(relative_bias=position_bias, table_start=-MAX_DISTANCE),
            scale=1.0 / math.sqrt(self.attention_head_size),
            dropout=dropout_probability(self, self.dropout),
            output_attentions=output_attentions,
        )
        return (self.o(output), weights) if output_attentions else (self.o(output),)  # type: ignore[return-value]


class FusedMPNetEncoder(MPNetEncoder):
    """The encoder of MPNet, whose biases are not expanded to maps."""

    def compute_position_bias(self, x: Tensor, position_ids: Tensor | None = None, num_buckets: int = 32) -> Any:
        if position_ids is not None:
            raise ValueError("fused MPNet computes biases of consecutive positions only: position_ids must be None")
        positions = torch.arange(-MAX_DISTANCE, MAX_DISTANCE + 1, device=x.device)
        buckets = self.relative_position_bucket(positions, num_buckets=num_buckets, max_distance=MAX_DISTANCE)
        return self.relative_attention_bias(buckets).T


FAMILY = Family(
    name="MPNet",
    layers={MPNetSelfAttention: FusedMPNetSelfAttention},
    containers={MPNetEncoder: FusedMPNetEncoder},
    uses_mask_interface=True,
    num_maps=3,
)
