"""SEW-D with fused attention: disentangled attention, as in `headwise.Disentangled`.

The model's encoder builds an N × N map of relative positions. The fused encoder does not.
"""

from typing import Any

from torch import Tensor
from transformers.models.sew_d.modeling_sew_d import DisentangledSelfAttention, SEWDTransformerEncoder

from headwise.integrations.fusion.attention import float32_square_root, fused_attention, split_heads
from headwise.integrations.fusion.audio import waveform_example
from headwise.integrations.fusion.deberta_v2 import EncoderWithoutMaps, FusedDisentangledSelfAttention
from headwise.integrations.fusion.family import Family


class FusedSEWDSelfAttention(DisentangledSelfAttention):
    """Self-attention of SEW-D, whose parameters have the names of DeBERTa-v2's."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if relative_pos is not None or query_states is not None:  # not used by the models of transformers
            return super().forward(  # type: ignore[no-any-return]
                hidden_states, attention_mask, query_states, relative_pos, rel_embeddings, **options
            )
        q, k, v = (
            split_heads(projection(hidden_states), self.attention_head_size)
            for projection in (self.query_proj, self.key_proj, self.value_proj)
        )
        num_terms = 1 + ("c2p" in self.pos_att_type) + ("p2c" in self.pos_att_type)
        has_positions = self.relative_attention and num_terms > 1
        return fused_attention(
            self,
            q,
            k,
            v,
            attention_mask.bool(),
            scheme=self.position_terms(rel_embeddings, q.shape[2], k.shape[2]) if has_positions else None,  # type: ignore[misc]
            scale=1.0 / float32_square_root(num_terms * self.attention_head_size),
            dropout=self.dropout.drop_prob if self.training else 0.0,
            output_attentions=bool(options.get("output_attentions")),
        )

    position_terms = FusedDisentangledSelfAttention.position_terms


class FusedSEWDTransformerEncoder(EncoderWithoutMaps, SEWDTransformerEncoder):
    """The encoder of SEW-D without N × N maps."""


def build_example(model: Any) -> dict[str, Any]:
    """Return two random waveforms, the first one with padding."""
    return waveform_example(model, 37 * model.config.squeeze_factor)


FAMILY = Family(
    name="SEW-D",
    layers={DisentangledSelfAttention: FusedSEWDSelfAttention},
    containers={SEWDTransformerEncoder: FusedSEWDTransformerEncoder},
    read_directly=("rel_embeddings",),
    num_maps=6,
    build_example=build_example,
)
