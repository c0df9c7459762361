"""Inputs and outputs of the attention backends.

All position schemes are special cases of one set of equations. Query i has position offset + i, key j has position j,
and r = j − (offset + i) is their relative position:

    x_ij = scale · ((q_i + b₀)·k_j + (q_i + b₁)·key_table[c(r)] + k_j·query_table[c(r)] + position_q_i·position_k_j)
           with c(r) = clip(r − table_start, 0, rows − 1)
    s_ij = x_ij,  or  max(x_ij, 0) · f[|r|],  x_ij · f[|r|],  x_ij + f[|r|]
    s_ij = s_ij + relative_bias[c(r)]
    s_ij = softcap · tanh(s_ij / softcap), with a softcap
    P    = softmax_j(s_ij + bias_ij), with masked keys at −∞; rows without any key are zero
    W    = P,  or  P ∘ f,  P + f  (masked keys stay zero)
    o_i  = Σ_j dropout(W_ij) · (v_j + value_table[c(r)])
    received_j = Σ_i W_ij,   weight_norms_i = Σ_j W_ij²,   lse_i = log Σ_j exp(s_ij + bias_ij)

f are distance coefficients, and b₀ and b₁ are the biases u and v of Transformer-XL. A sink is a further key of the
softmax, with a given score and without a value. It is part of lse and not of W.

Axes: B batch, H query heads, G key heads, N queries, M keys, E width of q and k, P width of position_q and position_k,
D width of v, R table rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Adjust = Literal["early-multiply", "early-add", "late-multiply", "late-add"]


@dataclass(frozen=True, kw_only=True)
class SchemeTerms:
    """Terms that a position scheme contributes to the equations of attention; what a `Scheme` returns.

    A scheme fills in the terms that it uses. The kernels compute all of them except `coefficients` without `sigmoid` or
    `slopes`, tables together with `sigmoid` or `slopes`, and `value_table` or `relative_bias` together with
    `query_table` or with `is_full_table`. `position_q` cannot be combined with `key_table`, `query_table` or `biases`.

    Example:
        >>> import torch, headwise as hw
        >>> class LearnedAlibi(hw.Scheme):
        ...     def __init__(self, heads: int) -> None:
        ...         super().__init__()
        ...         self.heads = heads
        ...         self.slopes = torch.nn.Parameter(-torch.logspace(-1, -8, heads, base=2))
        ...
        ...     def forward(self, q, k, *, offset=0):
        ...         return hw.SchemeTerms(q=q, k=k, slopes=self.slopes)
        >>> x = torch.randn(2, 4, 10, 16)
        >>> hw.attend(x, x, x, scheme=LearnedAlibi(heads=4)).shape
        torch.Size([2, 4, 10, 16])
    """

    q: Tensor  # (B, H, N, E)
    k: Tensor  # (B, G, M, E)
    position_q: Tensor | None = None  # (B, H, N, P): multiplied with position_k (TENER)
    position_k: Tensor | None = None  # (B or 1, G or 1, M, P)
    key_table: Tensor | None = None  # (H or 1, R, E)
    biases: Tensor | None = None  # (2, H, E): b₀ and b₁ of each head; None means 0
    query_table: Tensor | None = None  # (H or 1, R, E), multiplied with keys (DeBERTa)
    value_table: Tensor | None = None  # (H or 1, R, D)
    relative_bias: Tensor | None = None  # (H or 1, R): a number for each relative position (T5)
    table_start: int = 0  # relative position of the tables' row 0
    is_full_table: bool = False  # the tables have a row for every relative position, so no position is clipped
    coefficients: Callable[[int], Tensor] | None = None  # length → f of the distances 0 … length−1, (H or 1, length)
    sigmoid: tuple[Tensor, Tensor] | None = None  # w and v, (H,) each, if f is the learnable sigmoid of w · distance
    slopes: Tensor | None = None  # (H,): f is slope · distance and is added early (ALiBi); replaces coefficients
    adjust: Adjust = "early-multiply"
    rectify: bool = False  # apply a ReLU to x before it is multiplied by f

    def __post_init__(self) -> None:
        if self.slopes is not None:
            object.__setattr__(self, "coefficients", partial(_linear_coefficients, self.slopes))
            object.__setattr__(self, "adjust", "early-add")
        if self.position_q is not None and any(x is not None for x in (self.key_table, self.query_table, self.biases)):
            raise ValueError("position_q cannot be combined with key_table, query_table or biases")
        if (self.position_q is None) != (self.position_k is None):
            raise ValueError("position_q and position_k must be given together")

    @property
    def content_q(self) -> Tensor:
        """Queries to multiply with the keys, q + b₀."""
        return self.q if self.biases is None else self.q + self.biases[0][:, None]

    def widened(self) -> "SchemeTerms":
        """Return the same terms with position_q and position_k as further columns of q and k."""
        if self.position_q is None or self.position_k is None:
            return self
        position_k = self.position_k.expand(*self.k.shape[:3], -1)
        return replace(
            self,
            q=torch.cat([self.q, self.position_q.to(self.q.dtype)], dim=-1),
            k=torch.cat([self.k, position_k.to(self.k.dtype)], dim=-1),
            position_q=None,
            position_k=None,
        )

    def select(self, queries: slice, keys: slice) -> "SchemeTerms":
        """Return the terms of a range of queries and of keys."""
        return replace(
            self,
            q=self.q[:, :, queries],
            k=self.k[:, :, keys],
            position_q=None if self.position_q is None else self.position_q[:, :, queries],
            position_k=None if self.position_k is None else self.position_k[:, :, keys],
        )

    @property
    def relative_q(self) -> Tensor:
        """Queries to multiply with the key table, q + b₁."""
        return self.q if self.biases is None else self.q + self.biases[1][:, None]


@dataclass(frozen=True, kw_only=True)
class AttentionInputs:
    """Validated arguments of `attend`, as the backends receive them."""

    terms: SchemeTerms
    v: Tensor  # (B, G, M, D)
    scale: float
    offset: int = 0
    causal: bool = False  # never together with a window, which contains it
    window: tuple[int, int] | None = None  # −left ≤ r ≤ right; −1 means no limit on that side
    softcap: float | None = None
    sinks: Tensor | None = None  # (H,)
    key_padding: Tensor | None = None  # (B, M), True for real keys
    query_padding: Tensor | None = None  # (B, N), True for real queries
    mask: Tensor | None = None  # broadcastable to (B, H, N, M), True where attention is allowed
    bias: Tensor | None = None  # `position_bias` of `attend`, broadcastable to (B, H, N, M)
    dropout: float = 0.0
    want_received: bool = False
    want_weight_norms: bool = False
    want_lse: bool = False
    want_weights: bool = False
    cu_seqlens: Tensor | None = None  # (S+1,): cumulative lengths of S sequences, concatenated in a batch of one
    cu_seqlens_k: Tensor | None = None  # (S+1,): those of the keys' sequences; None if they are those of the queries
    is_aligned: bool = (
        False  # the last query of a sequence has the position of its last key, not the first of the first
    )
    out_dtype: torch.dtype = torch.float32

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, H, N, M."""
        batch, heads, n, _ = self.terms.q.shape
        return batch, heads, n, self.v.shape[2]

    def distance_coefficients(self) -> Tensor | None:
        """Compute f for all distances between the queries and keys, (H or 1, distances)."""
        _, _, n, m = self.shape
        return None if self.terms.coefficients is None else self.terms.coefficients(max(self.offset + n, m))

    @property
    def compute_dtype(self) -> torch.dtype:
        """Precision of scores and sums."""
        return compute_dtype(self.out_dtype)

    @property
    def may_have_empty_rows(self) -> bool:
        """Whether some query may have no key to attend to."""
        masks = (self.key_padding, self.query_padding, self.mask, self.bias)
        return self.causal or self.window is not None or any(mask is not None for mask in masks)

    def split_sequences(self) -> list["AttentionInputs"]:
        """Return the inputs of each sequence of a `cu_seqlens` batch that has queries or keys, or of an empty one."""
        assert self.cu_seqlens is not None
        sequences = sequence_slices(self.cu_seqlens, self.cu_seqlens_k, is_aligned=self.is_aligned)
        return [self._slice_sequence(sequence) for sequence in sequences]

    def _slice_sequence(self, sequence: "SequenceSlice") -> "AttentionInputs":
        queries, keys, offset = sequence
        terms = self.terms.select(queries, keys)
        return replace(self, terms=terms, v=self.v[:, :, keys], offset=offset, cu_seqlens=None, cu_seqlens_k=None)


