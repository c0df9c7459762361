"""One attention problem, validated: what `attend` hands to a backend.

Every position scheme is a choice of terms in one form (B batch, H heads, N queries, M keys; query i stands at position
offset + i, so its relative position to key j is r = j − offset − i):

    x_ij = scale · (q_i·k_j + relative_q_i · key_table[c(r)])        c(r) = clip(r − first, 0, rows − 1)
    s_ij = x_ij,  or  max(x_ij, 0) · f[|r|],  x_ij · f[|r|],  x_ij + f[|r|]
    P    = softmax_j(s_ij + bias_ij), masked keys at −∞; a row without a key is zero
    W    = P,  or  P ∘ f,  P + f  (masked keys stay zero)
    o_i  = Σ_j drop(W_ij) · (v_j + value_table[c(r)])
    received_j = Σ_i W_ij
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Adjust = Literal["early-multiply", "early-add", "late-multiply", "late-add"]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """A position scheme's part of the problem: its queries and keys, and the terms of the form that it uses."""

    q: Tensor  # (B, H, N, e): the queries as the scheme compares them; e may exceed the head width
    k: Tensor  # (B, G, M, e)
    key_table: Tensor | None = None  # (H or 1, rows, e)
    relative_q: Tensor | None = None  # (B, H, N, e); None: q
    value_table: Tensor | None = None  # (H or 1, rows, width of v)
    first: int = 0  # the relative position that the tables' first row stands for
    covers: bool = False  # the tables have a row for every relative position there is: none is clipped
    distance: Tensor | None = None  # f, (H or 1, at least the largest distance + 1)
    sigmoid: tuple[Tensor, Tensor] | None = None  # w and v, (H,) each, where f is the learnable sigmoid of w · distance
    adjust: Adjust = "early-multiply"
    rectify: bool = False


@dataclass(frozen=True, kw_only=True)
class Problem:
    terms: Terms
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
    want_weights: bool = False
    out_dtype: torch.dtype = torch.float32

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, H, N, M."""
        batch, heads, queries, _ = self.terms.q.shape
        return batch, heads, queries, self.v.shape[2]

    @property
    def compute_dtype(self) -> torch.dtype:
        """Scores and sums are float32 for half-precision inputs, else of the inputs' own precision."""
        return compute_dtype(self.out_dtype)

    @property
    def masked(self) -> bool:
        """Whether a row can be left without a key."""
        masks = (self.key_padding, self.query_padding, self.mask, self.bias)
        return self.causal or any(mask is not None for mask in masks)


@dataclass(frozen=True)
class Attended:
    """What a backend returns; `received` and `weights` are None unless they were asked for."""

    output: Tensor  # (B, H, N, d)
    received: Tensor | None = None  # (B, H, M)
    weights: Tensor | None = None  # (B, H, N, M)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
