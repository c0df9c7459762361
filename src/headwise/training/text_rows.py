"""Rows of a file of texts, for inspection."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from headwise.errors import UserError
from headwise.inspection.inspected_model import Texts
from headwise.inspection.viewer import truncate_label
from headwise.tasks.columns import LABEL_NAMES, Columns, choose_columns, find_known_column
from headwise.tasks.formats import Batch, FilePart, read_batches
from headwise.training.text.predict import get_column, to_text

#: Number of rows of a file that are shown by default.
DEFAULT_ROWS = 4
#: Largest number of rows that can be shown.
MAX_ROWS = 100


@dataclass(frozen=True)
class Row:
    """A row of a file; its number counts from 1."""

    number: int
    texts: Texts
    label: str | None

    @property
    def title(self) -> str:
        return f"row {self.number}: {truncate_label(' / '.join(self.texts))}"


def read_rows(data: Path, columns: Columns, part: FilePart | None = None) -> Iterator[Row]:
    """Yield the rows of a file, or of a part of it.

    Raises:
        UserError: the file is invalid.
    """
    for batch in read_batches(data, part=part):
        names = [columns.text] if columns.pair is None else [columns.text, columns.pair]
        labels = [None] * len(batch.rows) if columns.label is None else get_column(batch, columns.label)
        for number, label, *texts in zip(batch.rows, labels, *(get_column(batch, name) for name in names), strict=True):
            row_texts = tuple(to_text(" ".join(map(str, text)) if isinstance(text, list) else text) for text in texts)
            yield Row(number + 1, row_texts, None if label is None else str(label))


def find_columns(data: Path, names: Sequence[str]) -> Columns:
    """Return the named columns of a file, or detect them.

    Raises:
        UserError: the file is empty or invalid, or a column is missing.
    """
    if len(names) > 2:
        raise UserError(f"--columns takes one or two columns, got {len(names)}")
    head = next(read_batches(data), None)
    if head is None:
        raise UserError(f"{data}: contains no rows")
    return detect_columns(head, names)


def detect_columns(batch: Batch, names: Sequence[str]) -> Columns:
    """Return the named columns, or detect them. The label is omitted if it is ambiguous."""
    text, pair = [*names, None, None][:2]
    try:
        columns = choose_columns(batch, text=text, pair=pair, labelled=False)
    except UserError as error:
        raise UserError(re.sub(r"--(?:text|pair|label)\b", "--columns", str(error))) from None
    others = [name for name in batch.columns if name not in (columns.text, columns.pair)]
    try:
        label = find_known_column(batch, others, LABEL_NAMES, "label")
    except UserError:
        label = None
    return Columns(columns.text, columns.pair, label)


def choose_rows(data: Path, columns: Columns, row_numbers: Sequence[int]) -> list[Row]:
    """Return the rows to show, in the order of the file.

    Raises:
        UserError: a row does not exist or has no text.
    """
    if not row_numbers:
        first = list(islice((row for row in read_rows(data, columns) if all(row.texts)), DEFAULT_ROWS))
        if not first:
            raise UserError(f"{data}: no row has a text")
        return first
    rows = [row for row in islice(read_rows(data, columns), max(row_numbers)) if row.number in set(row_numbers)]
    missing = sorted(set(row_numbers) - {row.number for row in rows})
    if missing:
        raise UserError(f"--rows {missing[0]}: {data} has no such row")
    empty = next((row for row in rows if not all(row.texts)), None)
    if empty is not None:
        raise UserError(f"--rows {empty.number}: this row of {data} has no text")
    return rows


def parse_rows(rows: Sequence[str]) -> list[int]:
    """Parse the `--rows` option.

    >>> parse_rows(["3", "7-9"])
    [3, 7, 8, 9]
    """
    ranges: list[range] = []
    for option in rows:
        match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", option)
        if match is None or not 1 <= int(match[1]) <= int(match[2] or match[1]):
            raise UserError(f"--rows takes numbers from 1 and ranges, such as 3 or 7-9; got {option!r}")
        ranges.append(range(int(match[1]), int(match[2] or match[1]) + 1))
    num_rows = sum(map(len, ranges))
    if num_rows > MAX_ROWS:
        raise UserError(f"--rows: at most {MAX_ROWS} rows can be shown, got {num_rows:,}")
    return [number for numbers in ranges for number in numbers]
