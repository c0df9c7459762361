"""Cells of CSV files that a spreadsheet would run as formulas.

By default, cells are written as they are, so that other programs read back the same text. Within `safe_csv`, an
apostrophe is put before a cell that starts like a formula, and spreadsheets show it as text.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

#: Characters at the start of a formula, also in their full-width forms.
FORMULA_STARTS = "=+-@\t\r\n＝＋－＠"

_is_safe = ContextVar("safe_csv", default=False)


@contextmanager
def safe_csv(enabled: bool = True) -> Iterator[None]:
    """Quote formulas in all CSV and TSV files that are written in this context.

    Example:
        >>> with safe_csv():
        ...     [quote_formula(cell) for cell in ("=1+1", "-1.5", "-", "a=b", 2)]
        ["'=1+1", '-1.5', "'-", 'a=b', 2]
    """
    token = _is_safe.set(enabled)
    try:
        yield
    finally:
        _is_safe.reset(token)


def is_safe_csv() -> bool:
    """Return whether formulas are quoted in this context."""
    return _is_safe.get()


def quote_formula(cell: Any) -> Any:
    """Return a cell; within `safe_csv`, with an apostrophe if it starts like a formula and is not a number."""
    if not _is_safe.get() or not isinstance(cell, str) or cell.lstrip(" ")[:1] not in tuple(FORMULA_STARTS):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def quote_row(cells: Iterable[Any]) -> list[Any]:
    """Return a row of cells with `quote_formula`."""
    return [quote_formula(cell) for cell in cells]


def quote_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row by column with `quote_formula`; the names of columns are ours."""
    return {name: quote_formula(cell) for name, cell in record.items()}
