"""The operators' arguments, cut into blocks, and what one block computes.

Scores are kept in units of log 2 (times log₂e), because exp2 is the fastest exponential a processor has.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.attention.diagonals import collect, relative_positions, skew, spread, toeplitz, unskew
from headwise.attention.masking import allowed

LOG2E = math.log2(math.e)

#: Pairs (query, key) in a block: 2^20 float32 weights are 4 MiB, and four such tensors are alive at a time.
BLOCK_PAIRS = 2**20
#: Fewer rows make matrix products slow; more make the n+m diagonals of a block many more than its m keys.
LEAST_ROWS, MOST_ROWS = 64, 256


@dataclass
class Arguments:
    """The operators' arguments, in their order; see `problem.py` for what each is."""

    q: Tensor
    k: Tensor
    v: Tensor
    relative_q: Tensor | None
    key_table: Tensor | None
    value_table: Tensor | None
    distance: Tensor | None
    bias: Tensor | None
    mask: Tensor | None
    key_padding: Tensor | None
    query_padding: Tensor | None
    seed: Tensor | None
    scale: float
    offset: int
    causal: bool
    first: int
    covers: bool
    adjust: str
    rectify: bool
    dropout: float
    want_received: bool
    want_squares: bool
    want_log_sums: bool
    want_weights: bool

    def blocks(self) -> Iterator["Block"]:
        """Every query once, in a fixed order: some batch rows × some heads × some queries at a time.

        Batch rows come first because they share a head's distances and tables.
        """
        batch, heads, n, _ = self.q.shape
        m = max(1, self.k.shape[2])
        rows = max(1, min(n, MOST_ROWS, max(LEAST_ROWS, BLOCK_PAIRS // m)))
        many_batch = max(1, min(batch, BLOCK_PAIRS // (rows * m)))
        many_heads = max(1, BLOCK_PAIRS // (many_batch * rows * m))
        number = 0
        for b in range(0, batch, many_batch):
            for h in range(0, heads, many_heads):
                for i in range(0, n, rows):
                    yield Block(
                        self,
                        batch=slice(b, min(b + many_batch, batch)),
                        heads=slice(h, min(h + many_heads, heads)),
                        rows=slice(i, min(i + rows, n)),
                        number=number,
                    )
                    number += 1


class Block:
    """Some batch rows, heads and queries, with all the keys that they may see."""

    def __init__(self, arguments: Arguments, *, batch: slice, heads: slice, rows: slice, number: int) -> None:
        a = self.arguments = arguments
        self.batch, self.heads, self.rows, self.number = batch, heads, rows, number
        self.place = batch, heads, rows
        self.first = a.offset + rows.start
        self.n, m = rows.stop - rows.start, a.k.shape[2]
        self.keys = slice(min(m, self.first + self.n) if a.causal else m)
        group = a.q.shape[1] // a.k.shape[1]
        self.key_heads = torch.arange(heads.start, heads.stop, device=a.k.device) // group

        self.q = a.q[self.place] * a.scale
        self.relative_q = self.q if a.relative_q is None else a.relative_q[self.place] * a.scale
        self.k, self.v = (
            x[batch, heads, self.keys] if group == 1 else x[batch, self.key_heads, self.keys] for x in (a.k, a.v)
        )
        self.positions = relative_positions(self.n, self.keys.stop, self.first, a.q.device)
        self.may_attend = allowed(
            self.n,
            self.keys.stop,
            first=self.first,
            causal=a.causal and self.keys.stop > self.first + 1,
            key_padding=None if a.key_padding is None else a.key_padding[batch, self.keys],
            query_padding=None if a.query_padding is None else a.query_padding[batch, rows],
            mask=None if a.mask is None else self.of(a.mask),
            device=a.q.device,
        )
        self._pair_rows: Tensor | None = None
        self.f = None
        if a.distance is not None:
            self.f = toeplitz(self.of_heads(a.distance)[:, self.distance_index(a.distance)], self.n)

    def raw_scores(self) -> Tensor:
        """log₂e · x of the form: scaled, before the distance."""
        x = (self.q * LOG2E) @ self.k.mT
        if self.arguments.key_table is not None:
            x += self.from_table(self.relative_q * LOG2E, self.arguments.key_table)
        return x

    def scores(self, x: Tensor) -> Tensor:
        """log₂e · (s + bias) of the form, masked; x is left as it is only where f multiplies it."""
        a, s = self.arguments, x
        if self.f is not None and a.adjust == "early-multiply":
            s = x.clamp(min=0).mul_(self.f) if a.rectify else x * self.f
        elif self.f is not None and a.adjust == "early-add":
            s = s.add_(self.f, alpha=LOG2E)
        if a.bias is not None:
            s = s.add_(self.of(a.bias), alpha=LOG2E)
        if self.may_attend is not None:
            s = s.masked_fill_(~self.may_attend, -torch.inf)
        if a.adjust == "late-add":
            self.kept = s != -torch.inf
        return s

    def exponentials(self, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """P as numerators and the reciprocals of their row sums, and log₂ Σ 2ˢ; s is overwritten.

        A row without a key has numerators 0 and log-sum +∞, so that 2^(s − log-sum) is 0 in the backward pass too.
        """
        if not self.keys.stop:
            return s, s.new_zeros(*s.shape[:3], 1), s.new_full((*s.shape[:3], 1), torch.inf)
        top = s.amax(dim=-1, keepdim=True)
        empty = top == -torch.inf
        top.masked_fill_(empty, 0.0)
        e = s.sub_(top).exp2_()
        total = e.sum(dim=-1, keepdim=True)
        log_sum = (top + total.log2()).masked_fill_(empty, torch.inf)
        return e, total.reciprocal_().masked_fill_(empty, 0.0), log_sum

    def adjusted_late(self, p: Tensor) -> Tensor:
        """W of the form from P."""
        if self.f is not None and self.arguments.adjust == "late-multiply":
            return p * self.f
        if self.f is not None and self.arguments.adjust == "late-add":
            return p + self.f * self.kept
        return p

    def dropout_mask(self) -> Tensor | None:
        """1/(1−p) where a weight is kept, 0 where not: a function of the seed and the block's number alone."""
        a = self.arguments
        if a.seed is None:
            return None
        generator = torch.Generator(a.q.device).manual_seed(int(a.seed) + self.number)
        keep = self.q.new_empty(*self.q.shape[:3], self.keys.stop)
        return keep.bernoulli_(1 - a.dropout, generator=generator).div_(1 - a.dropout)

    def of(self, whole: Tensor) -> Tensor:
        """This block of a tensor that broadcasts to (B, H, N, M); a view."""
        parts = (*self.place, self.keys)
        return whole[tuple(slice(None) if size == 1 else part for size, part in zip(whole.shape, parts, strict=True))]

    def of_heads(self, table: Tensor) -> Tensor:
        """This block's heads of a table (H or 1, …); a view."""
        return table if table.shape[0] == 1 else table[self.heads]

    def from_table(self, x: Tensor, table: Tensor) -> Tensor:
        """(b, h, n, m): the product of each row of x with the table's row for each key."""
        mine = self.of_heads(table)
        if self.arguments.covers:
            return skew(x @ mine[:, self.diagonal_rows(table)].mT)
        return spread(x @ mine.mT, self.pair_rows(table))

    def through_table(self, by_key: Tensor, table: Tensor, x: Tensor, grad: Tensor) -> Tensor:
        """The adjoint, (b, h, n, d): Σ_j by_key · (the table's row); the table's own gradient is added to grad."""
        mine, into = self.of_heads(table), self.of_heads(grad)
        if self.arguments.covers:
            by_diagonal, rows = unskew(by_key), self.diagonal_rows(table)
            part = (by_diagonal.mT @ x).sum(dim=0)
            into.index_add_(1, rows, part.sum_to_size(into.shape[0], *part.shape[1:]))
            return by_diagonal @ mine[:, rows]
        by_row = collect(by_key, self.pair_rows(table), table.shape[1])
        into += (by_row.mT @ x).sum_to_size(into.shape)
        return by_row @ mine

    def diagonal_rows(self, table: Tensor) -> Tensor:
        """(n+m,): the table's row for every diagonal of the block."""
        return (self.positions - self.arguments.first).clamp_(0, table.shape[1] - 1)

    def pair_rows(self, table: Tensor) -> Tensor:
        """(n, m): the table's row for every pair; keys' and values' tables are of one length, so one serves both."""
        if self._pair_rows is None:
            self._pair_rows = toeplitz(self.diagonal_rows(table), self.n)
        return self._pair_rows

    def distance_index(self, distance: Tensor) -> Tensor:
        return self.positions.abs().clamp_(max=distance.shape[1] - 1)

    def add_to_key_heads(self, grad: Tensor, part: Tensor) -> None:
        """Add (b, h, m, d), one for each query head, to the gradient (B, G, M, d) of keys or values."""
        if grad.shape[1] == self.arguments.q.shape[1]:
            grad[self.batch, self.heads, self.keys] += part
        else:
            grad[self.batch, :, self.keys].index_add_(1, self.key_heads, part)

    def add_to_distance(self, grad: Tensor, part: Tensor) -> None:
        """Add (h, n+m), a number for each diagonal, to the gradient (H or 1, distances)."""
        into = self.of_heads(grad)
        into.index_add_(1, self.distance_index(grad), part.sum_to_size(into.shape[0], part.shape[1]))
