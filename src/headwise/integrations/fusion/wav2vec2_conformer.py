"""Wav2Vec2-Conformer with fused attention: Transformer-XL's relative positions, as in `headwise.TransformerXL`."""

from transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer import Wav2Vec2ConformerSelfAttention

from headwise.integrations.fusion.attention import MaxPairs
from headwise.integrations.fusion.audio import waveform_example
from headwise.integrations.fusion.conformer import ConformerFusion
from headwise.integrations.fusion.family import Family


class FusedWav2Vec2ConformerSelfAttention(ConformerFusion, Wav2Vec2ConformerSelfAttention):
    """Self-attention of Wav2Vec2-Conformer."""

    max_pairs = MaxPairs(inference=2**20, training=2**20)


FAMILY = Family(
    name="Wav2Vec2-Conformer",
    layers={Wav2Vec2ConformerSelfAttention: FusedWav2Vec2ConformerSelfAttention},
    uses_mask_interface=True,
    num_maps=4,
    build_example=waveform_example,
)
