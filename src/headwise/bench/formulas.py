"""The papers' formulas as one writes them down: in plain PyTorch, and as score functions of FlexAttention.

Written without our operator, whose rivals they are: they share its parameters, and nothing else. What depends on the
length alone (sinusoids, block masks) is made beforehand, as careful users do.

NAIVE[scheme](scheme, waves, causal) gives a function of q, k, v (B, H, N, d) that returns (output, weights);
FLEX[scheme](scheme, waves, q) gives the queries and the score function that FlexAttention is called with.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from headwise.attention import DistanceAware, Plain, RelativePositions, Tener, TransformerXL

Attention = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def plain(scheme: Plain, waves: Tensor, causal: bool) -> Attention:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weights = softmax(q @ k.mT * q.shape[-1] ** -0.5, causal)
        return weights @ v, weights

    return attention


def distance_aware(scheme: DistanceAware, waves: Tensor, causal: bool) -> Attention:
    """With the logistic function: the gradient of eq. 5 as printed is NaN where its exponential overflows."""
    w, bias = parameters(scheme.w, scheme.v)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weighted = w[:, None, None] * relative_positions(q).abs()
        f = (1 + bias.exp())[:, None, None] * torch.sigmoid(weighted - bias[:, None, None])
        weights = softmax((q @ k.mT).relu() * f.to(q.dtype) * q.shape[-1] ** -0.5, causal)
        return weights @ v, weights

    return attention


def relative_position_representations(scheme: RelativePositions, waves: Tensor, causal: bool) -> Attention:
    """Products with the tables first, then gather and scatter: on a CPU six to eight times as fast as gathering an
    (N, N, d) tensor of vectors. In half precision the scattered sums are inexact."""
    key_table, value_table = (table[0] for table in parameters(scheme.key_table, scheme.value_table))

    def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        clipped = (relative_positions(q).clamp(-scheme.k, scheme.k) + scheme.k).expand(*q.shape[:2], -1, -1)
        scores = q @ k.mT + (q @ key_table.to(q.dtype).mT).gather(-1, clipped)
        weights = softmax(scores * q.shape[-1] ** -0.5, causal)
        by_row = weights.new_zeros(*q.shape[:3], len(value_table)).scatter_add(-1, clipped, weights)
        return weights @ v + by_row @ value_table.to(q.dtype), weights

    return attention


def transformer_xl(scheme: TransformerXL, waves: Tensor, causal: bool) -> Attention:
    """With the shift of the paper's appendix B."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        u, bias = (x[:, None].to(q.dtype) for x in (scheme.u, scheme.v))
        scores = (q + u) @ k.mT + shift((q + bias) @ projected(scheme, waves, q).mT)
        weights = softmax(scores * q.shape[-1] ** -0.5, causal)
        return weights @ v, weights

    return attention


def tener(scheme: Tener, waves: Tensor, causal: bool) -> Attention:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        u, bias = (x[:, None].to(q.dtype) for x in (scheme.u, scheme.v))
        weights = softmax((q + u) @ k.mT + shift((q + bias) @ waves.to(q.dtype).mT), causal)
        return weights @ v, weights

    return attention


def flex_plain(scheme: Plain, waves: Tensor, q: Tensor) -> tuple[Tensor, ScoreMod | None]:
    return q, None


