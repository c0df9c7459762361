"""Conversions between attention maps and their diagonals.

All pairs on one diagonal of a map have the same relative position j − i. A map of N queries and M keys has N+M−1
diagonals. Tensors "by diagonal" have one column per diagonal, in the order of j − i, and one unused last column: with
L = N+M columns, shifting row i by i places only changes the row length of a flat view.

`unskew` is the adjoint of `skew`, `scatter_add_rows` of `gather_rows`, `sum_clipped_rows` of `expand_clipped_rows`, and
`diagonal_sums` of `toeplitz`: each computes the gradient of the other.

Axes: N queries, M keys, L = N+M diagonals, R table rows.
"""

from typing import NamedTuple

import torch
from torch import Tensor


def relative_positions(n: int, m: int, query_position: int, device: torch.device) -> Tensor:
    """Return the relative position j − i of every diagonal, (L,).

    Args:
        n: number of queries.
        m: number of keys, at the positions 0 … m−1.
        query_position: position of the first query.
        device: device of the result.
    """
    return torch.arange(1 - n - query_position, m - query_position + 1, device=device)


def clip_to_rows(positions: Tensor, table_start: int, num_rows: int) -> Tensor:
    """Return the table row of each relative position. Row 0 is for `table_start`; the outermost rows extend beyond."""
    return (positions - table_start).clamp(0, num_rows - 1)


def skew(by_diagonal: Tensor) -> Tensor:
    """Convert (…, N, L) by diagonal to (…, N, M) by key: row i takes M columns from N−1−i on. A view if possible."""
    n, width = by_diagonal.shape[-2:]
    if n == 0:
        return by_diagonal
    flat = by_diagonal.flatten(-2)[..., n - 1 : n * width - 1]
    rows: Tensor = flat.unflatten(-1, (n, width - 1))
    return rows[..., : width - n]


def unskew(by_key: Tensor) -> Tensor:
    """Convert (…, N, M) by key to (…, N, L) by diagonal, with zeros where a row has no key on the diagonal."""
    n, m = by_key.shape[-2:]
    by_diagonal = by_key.new_zeros(*by_key.shape[:-2], n, n + m)
    skew(by_diagonal).copy_(by_key)
    return by_diagonal


def gather_rows(by_row: Tensor, rows_NM: Tensor) -> Tensor:
    """Convert (…, N, R) by table row to (…, N, M) by key: each pair reads its row, given by `rows_NM`."""
    return by_row.gather(-1, rows_NM.expand(*by_row.shape[:-1], rows_NM.shape[-1]))


def scatter_add_rows(by_key: Tensor, rows_NM: Tensor, num_rows: int) -> Tensor:
    """Convert (…, N, M) by key to (…, N, R) by table row: sum the pairs of each row."""
    return by_key.new_zeros(*by_key.shape[:-1], num_rows).scatter_add(-1, rows_NM.expand_as(by_key), by_key)


class ClippedRows(NamedTuple):
    """Where the diagonals of a map are in a clipped table.

    The diagonals from `start` to `stop` have the table's rows from `first_row` on, one each. Those before have the
    table's first row, those after its last row. Copies of ranges are much faster than a gather of each pair.
    """

    start: int
    stop: int
    first_row: int
    num_rows: int

    @classmethod
    def from_map(cls, n: int, m: int, query_position: int, table_start: int, num_rows: int) -> "ClippedRows":
        """Return the diagonals of a map whose first query has this position, for a table from `table_start` on."""
        diagonal = table_start - (1 - n - query_position)  # of the table's first row, if the map has it
        start, stop = (min(max(x, 0), n + m) for x in (diagonal, diagonal + num_rows))
        return cls(start, stop, start - diagonal, num_rows)

    @property
    def rows(self) -> slice:
        """The table's rows that are not clipped."""
        return slice(self.first_row, self.first_row + self.stop - self.start)


def expand_clipped_rows(by_row: Tensor, clipped: ClippedRows, length: int) -> Tensor:
    """Convert (…, N, R) by table row to (…, N, M) by key: each pair reads its row. `length` is N+M."""
    *others, _ = by_row.shape
    before, after = (
        by_row[..., :1].expand(*others, clipped.start),
        by_row[..., -1:].expand(*others, length - clipped.stop),
    )
    return skew(torch.cat([before, by_row[..., clipped.rows], after], dim=-1))


def sum_clipped_rows(by_key: Tensor, clipped: ClippedRows) -> Tensor:
    """Convert (…, N, M) by key to (…, N, R) by table row: sum the pairs of each row."""
    by_diagonal = unskew(by_key)
    by_row = by_key.new_zeros(*by_key.shape[:-1], clipped.num_rows)
    by_row[..., clipped.rows] = by_diagonal[..., clipped.start : clipped.stop]
    by_row[..., 0] += by_diagonal[..., : clipped.start].sum(-1)
    by_row[..., -1] += by_diagonal[..., clipped.stop :].sum(-1)
    return by_row


def toeplitz(diagonals: Tensor, n: int) -> Tensor:
    """Expand one number per diagonal, (…, L), to a map (…, N, M)."""
    return skew(diagonals.unsqueeze(-2).expand(*diagonals.shape[:-1], n, diagonals.shape[-1]))


def diagonal_sums(by_key: Tensor) -> Tensor:
    """Sum a map (…, N, M) along its diagonals, (…, L)."""
    return unskew(by_key).sum(-2)
