"""SeamlessM4T with a fused speech encoder: Transformer-XL's relative positions, as in `headwise.TransformerXL`."""

from transformers.models.seamless_m4t.modeling_seamless_m4t import SeamlessM4TConformerSelfAttention

from headwise.integrations.fusion.attention import MaxPairs
from headwise.integrations.fusion.audio import seamless_example
from headwise.integrations.fusion.conformer import ConformerFusion
from headwise.integrations.fusion.family import Family


class FusedSeamlessM4TConformerSelfAttention(ConformerFusion, SeamlessM4TConformerSelfAttention):
    """Self-attention of SeamlessM4T's speech encoder and its adapter."""

    max_pairs = MaxPairs(inference=2**20, training=2**20)


FAMILY = Family(
    name="SeamlessM4T",
    layers={SeamlessM4TConformerSelfAttention: FusedSeamlessM4TConformerSelfAttention},
    uses_mask_interface=True,
    num_maps=4,
    build_example=seamless_example,
)
