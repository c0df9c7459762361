"""The attention of Conformers with fused kernels, for the families whose layers have the same form.

The layers have Transformer-XL's relative positions (`relative`), a learned vector for each clipped relative position
(`relative_key`, after Shaw et al.), rotary embeddings or no positions.

Axes: B batch, H heads, N frames, D head width, P relative positions.
"""

from typing import Any

import torch
from torch import Tensor

from headwise.attention.position_constants import position_constant
from headwise.attention.types import compute_dtype
from headwise.integrations.fusion.attention import (
    MaxPairs,
    PositionTerms,
    dropout_probability,
    fused_attention,
    is_short,
    split_heads,
)
from headwise.integrations.fusion.short_batches import attend_transformer_xl, attend_with_bias


def transformer_xl_terms(table: Tensor, u: Tensor, v: Tensor) -> PositionTerms:
    """Return the terms of Transformer-XL for N frames.

    Args:
        table: the projected embeddings of the differences i − j = N−1 … 1−N, (1 or B, 2N−1, H · D). All inputs of a
            batch have the same embeddings.
        u: the bias of queries that are multiplied with keys, (H, D).
        v: the bias of queries that are multiplied with the table, (H, D).
    """
    by_head = table[0].view(-1, *u.shape).transpose(0, 1)
    return PositionTerms(
        key_table=by_head,
        biases=torch.stack((u, v)).to(compute_dtype(u.dtype)),
        table_start=-(table.shape[1] // 2),
        is_full_table=True,
    )


def clipped_rows(left: int, right: int, device: torch.device) -> Tensor:
    """Return the embeddings' rows of relative positions, as many after a frame as before it, as the kernels need."""
    reach = max(left, right)
    return torch.arange(-reach, reach + 1, device=device).clamp(-left, right) + left


class FastConformerFusion:
    """The attention of the layers of Parakeet and Nemotron-ASR-streaming for short batches."""

    max_pairs = MaxPairs(inference=2**20, training=2**20)
    hidden_score: float | None = None

    def attend_short(
        self: Any, hidden_states: Tensor, embeddings: Tensor, mask: Tensor | None, cache: Any = None
    ) -> Tensor:
        """Return the output for a short batch."""
        by_head = (*hidden_states.shape[:2], -1, self.head_dim)
        q = self.q_proj(hidden_states).view(by_head)
        k = self.k_proj(hidden_states).view(by_head).transpose(1, 2)
        v = self.v_proj(hidden_states).view(by_head).transpose(1, 2)
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        output = attend_transformer_xl(
            q,
            k,
            v,
            mask,
            table=self.relative_k_proj(embeddings[0]),
            key_bias=self.bias_u,
            table_bias=self.bias_v,
            scale=self.scaling,
            dropout=self.attention_dropout if self.training else 0.0,
            hidden_score=self.hidden_score,
        )
        return self.o_proj(output)  # type: ignore[no-any-return]


class ConformerFusion:
    """The forward pass of the attention layers of Wav2Vec2-BERT, Wav2Vec2-Conformer and SeamlessM4T."""

    max_pairs = MaxPairs()

    def forward(
        self: Any,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        relative_position_embeddings: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if is_short(self, hidden_states, self.max_pairs, output_attentions=options.get("output_attentions")):
            if attention_mask is None or attention_mask.dtype == torch.bool:
                return self.attend_short(hidden_states, attention_mask, relative_position_embeddings), None
            return super().forward(  # type: ignore[misc,no-any-return]
                hidden_states, attention_mask, relative_position_embeddings, **options
            )
        states = hidden_states
        if self.position_embeddings_type == "rotary":
            states = self._apply_rotary_embedding(hidden_states, relative_position_embeddings)
        q, k = (split_heads(projection(states), self.head_size) for projection in (self.linear_q, self.linear_k))
        output, weights = fused_attention(
            self,
            q,
            k,
            split_heads(self.linear_v(hidden_states), self.head_size),
            attention_mask,
            scheme=self.position_terms(relative_position_embeddings, q.device),
            scale=self.scaling,
            dropout=dropout_probability(self, self.dropout),
            output_attentions=bool(options.get("output_attentions")),
            reads_padding=True,  # by convolutions, of which some are not masked
        )
        return self.linear_out(output), weights

    def attend_short(self: Any, hidden_states: Tensor, mask: Tensor | None, embeddings: Any) -> Tensor:
        """Return the output for a short batch, of layers with Transformer-XL's, rotary or no positions."""
        states = hidden_states
        if self.position_embeddings_type == "rotary":
            states = self._apply_rotary_embedding(hidden_states, embeddings)
        by_head = (*hidden_states.shape[:2], self.num_heads, self.head_size)
        q = self.linear_q(states).view(by_head)
        k = self.linear_k(states).view(by_head).transpose(1, 2)
        v = self.linear_v(hidden_states).view(by_head).transpose(1, 2)
        options = {"scale": self.scaling, "dropout": self.dropout.p if self.training else 0.0}
        if self.position_embeddings_type != "relative":
            output = attend_with_bias(q.transpose(1, 2), k, v, mask, **options)
            return self.linear_out(output)  # type: ignore[no-any-return]
        output = attend_transformer_xl(
            q,
            k,
            v,
            mask,
            table=self.linear_pos(embeddings[0]),
            key_bias=self.pos_bias_u,
            table_bias=self.pos_bias_v,
            **options,
        )
        return self.linear_out(output)  # type: ignore[no-any-return]

    def position_terms(self: Any, embeddings: Tensor | None, device: torch.device) -> PositionTerms | None:
        """Return the terms of the layer's kind of positions; None if queries and keys contain them."""
        if self.position_embeddings_type == "relative":
            return transformer_xl_terms(self.linear_pos(embeddings), self.pos_bias_u, self.pos_bias_v)
        if self.position_embeddings_type == "relative_key":
            left, right = self.left_max_position_embeddings, self.right_max_position_embeddings
            rows = position_constant(clipped_rows, left, right, device=device)
            table = self.distance_embedding(rows)
            return PositionTerms(key_table=table[None], table_start=-max(left, right))
        return None
