"""XLNet with fused attention: Transformer-XL's relative positions, as in `headwise.TransformerXL`.

The scores of segments (`token_type_ids`) are a bias, which takes one map per layer. In training, dropout of the
sinusoidal embeddings is the same for all texts of a batch. Guides and inspection read the first stream only. For them,
a token that no query of the second stream may see is padding; that stream's mask, unlike the first one's, hides padding
tokens from themselves, too.

The model's own layers project states by `einsum`, which takes most of the host's time for short texts. The fused ones
use plain products with the same parameters.

The model builds an N × N mask for any `attention_mask`, also if no text has padding. A mask that hides no key is
dropped, because listing its tiles in each layer takes longer than the attention of short texts.

The model subtracts 1e30 from the scores of hidden keys. Queries of the second stream that may see no key, such as that
of the first token of a permutation, therefore attend to all keys alike, and the gradients of their scores are those of
a softmax of equal scores. The rows of these queries are computed as in the model, with E × M memory for E such rows.

Axes: B batch, H heads, N queries, M keys, D head width, R rows of the table, E queries that see no key.
"""

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import dropout, pad
from torch.utils.weak import WeakTensorKeyDictionary
from transformers.models.xlnet.modeling_xlnet import XLNetRelativeAttention

from headwise.integrations.fusion.attention import (
    PositionTerms,
    dropout_probability,
    fused_attention,
    refuse_recording,
)
from headwise.integrations.fusion.family import Family
from headwise.integrations.fusion.texts import text_example


class StreamMask(NamedTuple):
    """The mask of a stream, and which tokens are not padding."""

    visible: Tensor | None  # (B, 1, N, M), True where a key is visible; None if all keys are
    real: Tensor | None  # (B, M)
    is_second: bool  # whether this is the second stream, whose queries may see no key


