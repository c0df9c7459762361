"""DeBERTa-v2 and v3 with fused attention: disentangled attention, as in `headwise.Disentangled`.

The model's encoder builds an N × N map of relative positions and one of pairs of real tokens. The fused encoder builds
neither. The model masks all keys of padding tokens alike, so that these attend to all keys with equal weights.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding
from transformers.models.deberta_v2.modeling_deberta_v2 import (
    DebertaV2Encoder,
    DisentangledSelfAttention,
    build_relative_position,
)

from headwise.attention.position_constants import position_constant
from headwise.attention.schemes.disentangled import disentangled_rows_of_range
from headwise.integrations.fusion.attention import (
    MaxPairs,
    PositionTerms,
    dropout_probability,
    float32_square_root,
    fused_attention,
    is_short,
    split_heads,
)
from headwise.integrations.fusion.family import Family
from headwise.integrations.fusion.offloading import load_offloaded

#: Of DeBERTa, too.
MAX_PAIRS = MaxPairs(training=2**21)


class FusedDisentangledSelfAttention(DisentangledSelfAttention):
    """Self-attention of DeBERTa-v2."""

    max_pairs = MAX_PAIRS

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        if relative_pos is not None:  # positions that are not those of a text
            return super().forward(  # type: ignore[no-any-return]
                hidden_states, attention_mask, output_attentions, query_states, relative_pos, rel_embeddings
            )
        if query_states is None and is_short(self, hidden_states, self.max_pairs, output_attentions=output_attentions):
            relative_pos = self.own_positions(hidden_states) if self.relative_attention else None
            mask = mask_of_pairs(attention_mask)
            return super().forward(  # type: ignore[no-any-return]
                hidden_states, mask, relative_pos=relative_pos, rel_embeddings=rel_embeddings
            )
        head_dim = self.attention_head_size
        q = split_heads(self.query_proj(hidden_states if query_states is None else query_states), head_dim)
        k, v = (split_heads(projection(hidden_states), head_dim) for projection in (self.key_proj, self.value_proj))
        num_terms = 1 + ("c2p" in self.pos_att_type) + ("p2c" in self.pos_att_type)
        has_positions = self.relative_attention and num_terms > 1
        mask = attention_mask.bool()
        output, weights = fused_attention(
            self,
            q,
            k,
            v,
            mask,
            scheme=self.position_terms(rel_embeddings, q.shape[2], k.shape[2]) if has_positions else None,
            scale=1.0 / float32_square_root(num_terms * head_dim),
            dropout=dropout_probability(self, self.dropout),
            output_attentions=output_attentions,
        )
        return average_in_padding(output, weights, v, mask)

    def own_positions(self, hidden_states: Tensor) -> Tensor:
        """Return the map of relative positions that the model's own encoder builds, (1, N, N)."""
        arguments = hidden_states.shape[1], self.position_buckets, self.max_relative_positions
        return position_constant(position_map, *arguments, device=hidden_states.device)

    def position_terms(self, embeddings: Any, n: int, m: int) -> PositionTerms:
        """Return the tables of the content-to-position and position-to-content terms."""
        embeddings = self.pos_dropout(embeddings)[: 2 * self.pos_ebd_size]
        num_buckets = self.position_buckets if self.position_buckets > 0 else None
        rows = position_constant(
            disentangled_rows_of_range, 1 - n, m, self.max_relative_positions, num_buckets, device=embeddings.device
        )
        projections = {
            "key_table": ("c2p", "key_proj" if self.share_att_key else "pos_key_proj"),
            "query_table": ("p2c", "query_proj" if self.share_att_key else "pos_query_proj"),
        }
        return disentangled_terms(self, rows, embeddings, projections, table_start=1 - n)


def disentangled_terms(
    layer: Any, rows: Tensor, embeddings: Tensor, projections: dict[str, tuple[str, str]], table_start: int
) -> PositionTerms:
    """Return the tables of the content-to-position and position-to-content terms that a layer has.

    Args:
        layer: the layer.
        rows: the row of the embeddings for each relative position.
        embeddings: the embeddings of positions.
        projections: for each table, its term in `pos_att_type` and the name of the layer's projection.
        table_start: the first relative position.
    """
    tables = {
        name: embedding(rows, getattr(layer, projection)(embeddings)).unflatten(-1, (layer.num_attention_heads, -1))
        for name, (term, projection) in projections.items()
        if term in layer.pos_att_type
    }
    by_head = {name: table.transpose(0, 1) for name, table in tables.items()}
    return PositionTerms(**by_head, table_start=table_start, is_full_table=True)


def position_map(n: int, num_buckets: int, max_position: int, *, device: torch.device) -> Tensor:
    """Return the relative positions of n tokens as in the model, (1, N, N)."""
    tokens = torch.empty(n, 1, device=device)
    positions: Tensor = build_relative_position(tokens, tokens, bucket_size=num_buckets, max_position=max_position)
    return positions


def mask_of_pairs(mask: Tensor) -> Tensor:
    """Return the mask of pairs of real tokens that the model's own encoder builds, (B, 1, N, N)."""
    mask = mask.bool()
    return mask & mask.transpose(-1, -2) if mask.shape[-2] == 1 else mask


def average_in_padding(output: Tensor, weights: Tensor | None, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return outputs and weights in which padding tokens attend to all keys with equal weights, without dropout.

    Args:
        output: (B, N, H · D).
        weights: (B, H, N, N), or None.
        v: (B, H, N, D).
        mask: (B, 1, 1, N), True for real tokens. A mask of pairs does not change the result.
    """
    if mask.shape[2] != 1:
        return output, weights
    mean = v.mean(dim=2).flatten(1)[:, None]
    output = torch.where(mask.transpose(2, 3)[:, 0], output, mean.to(output.dtype))
    return output, None if weights is None else weights.masked_fill(~mask.transpose(2, 3), 1.0 / v.shape[2])


class EncoderWithoutMaps:
    """Methods of DeBERTa's encoders that build no N × N maps, and read the embeddings of positions if offloaded."""

    def get_attention_mask(self, attention_mask: Tensor) -> Tensor:
        mask = attention_mask.bool()
        if mask.dim() <= 2:
            return mask[:, None, None, :]
        return mask[:, None] if mask.dim() == 3 else mask.expand(-1, -1, mask.shape[-1], -1)

    def get_rel_pos(
        self, hidden_states: Tensor, query_states: Tensor | None = None, relative_pos: Tensor | None = None
    ) -> Tensor | None:
        return relative_pos

    def get_rel_embedding(self: Any) -> Tensor | None:
        if not self.relative_attention:
            return None
        with load_offloaded([self.rel_embeddings]):
            embeddings: Tensor = super().get_rel_embedding()  # type: ignore[misc]
        return embeddings


class FusedDebertaV2Encoder(EncoderWithoutMaps, DebertaV2Encoder):
    """The encoder of DeBERTa-v2 without N × N maps."""


FAMILY = Family(
    name="DeBERTa-v2",
    layers={DisentangledSelfAttention: FusedDisentangledSelfAttention},
    containers={DebertaV2Encoder: FusedDebertaV2Encoder},
    read_directly=("rel_embeddings",),
    num_maps=6,
)
