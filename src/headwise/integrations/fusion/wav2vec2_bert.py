"""Wav2Vec2-BERT with fused attention: a learned vector for each clipped relative position, as in `RelativePositions`.

The released models use `relative_key`, with 64 relative positions to the left and 8 to the right.
"""

from typing import Any

from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertSelfAttention

from headwise.integrations.fusion.audio import feature_example
from headwise.integrations.fusion.conformer import ConformerFusion
from headwise.integrations.fusion.family import Family


class FusedWav2Vec2BertSelfAttention(ConformerFusion, Wav2Vec2BertSelfAttention):
    """Self-attention of Wav2Vec2-BERT, in the encoder and in the adapter."""


def build_example(model: Any) -> dict[str, Any]:
    """Return two random inputs, the first one with padding."""
    return feature_example(model, model.config.feature_projection_input_dim)


FAMILY = Family(
    name="Wav2Vec2-BERT",
    layers={Wav2Vec2BertSelfAttention: FusedWav2Vec2BertSelfAttention},
    uses_mask_interface=True,
    num_maps=4,
    build_example=build_example,
)
