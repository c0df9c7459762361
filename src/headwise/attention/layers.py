"""Transformer layers whose self-attention follows a scheme (Vaswani et al. 2017, section 3.1; the DA paper, eq. 4)."""

from typing import Literal

import torch
from torch import Tensor, nn

from headwise.attention.attend import Backend
from headwise.attention.checks import padding
from headwise.attention.multihead import Cache, MultiheadAttention
from headwise.attention.schemes import Scheme
from headwise.attention.schemes.scheme import one_of, positive

Activation = Literal["relu", "gelu"]


class FeedForward(nn.Sequential):
    """FFN(x) = activation(x W₁ + b₁) W₂ + b₂."""

    def __init__(self, dim: int, width: int, *, activation: Activation = "relu", dropout: float = 0.0) -> None:
        one_of("activation", activation, ("relu", "gelu"))
        super().__init__(
            nn.Linear(dim, width),
            nn.ReLU() if activation == "relu" else nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(width, dim),
        )


class Residual(nn.Module):
    """x + part(x) with dropout, normalised after (as in the papers) or before."""

    def __init__(self, dim: int, *, dropout: float, norm_first: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        self.norm_first = norm_first

    def before(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x) if self.norm_first else x
        return normed

    def after(self, x: Tensor, part: Tensor) -> Tensor:
        total: Tensor = x + self.dropout(part)
        return total if self.norm_first else self.norm(total)


class EncoderLayer(nn.Module):
    """Self-attention by a scheme, then a feed-forward network.

    Args:
        dim, heads, scheme, head_dim, key_heads, backend: see `MultiheadAttention`.
        feedforward: inner width of the feed-forward network, by default 4 · dim.
        dropout: of attention weights, and of each part before it is added.
        activation: `relu` or `gelu`.
        norm_first: normalise before each part instead of after it.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        scheme: Scheme | None = None,
        head_dim: int | None = None,
        key_heads: int | None = None,
        feedforward: int | None = None,
        dropout: float = 0.1,
        activation: Activation = "relu",
        norm_first: bool = False,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        self.attention = MultiheadAttention(
            dim, heads, scheme=scheme, head_dim=head_dim, key_heads=key_heads, dropout=dropout, backend=backend
        )
        self.around_attention = Residual(dim, dropout=dropout, norm_first=norm_first)
        width = 4 * dim if feedforward is None else positive("feedforward", feedforward)
        self.feedforward = FeedForward(dim, width, activation=activation, dropout=dropout)
        self.around_feedforward = Residual(dim, dropout=dropout, norm_first=norm_first)

    def forward(
        self,
        x: Tensor,
        *,
        key_padding: Tensor | None = None,
        causal: bool = False,
        memory: Tensor | None = None,
        need_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """(B, N, dim) → (B, N, dim).

        Args:
            key_padding: real tokens, (B, N) boolean or (B,) lengths; with memory, of memory and x together.
            causal: each token sees only what comes before it, and itself.
            memory: states of the tokens before x, (B, any length, dim), the last segment's in Transformer-XL's
                recurrence; no gradient flows into them.
            need_weights: also return each head's weights (B, heads, N, keys), before dropout; they cost that memory.
        """
        y = self.around_attention.before(x)
        keys = y if memory is None else torch.cat([self.around_attention.before(memory.detach()), y], dim=1)
        before = keys.shape[1] - y.shape[1]
        real = padding("key_padding", key_padding, keys.shape[0], keys.shape[1], keys.device)
        ignored = None if real is None else ~real
        attended, weights = self.attention(
            y,
            keys,
            keys,
            ignored,
            need_weights=need_weights,
            average_attn_weights=False,
            is_causal=causal,
            query_padding_mask=None if ignored is None else ignored[:, before:],
            offset=before,
        )
        x = self.around_attention.after(x, attended)
        x = self.around_feedforward.after(x, self.feedforward(self.around_feedforward.before(x)))
        return (x, weights) if need_weights else x


class DecoderLayer(nn.Module):
    """Causal self-attention by a scheme, plain cross-attention to an encoder's states, a feed-forward network.

    Relative positions mean nothing between two texts, so cross-attention is plain. Arguments as for `EncoderLayer`,
    without key_heads.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        scheme: Scheme | None = None,
        head_dim: int | None = None,
        feedforward: int | None = None,
        dropout: float = 0.1,
        activation: Activation = "relu",
        norm_first: bool = False,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        self.attention = MultiheadAttention(
            dim, heads, scheme=scheme, head_dim=head_dim, dropout=dropout, backend=backend
        )
        self.around_attention = Residual(dim, dropout=dropout, norm_first=norm_first)
        self.cross_attention = MultiheadAttention(dim, heads, head_dim=head_dim, dropout=dropout, backend=backend)
        self.around_cross_attention = Residual(dim, dropout=dropout, norm_first=norm_first)
        width = 4 * dim if feedforward is None else positive("feedforward", feedforward)
        self.feedforward = FeedForward(dim, width, activation=activation, dropout=dropout)
        self.around_feedforward = Residual(dim, dropout=dropout, norm_first=norm_first)

    def forward(
        self,
        x: Tensor,
        encoded: Tensor | tuple[Tensor, Tensor],
        *,
        key_padding: Tensor | None = None,
        encoded_padding: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """(B, N, dim) and the encoder's states (B, M, dim) → (B, N, dim).

        Args:
            encoded: the encoder's states, or what `encoded_once` made of them.
            key_padding: real target tokens, (B, all so far) boolean; without a cache also (B,) lengths.
            encoded_padding: real source tokens, (B, M) boolean or (B,) lengths.
            cache: given x's keys and values, returns all so far: x then holds only the new tokens.
        """
        y = self.around_attention.before(x)
        ignored = None
        if key_padding is not None:
            if key_padding.dim() == 1 and cache is not None:
                raise ValueError("key_padding must be a mask of all tokens so far where there is a cache, got lengths")
            length = key_padding.shape[1] if key_padding.dim() == 2 else x.shape[1]
            real = padding("key_padding", key_padding, x.shape[0], length, x.device)
            ignored = None if real is None else ~real
        attended = self.attention(y, y, y, ignored, need_weights=False, is_causal=True, cache=cache)[0]
        x = self.around_attention.after(x, attended)

        y = self.around_cross_attention.before(x)
        k, v = self.encoded_once(encoded) if isinstance(encoded, Tensor) else encoded
        real = padding("encoded_padding", encoded_padding, k.shape[0], k.shape[2], k.device)
        attended = self.cross_attention(y, k, v, None if real is None else ~real, need_weights=False)[0]
        x = self.around_cross_attention.after(x, attended)
        return self.around_feedforward.after(x, self.feedforward(self.around_feedforward.before(x)))

    def encoded_once(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """An encoder's states (B, M, dim) as this layer's keys and values, which serve every token that is decoded."""
        return self.cross_attention.keys_and_values(encoded, encoded)
