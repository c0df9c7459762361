"""Clipped rows by ranges of diagonals against a gather and a scatter of each pair."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.attention.diagonals import (
    ClippedRows,
    clip_to_rows,
    expand_clipped_rows,
    gather_rows,
    relative_positions,
    scatter_add_rows,
    sum_clipped_rows,
    toeplitz,
)


@settings(deadline=None)
@given(
    n=st.integers(1, 6),
    m=st.integers(0, 7),
    query_position=st.integers(-9, 9),
    table_start=st.integers(-12, 12),
    num_rows=st.integers(1, 9),
)
def test_ranges_are_the_rows_of_all_pairs(n: int, m: int, query_position: int, table_start: int, num_rows: int) -> None:
    """The table may end before the map's first diagonal, or start after its last one."""
    positions = relative_positions(n, m, query_position, torch.device("cpu"))
    rows = toeplitz(clip_to_rows(positions, table_start, num_rows), n)
    clipped = ClippedRows.from_map(n, m, query_position, table_start, num_rows)
    by_row = torch.randn(2, n, num_rows, dtype=torch.float64)
    torch.testing.assert_close(expand_clipped_rows(by_row, clipped, n + m), gather_rows(by_row, rows))
    by_key = torch.randn(2, n, m, dtype=torch.float64)
    torch.testing.assert_close(sum_clipped_rows(by_key, clipped), scatter_add_rows(by_key, rows, num_rows))
