"""Arguments of the blockwise operators, their division into blocks, and the computations of one block.

Scores are stored in base 2, i.e. multiplied by log₂e, because exp2 is the fastest exponential.

Axes of whole tensors: B batch, H query heads, G key heads, N queries, M keys, E width of q and k, D width of v,
R table rows. Lower-case letters are the parts in a block: b, h, n, m, and l = n+m diagonals.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from headwise.attention.diagonals import (
    ClippedRows,
    clip_to_rows,
    expand_clipped_rows,
    relative_positions,
    skew,
    sum_clipped_rows,
    toeplitz,
    unskew,
)
from headwise.attention.masking import allowed_pairs
from headwise.attention.types import SequenceSlice, sequence_slices

LOG2E = math.log2(math.e)

#: Target number of pairs (query, key) in a block. 2^20 float32 weights take 4 MiB; four such tensors are alive at once.
BLOCK_PAIRS = 2**20
#: Fewer rows make matrix products slow. With more rows, a block has many more diagonals (n+m) than keys (m).
MIN_BLOCK_ROWS, MAX_BLOCK_ROWS = 64, 256


@dataclass
class OperatorArguments:
    """Arguments of the operators, in the order of their schema; see `types.py`."""

    q: Tensor  # (B, H, N, E), content queries
    k: Tensor  # (B, G, M, E)
    v: Tensor  # (B, G, M, D)
    relative_q: Tensor | None  # (B, H, N, E); None: same as q
    key_table: Tensor | None  # (H or 1, R, E)
    query_table: Tensor | None  # (H or 1, R, E)
    value_table: Tensor | None  # (H or 1, R, D)
    relative_bias: Tensor | None  # (H or 1, R)
    coefficients: Tensor | None  # f of every distance, (H or 1, distances)
    bias: Tensor | None  # broadcastable to (B, H, N, M)
    sinks: Tensor | None  # (H,)
    mask: Tensor | None  # broadcastable to (B, H, N, M)
    key_padding: Tensor | None  # (B, M)
    query_padding: Tensor | None  # (B, N)
    cu_seqlens: Tensor | None  # (S+1,)
    cu_seqlens_k: Tensor | None  # (S+1,)
    seed: Tensor | None  # of dropout; None: no dropout
    scale: float
    softcap: float  # 0: none
    offset: int
    is_aligned: bool
    causal: bool
    window_left: int  # −1: no limit
    window_right: int
    table_start: int
    is_full_table: bool
    adjust: str
    rectify: bool
    dropout: float
    want_received: bool
    want_weight_norms: bool
    want_lse: bool
    want_weights: bool

    @property
    def window(self) -> tuple[int, int] | None:
        """Number of positions before and after its own that a query attends to, or None."""
        has_window = self.window_left >= 0 or self.window_right >= 0
        return (self.window_left, self.window_right) if has_window else None

    def sequences(self) -> list[SequenceSlice]:
        """Return the concatenated sequences, one if there is no `cu_seqlens`."""
        if self.cu_seqlens is None:
            return [SequenceSlice(slice(0, self.q.shape[2]), slice(0, self.k.shape[2]), self.offset)]
        return sequence_slices(self.cu_seqlens, self.cu_seqlens_k, is_aligned=self.is_aligned)

    def key_range(self, batch: slice, heads: slice, queries: slice, sequence: SequenceSlice) -> slice:
        """Return the keys between the first and the last that some query of a block may attend to."""
        start, stop = sequence.keys.start, sequence.keys.stop
        first = (
            start + sequence.offset + queries.start - sequence.queries.start
        )  # the key at the first query's position
        last = first + queries.stop - queries.start - 1
        right = 0 if self.causal else self.window_right
        if right >= 0:
            stop = max(start, min(stop, last + right + 1))
        if self.window_left >= 0:
            start = min(stop, max(start, first - self.window_left))
        if self.mask is not None and self.mask.device.type == "cpu" and self.mask.shape[3] > 1:
            parts = (batch, heads, queries)
            index = tuple(slice(None) if n == 1 else part for n, part in zip(self.mask.shape[:3], parts, strict=True))
            allowed = self.mask[index][..., start:stop].any(dim=(0, 1, 2)).nonzero()
            start, stop = (start + int(allowed[0]), start + int(allowed[-1]) + 1) if len(allowed) else (start, start)
        return slice(start, stop)

    def blocks(self) -> Iterator["Block"]:
        """Yield blocks of batch items × heads × queries of one sequence that cover every query once, in a fixed order.

        A block has as many batch items as possible before it has several heads, because batch items share a head's
        coefficients and tables.
        """
        batch, heads = self.q.shape[:2]
        index = 0
        for sequence in self.sequences():
            first, n = sequence.queries.start, sequence.queries.stop - sequence.queries.start
            m = max(1, sequence.keys.stop - sequence.keys.start)
            if self.window is not None and min(self.window) >= 0:
                m = min(m, sum(self.window) + MIN_BLOCK_ROWS)
            block_rows = max(1, min(n, MAX_BLOCK_ROWS, max(MIN_BLOCK_ROWS, BLOCK_PAIRS // m)))
            block_batch = max(1, min(batch, BLOCK_PAIRS // (block_rows * m)))
            block_heads = max(1, BLOCK_PAIRS // (block_batch * block_rows * m))
            starts = (range(0, batch, block_batch), range(0, heads, block_heads), range(0, n, block_rows))
            for b, h, i in product(*starts):
                yield Block(
                    self,
                    sequence=sequence,
                    batch=slice(b, min(b + block_batch, batch)),
                    heads=slice(h, min(h + block_heads, heads)),
                    queries=slice(first + i, first + min(i + block_rows, n)),
                    index=index,
                )
                index += 1


class Block:
    """Some batch items, heads and queries, with all keys that they may attend to.

    Attributes:
        rows: index of the block's queries in tensors (B, H, N, …).
        keys: the block's keys, as a slice of M.
        block_start: position of the block's first query, relative to that of its first key.
        q, relative_q: scaled queries, (b, h, n, E).
        k, v: keys and values, repeated for each query head, (b, h, m, E) and (b, h, m, D).
        f: distance coefficients of the pairs, (h or 1, n, m), or None.
        allowed: pairs that may attend, broadcastable to (b, h, n, m), or None if all may.
        tanh: tanh(s / softcap), (b, h, n, m); set by `masked_scores` with a softcap.
        unmasked: pairs with a finite score, (b, h, n, m); set by `masked_scores` if f is added late.
    """

    def __init__(
        self,
        arguments: OperatorArguments,
        *,
        sequence: SequenceSlice,
        batch: slice,
        heads: slice,
        queries: slice,
        index: int,
    ) -> None:
        a = self.arguments = arguments
        self.batch, self.heads, self.index = batch, heads, index
        self.rows = batch, heads, queries
        self.n, self.keys = queries.stop - queries.start, a.key_range(batch, heads, queries, sequence)
        self.m = self.keys.stop - self.keys.start
        query, key = queries.start - sequence.queries.start, self.keys.start - sequence.keys.start
        self.block_start = sequence.offset + query - key
        group_size = a.q.shape[1] // a.k.shape[1]
        self.key_heads = torch.arange(heads.start, heads.stop, device=a.k.device) // group_size

        self.q = a.q[self.rows] * a.scale
        self.relative_q = self.q if a.relative_q is None else a.relative_q[self.rows] * a.scale
        self.k, self.v = (
            x[batch, heads, self.keys] if group_size == 1 else x[batch, self.key_heads, self.keys] for x in (a.k, a.v)
        )
        self.positions_l = relative_positions(self.n, self.m, self.block_start, a.q.device)
        self.allowed = allowed_pairs(
            self.n,
            self.m,
            query_position=self.block_start,
            causal=a.causal and self.m > self.block_start + 1,
            window=a.window,
            key_padding=None if a.key_padding is None else a.key_padding[batch, self.keys],
            query_padding=None if a.query_padding is None else a.query_padding[batch, queries],
            mask=None if a.mask is None else self.slice_map(a.mask),
            device=a.q.device,
        )
        self.f = None
        if a.coefficients is not None:
            self.f = toeplitz(self.slice_heads(a.coefficients)[:, self.distances_l(a.coefficients)], self.n)

    def raw_scores(self) -> Tensor:
        """Compute log₂e · x: scaled scores before f, bias and masks."""
        x = (self.q * LOG2E) @ self.k.mT
        if self.arguments.key_table is not None:
            x += self.multiply_table(self.relative_q * LOG2E, self.arguments.key_table)
        if self.arguments.query_table is not None:
            for keys, table in self.query_table_parts(self.arguments.query_table):
                x[..., keys] += skew((self.k[:, :, keys] * (self.arguments.scale * LOG2E)) @ table.mT).mT
        return x

    def masked_scores(self, x: Tensor) -> Tensor:
        """Compute log₂e · (s + bias), masked. Overwrites x unless f multiplies it."""
        a, s = self.arguments, x
        if self.f is not None and a.adjust == "early-multiply":
            s = x.clamp(min=0).mul_(self.f) if a.rectify else x * self.f
        elif self.f is not None and a.adjust == "early-add":
            s = s.add_(self.f, alpha=LOG2E)
        if a.relative_bias is not None:
            relative_bias = self.slice_heads(a.relative_bias)
            s = s.add_(toeplitz(relative_bias[:, self.rows_l(relative_bias)], self.n), alpha=LOG2E)
        if a.softcap:
            self.tanh = torch.tanh(s / (a.softcap * LOG2E))
            s = self.tanh * (a.softcap * LOG2E)
        if a.bias is not None:
            s = s.add_(self.slice_map(a.bias), alpha=LOG2E)
        if self.allowed is not None:
            s = s.masked_fill_(~self.allowed, -torch.inf)
        if a.adjust == "late-add":
            self.unmasked = s != -torch.inf
        return s

    def softmax_parts(self, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the softmax as numerators and reciprocal row sums, and log₂ Σ 2ˢ. Overwrites s.

        Rows without any key have numerators 0 and log-sum +∞, so that 2^(s − log-sum) is 0 in the backward pass too.
        """
        sinks = self.sink_scores()
        if not self.m and sinks is None:
            return s, s.new_zeros(*s.shape[:3], 1), s.new_full((*s.shape[:3], 1), torch.inf)
        row_max = s.amax(dim=-1, keepdim=True) if self.m else s.new_full((*s.shape[:3], 1), -torch.inf)
        if sinks is not None:
            row_max = torch.maximum(row_max, sinks)
        empty = row_max == -torch.inf
        row_max.masked_fill_(empty, 0.0)
        numerators = s.sub_(row_max).exp2_()
        row_sum = numerators.sum(dim=-1, keepdim=True)
        if sinks is not None:
            row_sum += (sinks - row_max).exp2()
        lse = (row_max + row_sum.log2()).masked_fill_(empty, torch.inf)
        return numerators, row_sum.reciprocal_().masked_fill_(empty, 0.0), lse

    def normalize(self, p: Tensor, lse: Tensor) -> Tensor:
        """Divide the softmax 2^(s − lse) by its row sums, which the rounding of a large lse changes. Overwrites p."""
        row_sum, sinks = p.sum(dim=-1, keepdim=True), self.sink_scores()
        if sinks is not None:
            row_sum += (sinks - lse).exp2()
        return p.div_(row_sum.masked_fill_(row_sum == 0, 1.0))

    def sink_scores(self) -> Tensor | None:
        """Return log₂e · the sinks' scores, (b, h, n, 1); −∞ for padding queries."""
        a = self.arguments
        if a.sinks is None:
            return None
        sinks = (a.sinks[self.heads] * LOG2E)[:, None, None].expand(*self.q.shape[:3], 1)
        if a.query_padding is not None:
            sinks = sinks.masked_fill(~a.query_padding[self.batch, None, self.rows[2], None], -torch.inf)
        return sinks

    def adjust_late(self, p: Tensor) -> Tensor:
        """Compute the weights W from the softmax P."""
        if self.f is not None and self.arguments.adjust == "late-multiply":
            return p * self.f
        if self.f is not None and self.arguments.adjust == "late-add":
            return p + self.f * self.unmasked
        return p

    def draw_dropout_mask(self) -> Tensor | None:
        """Return 1/(1−p) for weights to keep and 0 for the others; depends only on the seed and the block's index."""
        a = self.arguments
        if a.seed is None:
            return None
        generator = torch.Generator(a.q.device).manual_seed(int(a.seed) + self.index)
        mask = self.q.new_empty(*self.q.shape[:3], self.m)
        return mask.bernoulli_(1 - a.dropout, generator=generator).div_(1 - a.dropout)

    def slice_map(self, x: Tensor) -> Tensor:
        """Return this block's part of a tensor that is broadcastable to (B, H, N, M); a view."""
        parts = (*self.rows, self.keys)
        return x[tuple(slice(None) if size == 1 else part for size, part in zip(x.shape, parts, strict=True))]

    def slice_heads(self, x: Tensor) -> Tensor:
        """Return this block's heads of a tensor (H or 1, …); a view."""
        return x if x.shape[0] == 1 else x[self.heads]

    def multiply_table(self, x: Tensor, table: Tensor) -> Tensor:
        """Multiply x, (b, h, n, width), with the table's row for each pair: (b, h, n, m)."""
        table = self.slice_heads(table)
        if self.arguments.is_full_table:
            return skew(x @ table[:, self.rows_l(table)].mT)
        return expand_clipped_rows(x @ table.mT, self.clipped_rows(table), self.n + self.m)

    def sum_by_table_row(self, grad: Tensor, table: Tensor) -> Tensor:
        """Return the sums of (b, h, n, m) by row of a table, (b, h, n, R). Rows of a full table are diagonals (l)."""
        return unskew(grad) if self.arguments.is_full_table else sum_clipped_rows(grad, self.clipped_rows(table))

    def multiply_table_backward(self, sums: Tensor, table: Tensor) -> Tensor:
        """Return the gradient of x in `multiply_table`, (b, h, n, width), from `sum_by_table_row` of the gradient."""
        table = self.slice_heads(table)
        return sums @ (table[:, self.rows_l(table)] if self.arguments.is_full_table else table)

    def add_table_grad(self, sums: Tensor, x: Tensor, table: Tensor, table_grad: Tensor) -> None:
        """Add the gradient of the table in `multiply_table` to `table_grad`, from the same sums."""
        table_grad = self.slice_heads(table_grad)
        by_row = sums.mT @ x
        if self.arguments.is_full_table:
            by_row = by_row.sum(dim=0)
            table_grad.index_add_(1, self.rows_l(table), by_row.sum_to_size(table_grad.shape[0], *by_row.shape[1:]))
        else:
            table_grad += by_row.sum_to_size(table_grad.shape)

    def query_table_parts(self, table: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield parts of the block's keys, and the query table's row of every diagonal of their transposed map.

        A part has about as many keys as the block has queries, so that it has few diagonals without a pair.
        """
        table = self.slice_heads(table)
        for keys in self.key_parts():
            yield keys, table[:, self.transposed_rows(keys, table)]

    def key_parts(self) -> Iterator[slice]:
        """Yield parts of the block's keys, about as many as the block has queries."""
        size = max(self.n, MIN_BLOCK_ROWS)
        return (slice(start, min(start + size, self.m)) for start in range(0, self.m, size))

    def transposed_rows(self, keys: slice, table: Tensor) -> Tensor:
        """Return the table row of every diagonal of the transposed map of some keys, (keys + n,)."""
        positions = relative_positions(keys.stop - keys.start, self.n, keys.start - self.block_start, table.device)
        return clip_to_rows(-positions, self.arguments.table_start, table.shape[1])

    def add_query_table_grads(
        self, grad: Tensor, table: Tensor, k_grad: Tensor | None, table_grad: Tensor | None
    ) -> None:
        """Add the gradients of the keys and of the query table, if they are given, (B, G, M, E) and (H or 1, R, E)."""
        table = self.slice_heads(table)
        k_parts = []
        for keys in self.key_parts():
            by_diagonal, rows = unskew(grad[..., keys].mT), self.transposed_rows(keys, table)
            if k_grad is not None:
                k_parts.append(by_diagonal @ table[:, rows])
            if table_grad is not None:
                by_row = (by_diagonal.mT @ self.k[:, :, keys]).sum(dim=0) * self.arguments.scale
                part = self.slice_heads(table_grad)
                part.index_add_(1, rows, by_row.sum_to_size(part.shape[0], *by_row.shape[1:]))
        if k_grad is not None and k_parts:
            self.add_key_grad(k_grad, torch.cat(k_parts, dim=2) * self.arguments.scale)

    def rows_l(self, table: Tensor) -> Tensor:
        """Return the table row of every diagonal, (l,)."""
        return clip_to_rows(self.positions_l, self.arguments.table_start, table.shape[1])

    def clipped_rows(self, table: Tensor) -> ClippedRows:
        """Return where the block's diagonals are in a clipped table."""
        return ClippedRows.from_map(self.n, self.m, self.block_start, self.arguments.table_start, table.shape[1])

    def distances_l(self, coefficients: Tensor) -> Tensor:
        """Return the distance of every diagonal, (l,), as an index of the coefficients."""
        return self.positions_l.abs().clamp_(max=coefficients.shape[1] - 1)

    def add_key_grad(self, grad: Tensor, part: Tensor) -> None:
        """Add the gradients of each query head, (b, h, m, …), to the gradient of k or v, (B, G, M, …)."""
        if grad.shape[1] == self.arguments.q.shape[1]:
            grad[self.batch, self.heads, self.keys] += part
        else:
            grad[self.batch, :, self.keys].index_add_(1, self.key_heads, part)

    def add_relative_bias_grad(self, grad: Tensor, part: Tensor) -> None:
        """Add the gradients of each diagonal, (h, l), to the gradient of the relative bias, (H or 1, R)."""
        grad = self.slice_heads(grad)
        grad.index_add_(1, self.rows_l(grad), part.sum_to_size(grad.shape[0], part.shape[1]))

    def add_coefficient_grad(self, grad: Tensor, part: Tensor) -> None:
        """Add the gradients of each diagonal, (h, l), to the gradient of the coefficients, (H or 1, distances)."""
        grad = self.slice_heads(grad)
        grad.index_add_(1, self.distances_l(grad), part.sum_to_size(grad.shape[0], part.shape[1]))
