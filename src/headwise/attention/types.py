"""One attention problem, validated: what `attend` hands to a backend.

Every position scheme is a choice of terms in one form (B batch, H heads, N queries, M keys; query i stands at position
offset + i, so its relative position to key j is r = j − offset − i):

    x_ij = scale · ((q_i + b₀)·k_j + (q_i + b₁)·key_table[c(r)])     c(r) = clip(r − first, 0, rows − 1)
    s_ij = x_ij,  or  max(x_ij, 0) · f[|r|],  x_ij · f[|r|],  x_ij + f[|r|]
    P    = softmax_j(s_ij + bias_ij), masked keys at −∞; a row without a key is zero
    W    = P,  or  P ∘ f,  P + f  (masked keys stay zero)
    o_i  = Σ_j drop(W_ij) · (v_j + value_table[c(r)])
    received_j = Σ_i W_ij,   squares_i = Σ_j W_ij²,   log_sums_i = log Σ_j exp(s_ij + bias_ij)
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

Adjust = Literal["early-multiply", "early-add", "late-multiply", "late-add"]


@dataclass(frozen=True, kw_only=True)
class SchemeTerms:
    """A position scheme's part of the problem: its queries and keys, and the terms of the form that it uses."""

    q: Tensor  # (B, H, N, e): the queries as the scheme compares them; e may exceed the head width
    k: Tensor  # (B, G, M, e)
    key_table: Tensor | None = None  # (H or 1, rows, e)
    biases: Tensor | None = None  # b₀ and b₁ of each head, (2, H, e); None: 0
    value_table: Tensor | None = None  # (H or 1, rows, width of v)
    first: int = 0  # the relative position that the tables' first row stands for
    covers: bool = False  # the tables have a row for every relative position there is: none is clipped
    distance: Callable[[int], Tensor] | None = None  # f of the distances 0 … length−1, (H or 1, length)
    sigmoid: tuple[Tensor, Tensor] | None = None  # w and v, (H,) each, where f is the learnable sigmoid of w · distance
    adjust: Adjust = "early-multiply"
    rectify: bool = False

    @property
    def content_q(self) -> Tensor:
        """The queries that meet keys, q + b₀."""
        return self.q if self.biases is None else self.q + self.biases[0][:, None]

    @property
    def relative_q(self) -> Tensor:
        """The queries that meet the keys' table, q + b₁."""
        return self.q if self.biases is None else self.q + self.biases[1][:, None]


@dataclass(frozen=True, kw_only=True)
class AttentionInputs:
    terms: SchemeTerms
    v: Tensor  # (B, G, M, d); G key heads, H a multiple of G
    scale: float
    offset: int = 0
    causal: bool = False
    key_padding: Tensor | None = None  # (B, M), True: a real key
    query_padding: Tensor | None = None  # (B, N), True: a real query
    mask: Tensor | None = None  # broadcastable to (B, H, N, M), True: may be attended
    bias: Tensor | None = None  # broadcastable to (B, H, N, M)
    dropout: float = 0.0
    want_received: bool = False
    want_squares: bool = False
    want_log_sums: bool = False
    want_weights: bool = False
    cu_seqlens: Tensor | None = None  # cumulative lengths (S+1,): S texts, one after another in a batch of one
    out_dtype: torch.dtype = torch.float32

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, H, N, M."""
        batch, heads, queries, _ = self.terms.q.shape
        return batch, heads, queries, self.v.shape[2]

    def distance(self) -> Tensor | None:
        """f of every distance there is."""
        _, _, n, m = self.shape
        return None if self.terms.distance is None else self.terms.distance(max(self.offset + n, m))

    @property
    def compute_dtype(self) -> torch.dtype:
        """Scores and sums are float32 for half-precision inputs, else of the inputs' own precision."""
        return compute_dtype(self.out_dtype)

    def texts(self) -> list["AttentionInputs"]:
        """A cu_seqlens batch as a problem for each text."""
        assert self.cu_seqlens is not None
        lengths = self.cu_seqlens.tolist()
        return [self._text(slice(start, end)) for start, end in pairwise(lengths) if end > start]

    def _text(self, place: slice) -> "AttentionInputs":
        terms = replace(self.terms, q=self.terms.q[:, :, place], k=self.terms.k[:, :, place])
        return replace(self, terms=terms, v=self.v[:, :, place], cu_seqlens=None)

    @property
    def masked(self) -> bool:
        """Whether a row can be left without a key."""
        masks = (self.key_padding, self.query_padding, self.mask, self.bias)
        return self.causal or any(mask is not None for mask in masks)


@dataclass(frozen=True)
class AttentionOutput:
    """What a backend returns; all but the output are None unless they were asked for."""

    output: Tensor  # (B, H, N, d)
    received: Tensor | None = None  # (B, H, M)
    weight_norms: Tensor | None = None  # (B, H, N)
    lse: Tensor | None = None  # (B, H, N), −∞ for a row without a key
    weights: Tensor | None = None  # (B, H, N, M)


def joined(texts: list[AttentionOutput]) -> AttentionOutput:
    """What the texts of a cu_seqlens batch were given, one after another."""

    def whole(parts: list[Tensor | None]) -> Tensor | None:
        present = [part for part in parts if part is not None]
        return torch.cat(present, dim=2) if present else None

    return AttentionOutput(
        torch.cat([text.output for text in texts], dim=2),
        received=whole([text.received for text in texts]),
        weight_norms=whole([text.weight_norms for text in texts]),
        lse=whole([text.lse for text in texts]),
    )


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