def flex_distance_aware(scheme: DistanceAware, waves: Tensor, q: Tensor) -> tuple[Tensor, ScoreMod]:
    w, bias = parameters(scheme.w, scheme.v)

    def adjusted(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        own = bias[h]  # once: FlexAttention's backward takes no tensor that is indexed twice
        return score.relu() * (1 + own.exp()) * torch.sigmoid(w[h] * (i - j).abs() - own)

    return q, adjusted


def flex_relative_position_representations(
    scheme: RelativePositions, waves: Tensor, q: Tensor
) -> tuple[Tensor, ScoreMod]:
    """The keys' table only: a score function cannot reach the values."""
    (table,) = parameters(scheme.key_table)
    by_row: Tensor = q @ table[0].to(q.dtype).mT * q.shape[-1] ** -0.5

    def biased(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + by_row[b, h, i, (j - i).clamp(-scheme.k, scheme.k) + scheme.k]

    return q, biased


def flex_transformer_xl(scheme: TransformerXL, waves: Tensor, q: Tensor) -> tuple[Tensor, ScoreMod]:
    u, bias = (x[:, None].to(q.dtype) for x in (scheme.u, scheme.v))
    return q + u, by_difference((q + bias) @ projected(scheme, waves, q).mT * q.shape[-1] ** -0.5)


def flex_tener(scheme: Tener, waves: Tensor, q: Tensor) -> tuple[Tensor, ScoreMod]:
    u, bias = (x[:, None].to(q.dtype) for x in (scheme.u, scheme.v))
    return q + u, by_difference((q + bias) @ waves.to(q.dtype).mT)


def flex(name: str, scheme: Any, waves: Tensor, causal: bool) -> Attention:
    scale = 1.0 if name == "tener" else None  # None: 1/√d
    length = (len(waves) + 1) // 2
    blocks = create_block_mask(up_to_query, None, None, length, length, device=waves.device) if causal else None

    def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
        queries, score_mod = FLEX[name](scheme, waves, q)
        output = flex_attention(queries, k, v, score_mod=score_mod, block_mask=blocks, scale=scale)
        assert isinstance(output, Tensor)
        return (output,)

    return attention


def up_to_query(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return j <= i


def by_difference(by_row: Tensor) -> ScoreMod:
    """(B, H, N, 2N−1), a column for each difference i − j from N−1 down."""
    last = by_row.shape[2] - 1

    def biased(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + by_row[b, h, i, j - i + last]

    return biased


def shift(by_row: Tensor) -> Tensor:
    """(B, H, N, 2N−1), a column for each difference i − j from N−1 down → (B, H, N, N), a column for each j."""
    *batch, n, differences = by_row.shape
    padded = torch.nn.functional.pad(by_row, (1, 0)).view(*batch, differences + 1, n)
    return padded[..., 1:, :].reshape(*batch, n, differences)[..., :n]


def sinusoids(length: int, dim: int) -> Tensor:
    """[sin ωt ; cos ωt] for the differences t from length−1 down to 1−length, (2·length−1, dim)."""
    differences = torch.arange(length - 1, -length, -1, dtype=torch.float64)
    frequencies = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = differences[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def projected(scheme: TransformerXL, waves: Tensor, q: Tensor) -> Tensor:
    """(H, 2N−1, d)."""
    relative: Tensor = scheme.projection(waves).to(q.dtype)
    return relative.view(len(waves), scheme.heads, -1).transpose(0, 1)


def relative_positions(q: Tensor) -> Tensor:
    """j − i, (N, N)."""
    positions = torch.arange(q.shape[2], device=q.device)
    return positions - positions[:, None]


def softmax(scores: Tensor, causal: bool) -> Tensor:
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    return scores.softmax(dim=-1)


def parameters(*optional: Tensor | None) -> list[Tensor]:
    assert all(x is not None for x in optional)
    return [x for x in optional if x is not None]


NAIVE: dict[str, Callable[[Any, Tensor, bool], Attention]] = {
    "plain": plain,
    "rpr": relative_position_representations,
    "transformer-xl": transformer_xl,
    "tener": tener,
    "distance-aware": distance_aware,
}

FLEX: dict[str, Callable[[Any, Tensor, Tensor], tuple[Tensor, ScoreMod | None]]] = {
    "plain": flex_plain,
    "rpr": flex_relative_position_representations,
    "transformer-xl": flex_transformer_xl,
    "tener": flex_tener,
    "distance-aware": flex_distance_aware,
}
