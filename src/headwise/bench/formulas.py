"""The papers' formulas in plain PyTorch, and as score modifications of FlexAttention.

They share the parameters of our schemes and no other code. Tensors that depend only on the length (sinusoidal
embeddings, block masks) are computed beforehand.

Axes: B batch, H heads, N queries and keys, D head width, R table rows,
T = 2N−1 differences i − j, from N−1 down to 1−N.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from headwise.attention import DistanceAware, Plain, RelativePositions, Tener, TransformerXL

Attention = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def plain(scheme: Plain, embeddings: Tensor, causal: bool) -> Attention:
    """Scaled dot-product attention."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weights = softmax(q @ k.mT * q.shape[-1] ** -0.5, causal)
        return weights @ v, weights

    return attention


def distance_aware(scheme: DistanceAware, embeddings: Tensor, causal: bool) -> Attention:
    """Distance-aware attention, with the logistic function: the exponentials of eq. 5 overflow to NaN gradients."""
    w_H, v_H = require(scheme.w, scheme.v)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weighted_HNN = w_H[:, None, None] * relative_positions(q).abs()
        f_HNN = (1 + v_H.exp())[:, None, None] * torch.sigmoid(weighted_HNN - v_H[:, None, None])
        weights = softmax((q @ k.mT).relu() * f_HNN.to(q.dtype) * q.shape[-1] ** -0.5, causal)
        return weights @ v, weights

    return attention


def rpr(scheme: RelativePositions, embeddings: Tensor, causal: bool) -> Attention:
    """Relative position representations: products with the table rows, then gather and scatter.

    On a CPU this is six to eight times as fast as gathering vectors to an (N, N, D) tensor. In half precision the
    scattered sums are inexact.
    """
    key_table_RD, value_table_RD = (table[0] for table in require(scheme.key_table, scheme.value_table))

    def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        rows_BHNN = (relative_positions(q).clamp(-scheme.k, scheme.k) + scheme.k).expand(*q.shape[:2], -1, -1)
        scores = q @ k.mT + (q @ key_table_RD.to(q.dtype).mT).gather(-1, rows_BHNN)
        weights = softmax(scores * q.shape[-1] ** -0.5, causal)
        weights_BHNR = weights.new_zeros(*q.shape[:3], len(value_table_RD)).scatter_add(-1, rows_BHNN, weights)
        return weights @ v + weights_BHNR @ value_table_RD.to(q.dtype), weights

    return attention


def transformer_xl(scheme: TransformerXL, embeddings: Tensor, causal: bool) -> Attention:
    """Transformer-XL's attention, with the shift of the paper's appendix B."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        u_H1D, v_H1D = (x[:, None].to(q.dtype) for x in (scheme.u, scheme.v))
        scores = (q + u_H1D) @ k.mT + shift((q + v_H1D) @ project_embeddings(scheme, embeddings, q).mT)
        weights = softmax(scores * q.shape[-1] ** -0.5, causal)
        return weights @ v, weights

    return attention


def tener(scheme: Tener, embeddings: Tensor, causal: bool) -> Attention:
    """TENER's attention."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        u_H1D, v_H1D = (x[:, None].to(q.dtype) for x in (scheme.u, scheme.v))
        weights = softmax((q + u_H1D) @ k.mT + shift((q + v_H1D) @ embeddings.to(q.dtype).mT), causal)
        return weights @ v, weights

    return attention


def flex_plain(scheme: Plain, embeddings: Tensor, q: Tensor) -> tuple[Tensor, ScoreMod | None]:
    return q, None


def flex_distance_aware(scheme: DistanceAware, embeddings: Tensor, q: Tensor) -> tuple[Tensor, ScoreMod]:
    w_H, v_H = require(scheme.w, scheme.v)

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        v = v_H[h]  # FlexAttention's backward pass rejects tensors that are indexed twice
        return score.relu() * (1 + v.exp()) * torch.sigmoid(w_H[h] * (i - j).abs() - v)

    return q, score_mod


def flex_rpr(scheme: RelativePositions, embeddings: Tensor, q: Tensor) -> tuple[Tensor, ScoreMod]:
    """Only the key table: a score modification has no access to the values."""
    (key_table,) = require(scheme.key_table)
    scores_BHNR: Tensor = q @ key_table[0].to(q.dtype).mT * q.shape[-1] ** -0.5

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + scores_BHNR[b, h, i, (j - i).clamp(-scheme.k, scheme.k) + scheme.k]

    return q, score_mod


