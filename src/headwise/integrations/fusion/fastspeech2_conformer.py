"""FastSpeech2-Conformer with fused attention: Transformer-XL's relative positions, as in `headwise.TransformerXL`."""

import math
from typing import Any

from torch import Tensor
from transformers.models.fastspeech2_conformer.modeling_fastspeech2_conformer import FastSpeech2ConformerAttention

from headwise.integrations.fusion.attention import dropout_probability, fused_attention, split_heads
from headwise.integrations.fusion.conformer import transformer_xl_terms
from headwise.integrations.fusion.family import Family
from headwise.integrations.fusion.texts import text_example


class FusedFastSpeech2ConformerAttention(FastSpeech2ConformerAttention):
    """Self-attention of the encoder of phonemes and of the decoder of frames."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Any = None, pos_emb: Any = None, output_attentions: Any = False
    ) -> Any:
        q, k, v = (
            split_heads(projection(hidden_states), self.head_dim)
            for projection in (self.linear_q, self.linear_k, self.linear_v)
        )
        output, weights = fused_attention(
            self,
            q,
            k,
            v,
            None if attention_mask is None else attention_mask[:, None].bool(),
            scheme=transformer_xl_terms(self.linear_pos(pos_emb), self.pos_bias_u, self.pos_bias_v),
            scale=1.0 / math.sqrt(self.dim_key),
            dropout=dropout_probability(self, self.dropout),
            output_attentions=bool(output_attentions),
            reads_padding=True,  # by convolutions, which are not masked
        )
        return self.linear_out(output), weights


def build_example(model: Any) -> dict[str, Any]:
    """Return two random texts, the first one with padding. The model predicts how long their audio is."""
    batch = text_example(model)
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


FAMILY = Family(
    name="FastSpeech2-Conformer",
    layers={FastSpeech2ConformerAttention: FusedFastSpeech2ConformerAttention},
    num_maps=4,
    build_example=build_example,
)
