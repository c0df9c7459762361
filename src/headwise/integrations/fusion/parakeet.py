"""Parakeet with fused attention: Transformer-XL's relative positions, as in `headwise.TransformerXL`.

The encoder builds one N × N mask of pairs of real frames. The fused layers read the padding from its diagonal. Padding
frames, whose queries the model masks, attend to the real ones. In training, dropout of the sinusoidal embeddings is the
same for all inputs of a batch.
"""

from typing import Any

from torch import Tensor
from transformers.models.parakeet.modeling_parakeet import ParakeetEncoderAttention, ParakeetEncoderConvolutionModule

from headwise.integrations.fusion.attention import (
    dropout_probability,
    fused_attention,
    is_short,
    split_heads,
)
from headwise.integrations.fusion.audio import subsampled_example
from headwise.integrations.fusion.conformer import FastConformerFusion, transformer_xl_terms
from headwise.integrations.fusion.family import Family


def padding_of_pairs(mask: Tensor | None) -> Tensor | None:
    """Return the padding mask (B, 1, 1, N) of a mask of pairs of real frames, (B, 1, N, N)."""
    return None if mask is None else mask.diagonal(dim1=-2, dim2=-1)[:, :, None].contiguous()


class FusedParakeetEncoderAttention(FastConformerFusion, ParakeetEncoderAttention):
    """Self-attention of Parakeet's encoder."""

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, position_embeddings: Tensor, attention_mask: Tensor | None = None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        if is_short(self, hidden_states, self.max_pairs, output_attentions=options.get("output_attentions")):
            return self.attend_short(hidden_states, position_embeddings, attention_mask), None
        q, k, v = (
            split_heads(projection(hidden_states), self.head_dim)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        output, weights = fused_attention(
            self,
            q,
            k,
            v,
            padding_of_pairs(attention_mask),
            scheme=transformer_xl_terms(self.relative_k_proj(position_embeddings[:1]), self.bias_u, self.bias_v),
            scale=self.scaling,
            dropout=dropout_probability(self, self.attention_dropout),
            output_attentions=bool(options.get("output_attentions")),
        )
        return self.o_proj(output), weights


class FusedParakeetEncoderConvolutionModule(ParakeetEncoderConvolutionModule):
    """The convolution, which needs only the padding of an N × N mask."""

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Any:
        return super().forward(hidden_states, padding_of_pairs(attention_mask))


FAMILY = Family(
    name="Parakeet",
    layers={ParakeetEncoderAttention: FusedParakeetEncoderAttention},
    containers={ParakeetEncoderConvolutionModule: FusedParakeetEncoderConvolutionModule},
    num_maps=4,
    build_example=subsampled_example,
)
