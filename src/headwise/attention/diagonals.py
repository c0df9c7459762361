"""Moving between a map (n queries × m keys) and its diagonals.

Every pair on one diagonal has the same relative position j − i. A block whose first query stands at position `first`
touches the relative positions −first−(n−1) … m−1−first; tensors "by diagonal" have one column for each, in that order,
and one unused column at the end, which makes the shear below a mere change of the row length. `unskew` is the adjoint
of `skew`, `collect` that of `spread` and `diagonal_sums` that of `toeplitz`: each is the other's backward pass.
"""

import torch
from torch import Tensor


def relative_positions(n: int, m: int, first: int, device: torch.device) -> Tensor:
    """(n+m,): the relative position j − i of every diagonal."""
    return torch.arange(1 - n - first, m - first + 1, device=device)


def skew(by_diagonal: Tensor) -> Tensor:
    """(…, n, n+m) by diagonal → (…, n, m) by key: row i reads the m columns from n−1−i on. A view where it can be."""
    n, width = by_diagonal.shape[-2:]
    if n == 0:
        return by_diagonal
    sheared = by_diagonal.flatten(-2)[..., n - 1 : n * width - 1]
    rows: Tensor = sheared.unflatten(-1, (n, width - 1))
    return rows[..., : width - n]


def unskew(by_key: Tensor) -> Tensor:
    """(…, n, m) by key → (…, n, n+m) by diagonal, zero where a row has no such key."""
    n, m = by_key.shape[-2:]
    by_diagonal = by_key.new_zeros(*by_key.shape[:-2], n, n + m)
    skew(by_diagonal).copy_(by_key)
    return by_diagonal


def spread(by_row: Tensor, rows: Tensor) -> Tensor:
    """(…, n, R) by row of a table → (…, n, m) by key: each pair reads the row `rows` (n, m) gives it."""
    return by_row.gather(-1, rows.expand(*by_row.shape[:-1], rows.shape[-1]))


def collect(by_key: Tensor, rows: Tensor, number: int) -> Tensor:
    """(…, n, m) by key → (…, n, number) by row of a table: each row's sum over its keys."""
    return by_key.new_zeros(*by_key.shape[:-1], number).scatter_add(-1, rows.expand_as(by_key), by_key)


def toeplitz(diagonals: Tensor, n: int) -> Tensor:
    """(…, n+m), one number a diagonal → (…, n, m)."""
    return skew(diagonals.unsqueeze(-2).expand(*diagonals.shape[:-1], n, diagonals.shape[-1]))


def diagonal_sums(by_key: Tensor) -> Tensor:
    """(…, n, m) → (…, n+m)."""
    return unskew(by_key).sum(-2)