class SequenceSlice(NamedTuple):
    """One sequence of a `cu_seqlens` batch."""

    queries: slice
    keys: slice
    offset: int  # position of the first query, relative to that of the first key


def sequence_slices(cu_seqlens: Tensor, cu_seqlens_k: Tensor | None, *, is_aligned: bool) -> list[SequenceSlice]:
    """Return the sequences that have queries or keys, or an empty one if none has.

    Reads the tensors; see `AttentionInputs` for the arguments.
    """
    bounds = list(pairwise(cu_seqlens.tolist()))
    key_bounds = bounds if cu_seqlens_k is None else list(pairwise(cu_seqlens_k.tolist()))
    sequences = [
        SequenceSlice(slice(start, end), slice(key_start, key_end), max(0, num_keys - num_queries) * is_aligned)
        for (start, end), (key_start, key_end) in zip(bounds, key_bounds, strict=True)
        if (num_queries := end - start) + (num_keys := key_end - key_start)
    ]
    return sequences or [SequenceSlice(slice(0, 0), slice(0, 0), 0)]


class AttentionOutput(NamedTuple):
    """Results of a backend. Results that were not requested are None."""

    output: Tensor  # (B, H, N, D)
    received: Tensor | None = None  # (B, H, M)
    weight_norms: Tensor | None = None  # (B, H, N)
    lse: Tensor | None = None  # (B, H, N), −∞ for rows without any key
    weights: Tensor | None = None  # (B, H, N, M)


def _linear_coefficients(slopes: Tensor, length: int) -> Tensor:
    """Return slope · distance for the distances 0 … length−1, (heads, length)."""
    return slopes[:, None] * torch.arange(length, device=slopes.device, dtype=slopes.dtype)


def concatenate_sequences(outputs: list[AttentionOutput]) -> AttentionOutput:
    """Concatenate the results of the sequences of a `cu_seqlens` batch along the token axis."""
    fields = ([x for x in field if x is not None] for field in zip(*outputs, strict=True))
    return AttentionOutput(*(torch.cat(field, dim=2) if field else None for field in fields))  # type: ignore[arg-type]


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the precision of scores and sums for inputs of this dtype: at least float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32