class FusedXLNetRelativeAttention(XLNetRelativeAttention):
    """Self-attention of XLNet, of both streams and with memories."""

    def forward(
        self,
        h: Tensor,
        g: Tensor | None,
        attn_mask_h: Any,
        attn_mask_g: Any,
        r: Tensor,
        seg_mat: Tensor | None,
        mems: Tensor | None = None,
        target_mapping: Tensor | None = None,
        output_attentions: bool = False,
    ) -> Any:
        if mems is not None and mems.dim() > 1:
            refuse_recording(self, "attends to states of an earlier text (mems), which guides do not support")
        masks = stream_masks(attn_mask_h, attn_mask_g)
        all_h = torch.cat([mems, h], dim=0) if mems is not None and mems.dim() > 1 else h
        k, v = self.split_heads(all_h @ self.k.flatten(1)), self.split_heads(all_h @ self.v.flatten(1))
        # All texts have the same embeddings of positions, so those of one text are projected. The first one is of the
        # relative position −M, which no pair has.
        table = r[1:, 0].to(self.r.dtype) @ self.r.flatten(1)
        table = table.view(-1, self.n_head, self.d_head).transpose(0, 1)
        outputs: list[Tensor | None] = []
        weights: list[Tensor] = []
        for x, mask, mapping in ((h, masks[0], None), (g, masks[1], target_mapping)):
            if x is None:
                outputs.append(None)
                continue
            q = x @ self.q.flatten(1)
            if mapping is not None:
                q = torch.einsum("mbx,mlb->lbx", q, mapping)
            output, stream_weights = self.attend(
                self.split_heads(q), k, v, table, seg_mat, mask, output_attentions=output_attentions
            )
            if mapping is not None:
                output = torch.einsum("lbx,mlb->mbx", output, mapping)
            outputs.append(self.post_attention(x, output))
            if stream_weights is not None:
                weights.append(stream_weights)
        if not output_attentions:
            return tuple(outputs)
        return (*outputs, weights[0] if g is None else tuple(weights))

    def split_heads(self, x: Tensor) -> Tensor:
        """Convert (N, B, H · D) to (B, H, N, D)."""
        return x.view(*x.shape[:2], self.n_head, self.d_head).permute(1, 2, 0, 3)

    def post_attention(self, h: Tensor, attn_vec: Tensor, residual: bool = True) -> Tensor:
        """Return the output of a layer for that of its attention, (N, B, H · D)."""
        output = attn_vec @ self.o.flatten(1).T
        if self.training:
            output = self.dropout(output)
        return self.layer_norm(output + h if residual else output)  # type: ignore[no-any-return]

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        table: Tensor,
        seg_mat: Tensor | None,
        mask: StreamMask,
        *,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output of one stream, (N, B, H · D), and the weights, (N, M, B, H), if they are requested.

        Args:
            q: (B, H, N, D).
            k, v: (B, H, M, D).
            table: the projected embeddings from the relative position 1 − M on, (H, R, D).
            seg_mat: which pairs are in the same segment and which are not, (N, M, B, 2).
            mask: the mask of the stream.
            output_attentions: return the weights.
        """
        n, m = q.shape[2], k.shape[2]
        missing = n + m - 1 - table.shape[1]
        if missing > 0:  # keys after the query, which causal attention masks
            table = pad(table, (0, 0, 0, missing))
        scheme = PositionTerms(
            key_table=table,
            biases=torch.stack((self.r_w_bias, self.r_r_bias)),
            table_start=1 - m,
            is_full_table=True,
        )
        segments = None if seg_mat is None else self.segment_scores(q, seg_mat)
        p = dropout_probability(self, self.dropout)
        output, weights = fused_attention(
            self,
            q,
            k,
            v,
            mask.visible,
            scheme=scheme,
            scale=self.scale,
            dropout=p,
            position_bias=segments,
            output_attentions=output_attentions,
            real_tokens=mask.real,
            reads_padding=True,  # classifiers read the last position
            is_recorded=not mask.is_second,
        )
        if mask.visible is not None and mask.is_second:
            is_empty = ~mask.visible.any(dim=-1, keepdim=True)  # (B, 1, N, 1)
            rows = rows_to_compute(is_empty)
            empty_weights = equal_weights(self.scores_of_rows(q, k, table, segments, rows))
            of_rows = (dropout(empty_weights, p) @ v).transpose(1, 2).flatten(2)  # (B, E, H · D)
            of_rows = torch.where(is_empty[:, 0, rows], of_rows.to(output.dtype), output[:, rows])
            output = output.index_copy(1, rows, of_rows)
            weights = None if weights is None else weights.masked_fill(is_empty, 1.0 / m)
        return output.transpose(0, 1), None if weights is None else weights.permute(2, 3, 0, 1)

    def scores_of_rows(self, q: Tensor, k: Tensor, table: Tensor, segments: Tensor | None, rows: Tensor) -> Tensor:
        """Return the scaled scores of some queries without the mask, (B, H, E, M)."""
        n, m = q.shape[2], k.shape[2]
        q = q[:, :, rows]
        content = (q + self.r_w_bias[:, None]) @ k.mT
        by_row = (q + self.r_r_bias[:, None]) @ table.mT  # (B, H, E, R)
        index = torch.arange(m, device=q.device) - rows[:, None] + n - 1  # row 0 is the relative position 1 − M
        scores: Tensor = (content + by_row.gather(3, index.expand(*q.shape[:2], -1, -1))) * self.scale
        return scores if segments is None else scores + segments[:, :, rows]

    def segment_scores(self, q: Tensor, seg_mat: Tensor) -> Tensor:
        """Return the scaled scores of pairs in the same segment and in different ones, (B, H, N, M)."""
        by_segment = (q + self.r_s_bias[:, None]) @ self.seg_embed.permute(1, 2, 0) * self.scale  # (B, H, N, 2)
        same, different = by_segment[..., :1], by_segment[..., 1:]
        is_different = seg_mat[..., 1].permute(2, 0, 1)[:, None] > 0
        return torch.where(is_different, different, same)


#: The masks of the texts that a model reads. A model passes the same ones to all of its layers. The key is the mask of
#: the first stream; the value is a reference to that of the second one, the versions of both, which count their changes
#: in place, and the result.
_masks: Any = WeakTensorKeyDictionary()


def stream_masks(hidden_h: Tensor | None, hidden_g: Tensor | None) -> tuple[StreamMask, StreamMask]:
    """Return the masks of both streams for those of the model, (N, M, B, 1), which are 1 where a key is hidden."""
    if hidden_h is None or hidden_g is None or torch.compiler.is_compiling():
        return build_masks(hidden_h, hidden_g)
    versions = [None if mask.is_inference() else mask._version for mask in (hidden_h, hidden_g)]
    find_second, stored_versions, masks = _masks.get(hidden_h, (None, None, None))
    if find_second is None or find_second() is not hidden_g or stored_versions != versions:
        masks = build_masks(hidden_h, hidden_g)
        _masks[hidden_h] = weakref.ref(hidden_g), versions, masks
    return masks  # type: ignore[no-any-return]


def build_masks(hidden_h: Tensor | None, hidden_g: Tensor | None) -> tuple[StreamMask, StreamMask]:
    real = None if hidden_g is None else (hidden_g[..., 0] == 0).any(dim=0).T
    return StreamMask(visible_keys(hidden_h), real, False), StreamMask(visible_keys(hidden_g), real, True)


def visible_keys(hidden: Tensor | None) -> Tensor | None:
    """Return which keys are visible, (B, 1, N, M), or None if all are. Compiled code cannot depend on values."""
    if hidden is None:
        return None
    visible = hidden.permute(2, 3, 0, 1) == 0
    return None if not torch.compiler.is_compiling() and bool(visible.all()) else visible


def rows_to_compute(is_empty: Tensor) -> Tensor:
    """Return the queries that see no key in some text, (E,). Compiled code, which cannot depend on values, gets all."""
    n = is_empty.shape[2]
    if torch.compiler.is_compiling():
        return torch.arange(n, device=is_empty.device)
    return is_empty.any(dim=0).view(n).nonzero().view(-1)


def equal_weights(scores: Tensor) -> Tensor:
    """Return weights that are all equal, with the gradients of a softmax of the scores at this point."""
    return torch.softmax(scores - scores.detach(), dim=-1)


def build_example(model: Any) -> dict[str, Any]:
    """Return two random texts, the first one with padding, which causal models of several texts do not accept."""
    batch = text_example(model)
    return batch if model.config.attn_type == "bi" else {"input_ids": batch["input_ids"]}


def why_unsupported(config: Any) -> str:
    """Return why a model with this configuration cannot be fused."""
    if not config.bi_data:
        return ""
    return "has bi_data=True, so that the texts of a batch have different positions, which cannot be fused"


FAMILY = Family(
    name="XLNet",
    layers={XLNetRelativeAttention: FusedXLNetRelativeAttention},
    num_maps=5,
    build_example=build_example,
    why_unsupported=why_unsupported,
)
