"""Batches of rows, the columns of a file, and their errors."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from headwise.errors import UserError
from headwise.files import LineReader

BATCH_ROWS = 1000
BATCH_BYTES = 2**24  # a batch ends after the row that reaches this size
MAX_LISTED_NAMES = 20  # of columns in a message

T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """Consecutive rows of a file.

    Args:
        path: The file.
        rows: The index of each row in the file, from 0.
        lines: The first line of each row, from 1; for Parquet, which has no lines, the row number from 1.
        columns: The values of each column.
    """

    path: Path
    rows: Sequence[int]
    lines: Sequence[int]
    columns: Mapping[str, Sequence[Any]]

    def location(self, index: int) -> str:
        """Return the file and line of a row, for a message."""
        return format_location(self.path, self.lines[index])


def file_extension(path: Path) -> str:
    """Return the extension that determines the format: `.csv` for `a.csv` and `a.csv.gz`."""
    return Path(path.stem if path.suffix == ".gz" else path.name).suffix.lower()


def format_location(path: Path, line: int) -> str:
    """Return a file and line, for a message."""
    has_lines = file_extension(path) not in (".parquet", ".xlsx") and not str(path).startswith("hub:")
    return f"{path}, {'line' if has_lines else 'row'} {line}"


@dataclass(frozen=True)
class FilePart:
    """Consecutive rows of a file, which can be read without the rows before them.

    Args:
        path: The file.
        first_row: The index of the first row, from 0.
        num_rows: The number of rows.
        offset: Of a text file, the position in bytes at which the first row starts, or blank lines before it.
        line: Of a text file, the number of lines before that position.
        row_groups: Of a Parquet file, the first row group and the one after the last.
        skipped_rows: Of a Parquet file, the number of rows before the first one in its row group.
        copy: A decompressed copy of the file.
    """

    path: Path
    first_row: int
    num_rows: int
    offset: int = 0
    line: int = 0
    row_groups: tuple[int, int] | None = None
    skipped_rows: int = 0
    copy: Path | None = None

    def __str__(self) -> str:
        return f"{self.path}, rows {self.first_row + 1:,} to {self.first_row + self.num_rows:,}"


#: Rows of a text file: the first line of each, and its values.
NumberedRows = Iterator[tuple[int, Sequence[Any]]]


#: Returns column names and rows with values in that order, or None and rows that are dictionaries.
Parse = Callable[[LineReader], tuple[Sequence[str] | None, NumberedRows]]


def batch_rows(path: Path, parse: Parse, part: FilePart | None = None) -> Iterator[Batch]:
    """Group the rows of a text file into batches.

    Args:
        path: The file.
        parse: Its parser.
        part: The rows to read; all by default.
    """
    lines = LineReader(path, copy=None if part is None else part.copy)
    names, rows = parse(lines)
    start = 0
    if part is not None:
        start, rows = part.first_row, islice(rows, part.num_rows)
        if part.offset:
            lines.seek(part.offset, part.line)
    for chunk in chunk_rows(rows, lambda: lines.num_bytes):
        line_numbers, values = zip(*chunk, strict=True)
        columns = dict(zip(names, zip(*values, strict=True), strict=True)) if names is not None else to_columns(values)
        yield Batch(path, range(start, start + len(chunk)), line_numbers, columns)
        start += len(chunk)


def chunk_rows(rows: Iterable[T], num_bytes: Callable[[], int]) -> Iterator[list[T]]:
    """Group rows into lists of at most BATCH_ROWS rows and about BATCH_BYTES bytes.

    Args:
        rows: The rows.
        num_bytes: Returns the number of bytes that were read for the rows so far.
    """
    chunk: list[T] = []
    start = num_bytes()
    for row in rows:
        chunk.append(row)
        if len(chunk) >= BATCH_ROWS or num_bytes() - start >= BATCH_BYTES:
            yield chunk
            chunk, start = [], num_bytes()
    if chunk:
        yield chunk


def to_columns(records: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Turn records into columns, with None for missing keys."""
    records = list(records)
    keys = dict.fromkeys(key for record in records for key in record)
    return {key: [record.get(key) for record in records] for key in keys}


def column_index(path: Path, header: Sequence[str], name: str) -> int:
    """Return the index of a column.

    Raises:
        UserError: There is no such column.
    """
    if name not in header:
        raise missing_column(path, name, header)
    return header.index(name)


def name_columns(header: Sequence[str]) -> list[str]:
    """Return column names: of several columns without a name, all but the first one get their number as a name.

    >>> name_columns(["", "text", "", " "])
    ['', 'text', 'column 3', 'column 4']
    """
    unnamed = [index for index, name in enumerate(header) if not name.strip()]
    return [f"column {index + 1}" if index in unnamed[1:] else name for index, name in enumerate(header)]


def check_distinct(location: Path | str, header: Sequence[str]) -> None:
    """Check that column names are distinct.

    Raises:
        UserError: They are not.
    """
    if len(set(header)) < len(header):
        raise UserError(f"{location}: two columns have the same name: {format_names(header)}")


def missing_column(location: Path | str, name: str, columns: Iterable[str]) -> UserError:
    """Return the error for a column that does not exist."""
    return UserError(f"{location}: no column {name!r}; the columns are {format_names(columns)}")


def format_names(names: Iterable[str]) -> str:
    """Return the names of columns, for a message.

    >>> format_names(["text", "a" * 60]), format_names(map(str, range(30)))[-20:]
    ('text, aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…', '18, 19 and 10 others')
    """
    shown = [" ".join(str(name).split()) for name in names]
    cut = [name if len(name) <= 40 else f"{name[:39]}…" for name in shown[:MAX_LISTED_NAMES]]
    others = len(shown) - len(cut)
    return ", ".join(cut) + (f" and {others:,} others" if others else "")