def flex_transformer_xl(scheme: TransformerXL, embeddings: Tensor, q: Tensor) -> tuple[Tensor, ScoreMod]:
    u_H1D, v_H1D = (x[:, None].to(q.dtype) for x in (scheme.u, scheme.v))
    scores_BHNT = (q + v_H1D) @ project_embeddings(scheme, embeddings, q).mT * q.shape[-1] ** -0.5
    return q + u_H1D, add_by_difference(scores_BHNT)


def flex_tener(scheme: Tener, embeddings: Tensor, q: Tensor) -> tuple[Tensor, ScoreMod]:
    u_H1D, v_H1D = (x[:, None].to(q.dtype) for x in (scheme.u, scheme.v))
    return q + u_H1D, add_by_difference((q + v_H1D) @ embeddings.to(q.dtype).mT)


#: Functions of (scheme, embeddings, causal) that return attention as a function of q, k and v (B, H, N, D), which
#: returns (output, weights).
NAIVE: dict[str, Callable[[Any, Tensor, bool], Attention]] = {
    "plain": plain,
    "rpr": rpr,
    "transformer-xl": transformer_xl,
    "tener": tener,
    "distance-aware": distance_aware,
}

#: Functions of (scheme, embeddings, q) that return the queries and the score modification for FlexAttention.
FLEX: dict[str, Callable[[Any, Tensor, Tensor], tuple[Tensor, ScoreMod | None]]] = {
    "plain": flex_plain,
    "rpr": flex_rpr,
    "transformer-xl": flex_transformer_xl,
    "tener": flex_tener,
    "distance-aware": flex_distance_aware,
}


def flex(name: str, scheme: Any, embeddings: Tensor, causal: bool, *, grouped: bool = False) -> Attention:
    """Return a scheme's attention by FlexAttention; with `grouped`, several heads share a head of keys and values."""
    scale = 1.0 if name == "tener" else None  # None: 1/√d
    length = (len(embeddings) + 1) // 2
    block_mask = None
    if causal:
        block_mask = create_block_mask(causal_mask_mod, None, None, length, length, device=embeddings.device)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
        queries, score_mod = FLEX[name](scheme, embeddings, q)
        options: dict[str, Any] = {"block_mask": block_mask, "scale": scale, "enable_gqa": grouped}
        output = flex_attention(queries, k, v, score_mod=score_mod, **options)
        assert isinstance(output, Tensor)
        return (output,)

    return attention


def causal_mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return j <= i


def add_by_difference(scores_BHNT: Tensor) -> ScoreMod:
    """Return a score modification that adds the score of the difference i − j."""
    last = scores_BHNT.shape[2] - 1

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + scores_BHNT[b, h, i, j - i + last]

    return score_mod


def shift(scores_BHNT: Tensor) -> Tensor:
    """Convert (B, H, N, T), a column per difference i − j, to (B, H, N, N), a column per key j."""
    *batch, n, differences = scores_BHNT.shape
    padded = torch.nn.functional.pad(scores_BHNT, (1, 0)).view(*batch, differences + 1, n)
    return padded[..., 1:, :].reshape(*batch, n, differences)[..., :n]


def sinusoids(length: int, dim: int) -> Tensor:
    """Return the embeddings [sin ωt ; cos ωt] of the differences t, (T, dim)."""
    differences = torch.arange(length - 1, -length, -1, dtype=torch.float64)
    frequencies = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = differences[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def project_embeddings(scheme: TransformerXL, embeddings: Tensor, q: Tensor) -> Tensor:
    """Project the embeddings for each head, (H, T, D), in q's dtype."""
    projected: Tensor = scheme.projection(embeddings).to(q.dtype)
    return projected.view(len(embeddings), scheme.heads, -1).transpose(0, 1)


def relative_positions(q: Tensor) -> Tensor:
    """Return j − i of all pairs, (N, N)."""
    positions = torch.arange(q.shape[2], device=q.device)
    return positions - positions[:, None]


def softmax(scores: Tensor, causal: bool) -> Tensor:
    """Softmax over keys, with later keys masked if causal."""
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    return scores.softmax(dim=-1)


def require(*optional: Tensor | None) -> list[Tensor]:
    """Return the tensors, none of which may be None."""
    assert all(x is not None for x in optional)
    return [x for x in optional if x is not None]
