"""DeBERTa (version 1) with fused attention: disentangled attention with a row for each relative position."""

from typing import Any

from torch import Tensor
from transformers.models.deberta.modeling_deberta import (
    DebertaEncoder,
    DisentangledSelfAttention,
)

from headwise.attention.position_constants import position_constant
from headwise.attention.schemes.disentangled import disentangled_rows_of_range
from headwise.integrations.fusion.attention import (
    PositionTerms,
    dropout_probability,
    float32_square_root,
    fused_attention,
    is_short,
)
from headwise.integrations.fusion.deberta_v2 import (
    MAX_PAIRS,
    EncoderWithoutMaps,
    attend_short_disentangled,
    average_in_padding,
    disentangled_terms,
)
from headwise.integrations.fusion.family import Family


class FusedDebertaSelfAttention(DisentangledSelfAttention):
    """Self-attention of DeBERTa."""

    max_pairs = MAX_PAIRS

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Any = None,
    ) -> tuple[Tensor, Tensor | None]:
        if relative_pos is not None or query_states is not None:
            return super().forward(
                hidden_states, attention_mask, output_attentions, query_states, relative_pos, rel_embeddings
            )
        scale = 1.0 / float32_square_root((1 + len(self.pos_att_type)) * self.attention_head_size)
        has_positions = self.relative_attention and rel_embeddings is not None
        by_head = self.in_proj(hidden_states).view(*hidden_states.shape[:2], self.num_attention_heads, -1)
        q, k, v = by_head.chunk(3, dim=-1)
        q, v = (
            x + bias.view(self.num_attention_heads, -1).to(x.dtype) for x, bias in ((q, self.q_bias), (v, self.v_bias))
        )
        has_tables = has_positions and not _TERMS.isdisjoint(self.pos_att_type)
        if has_tables and is_short(self, hidden_states, self.max_pairs, output_attentions=output_attentions):
            output = attend_short_disentangled(
                self, q, k, v, attention_mask, rel_embeddings, _PROJECTIONS, num_buckets=None, scale=scale
            )
            return output, None
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        mask = attention_mask.bool()
        output, weights = fused_attention(
            self,
            q,
            k,
            v,
            mask,
            scheme=self.position_terms(rel_embeddings, q.shape[2]) if has_positions else None,
            scale=scale,
            dropout=dropout_probability(self, self.dropout),
            output_attentions=output_attentions,
        )
        return average_in_padding(output, weights, v, mask)

    def position_terms(self, embeddings: Any, n: int) -> PositionTerms:
        """Return the tables of the content-to-position and position-to-content terms."""
        rows = position_constant(
            disentangled_rows_of_range, 1 - n, n, self.max_relative_positions, None, device=embeddings.device
        )
        return disentangled_terms(self, rows, embeddings, _PROJECTIONS, table_start=1 - n)


#: For each table, its term in `pos_att_type` and the name of the layer's projection.
_PROJECTIONS = {"key_table": ("c2p", "pos_proj"), "query_table": ("p2c", "pos_q_proj")}


#: The terms that have a table. Others, such as `p2p`, change the scale only.
_TERMS = {term for term, _ in _PROJECTIONS.values()}


class FusedDebertaEncoder(EncoderWithoutMaps, DebertaEncoder):
    """The encoder of DeBERTa without N × N maps."""


def why_unsupported(config: Any) -> str:
    """Return why a model with this configuration cannot be fused."""
    return "has talking heads, which cannot be fused" if getattr(config, "talking_head", False) else ""


FAMILY = Family(
    name="DeBERTa",
    layers={DisentangledSelfAttention: FusedDebertaSelfAttention},
    containers={DebertaEncoder: FusedDebertaEncoder},
    read_directly=("rel_embeddings",),
    num_maps=6,
    why_unsupported=why_unsupported,
)
