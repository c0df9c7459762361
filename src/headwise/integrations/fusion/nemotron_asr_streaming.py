"""Nemotron-ASR-streaming with fused attention: Transformer-XL's relative positions, as in `headwise.TransformerXL`.

Frames attend in chunks, to their own and some earlier ones. The layers get this N × N mask from the encoder. In
training, dropout of the sinusoidal embeddings is the same for all inputs of a batch.
"""

from typing import Any

from torch import Tensor
from transformers.models.nemotron_asr_streaming.modeling_nemotron_asr_streaming import (
    NemotronAsrStreamingEncoderAttention,
)

from headwise.integrations.fusion.attention import (
    dropout_probability,
    fused_attention,
    is_short,
    split_heads,
)
from headwise.integrations.fusion.audio import subsampled_example
from headwise.integrations.fusion.conformer import FastConformerFusion, transformer_xl_terms
from headwise.integrations.fusion.family import Family


class FusedNemotronAsrStreamingEncoderAttention(FastConformerFusion, NemotronAsrStreamingEncoderAttention):
    """Self-attention of the encoder, with the frames of a cache if there is one."""

    hidden_score = float("-inf")

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        position_embeddings: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if is_short(self, hidden_states, self.max_pairs, output_attentions=options.get("output_attentions")):
            return self.attend_short(hidden_states, position_embeddings, attention_mask, past_key_values), None
        q, k, v = (
            split_heads(projection(hidden_states), self.head_dim)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        output, weights = fused_attention(
            self,
            q,
            k,
            v,
            attention_mask,
            scheme=transformer_xl_terms(self.relative_k_proj(position_embeddings[:1]), self.bias_u, self.bias_v),
            scale=self.scaling,
            dropout=dropout_probability(self, self.attention_dropout),
            output_attentions=bool(options.get("output_attentions")),
        )
        return self.o_proj(output), weights


FAMILY = Family(
    name="Nemotron-ASR-streaming",
    layers={NemotronAsrStreamingEncoderAttention: FusedNemotronAsrStreamingEncoderAttention},
    num_maps=4,
    build_example=subsampled_example,
)
