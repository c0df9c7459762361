"""DeBERTa-v2 and v3 with fused attention: disentangled attention, as in `headwise.Disentangled`.

The model's encoder builds an N × N map of relative positions and one of pairs of real tokens. The fused encoder builds
neither. The model masks all keys of padding tokens alike, so that these attend to all keys with equal weights.
The layers of a short batch share one mask of pairs.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding
from transformers.models.deberta_v2.modeling_deberta_v2 import (
    DebertaV2Encoder,
    DisentangledSelfAttention,
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
from headwise.integrations.fusion.short_batches import attend_disentangled

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
        rel_embeddings: Any = None,
    ) -> tuple[Tensor, Tensor | None]:
        if relative_pos is not None:  # positions that are not those of a text
            return super().forward(  # type: ignore[no-any-return]
                hidden_states, attention_mask, output_attentions, query_states, relative_pos, rel_embeddings
            )
        head_dim = self.attention_head_size
        num_terms = 1 + ("c2p" in self.pos_att_type) + ("p2c" in self.pos_att_type)
        has_positions = self.relative_attention and num_terms > 1
        if (
            has_positions
            and query_states is None
            and is_short(self, hidden_states, self.max_pairs, output_attentions=output_attentions)
        ):
            by_head = (*hidden_states.shape[:2], self.num_attention_heads, head_dim)
            output = attend_short_disentangled(
                self,
                self.query_proj(hidden_states).view(by_head),
                self.key_proj(hidden_states).view(by_head),
                self.value_proj(hidden_states).view(by_head),
                attention_mask,
                rel_embeddings,
                table_projections(self),
                num_buckets=self.position_buckets if self.position_buckets > 0 else None,
                scale=1.0 / float32_square_root(num_terms * head_dim),
            )
            return output, None
        q = split_heads(self.query_proj(hidden_states if query_states is None else query_states), head_dim)
        k, v = (split_heads(projection(hidden_states), head_dim) for projection in (self.key_proj, self.value_proj))
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

    def position_terms(self, embeddings: Any, n: int, m: int) -> PositionTerms:
        """Return the tables of the content-to-position and position-to-content terms."""
        num_buckets = self.position_buckets if self.position_buckets > 0 else None
        rows = position_constant(
            disentangled_rows_of_range, 1 - n, m, self.max_relative_positions, num_buckets, device=embeddings.device
        )
        return disentangled_terms(self, rows, embeddings, table_projections(self), table_start=1 - n)


#: For each table, its term in `pos_att_type` and the name of the layer's projection.
Projections = Mapping[str, tuple[str, str]]


def table_projections(layer: Any) -> Projections:
    """Return the projections of a layer of DeBERTa-v2."""
    return _SHARED if layer.share_att_key else _SEPARATE


_SHARED = {"key_table": ("c2p", "key_proj"), "query_table": ("p2c", "query_proj")}
_SEPARATE = {"key_table": ("c2p", "pos_key_proj"), "query_table": ("p2c", "pos_query_proj")}


def disentangled_terms(
    layer: Any, rows: Tensor, embeddings: Tensor, projections: Projections, table_start: int
) -> PositionTerms:
    """Return the tables of the content-to-position and position-to-content terms that a layer has.

    Args:
        layer: the layer.
        rows: the row of the embeddings for each relative position.
        embeddings: the embeddings of positions.
        projections: those of the layer.
        table_start: the first relative position.
    """
    tables = project_tables(layer, {"key_table": rows, "query_table": rows}, embeddings, projections)
    by_head = {
        name: table.unflatten(-1, (layer.num_attention_heads, -1)).transpose(0, 1) for name, table in tables.items()
    }
    return PositionTerms(**by_head, table_start=table_start, is_full_table=True)


def project_tables(
    layer: Any, rows: Mapping[str, Tensor], embeddings: Tensor, projections: Projections
) -> dict[str, Tensor]:
    """Return the tables of the terms that a layer has, each (rows, H · D)."""
    embeddings = layer.pos_dropout(embeddings)
    return {
        name: embedding(rows[name], getattr(layer, projection)(embeddings))
        for name, (term, projection) in projections.items()
        if term in layer.pos_att_type
    }


def attend_short_disentangled(
    layer: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    embeddings: Tensor,
    projections: Projections,
    *,
    num_buckets: int | None,
    scale: float,
) -> Tensor:
    """Return the output of a layer for a short batch, (B, N, H · D), of q, k and v, (B, N, H, D)."""
    arguments = q.shape[1], layer.max_relative_positions, num_buckets
    rows = {
        "key_table": position_constant(rows_of_keys, *arguments, device=q.device),
        "query_table": position_constant(rows_of_queries, *arguments, device=q.device),
    }
    tables = project_tables(layer, rows, embeddings, projections)
    return attend_disentangled(q, k, v, mask, **tables, scale=scale, dropout=dropout_probability(layer, layer.dropout))


def rows_of_keys(n: int, max_distance: int, num_buckets: int | None, *, device: torch.device) -> Tensor:
    """Return the rows of the embeddings for n tokens, in the order of j − i."""
    return disentangled_rows_of_range(1 - n, n, max_distance, num_buckets, device)


def rows_of_queries(n: int, max_distance: int, num_buckets: int | None, *, device: torch.device) -> Tensor:
    """Return the rows of the embeddings for n tokens, in the order of i − j."""
    return rows_of_keys(n, max_distance, num_buckets, device=device).flip(0)


def average_in_padding(output: Tensor, weights: Tensor | None, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return outputs and weights in which tokens that see no key attend to all keys alike, without dropout.

    Args:
        output: (B, N, H · D).
        weights: (B, H, N, N), or None.
        v: (B, H, N, D).
        mask: (B, 1, 1, N), True for real tokens, which see each other; or (B, 1 or H, N, N), True for visible keys.
    """
    sees_keys = mask.transpose(2, 3) if mask.shape[2] == 1 else mask.any(dim=-1, keepdim=True)  # (B, 1 or H, N, 1)
    mean = v.mean(dim=2)[:, None]  # (B, 1, H, D)
    output = torch.where(sees_keys.transpose(1, 2), output.unflatten(2, mean.shape[2:]), mean.to(output.dtype))
    output = output.flatten(2)
    return output, None if weights is None else weights.masked_fill(~sees_keys, 1.0 / v.shape[2])


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
