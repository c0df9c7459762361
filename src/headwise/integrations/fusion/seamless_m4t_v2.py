"""SeamlessM4T v2 with a fused speech encoder: a learned vector for each clipped relative position.

The encoder attends in chunks. The released models have chunks of 20,000 frames, so that shorter audio has no mask.
"""

from typing import Any

from torch import Tensor
from transformers.models.seamless_m4t_v2.modeling_seamless_m4t_v2 import (
    SeamlessM4Tv2ConformerEncoder,
    SeamlessM4Tv2ConformerSelfAttention,
)

from headwise.integrations.fusion.audio import seamless_example
from headwise.integrations.fusion.conformer import ConformerFusion
from headwise.integrations.fusion.family import Family


class FusedSeamlessM4Tv2ConformerSelfAttention(ConformerFusion, SeamlessM4Tv2ConformerSelfAttention):
    """Self-attention of SeamlessM4T v2's speech encoder and its adapter."""


class FusedSeamlessM4Tv2ConformerEncoder(SeamlessM4Tv2ConformerEncoder):
    """The speech encoder, without an N × N mask if the audio fits into one chunk."""

    def _apply_chunk_attention(self, attention_mask: Tensor | None, hidden_states: Tensor) -> Any:
        if hidden_states.shape[1] <= self.config.speech_encoder_chunk_size:
            return attention_mask
        return super()._apply_chunk_attention(attention_mask, hidden_states)


FAMILY = Family(
    name="SeamlessM4T v2",
    layers={SeamlessM4Tv2ConformerSelfAttention: FusedSeamlessM4Tv2ConformerSelfAttention},
    containers={SeamlessM4Tv2ConformerEncoder: FusedSeamlessM4Tv2ConformerEncoder},
    uses_mask_interface=True,
    num_maps=4,
    build_example=seamless_example,
)
