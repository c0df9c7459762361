"""The reader of Excel files (.xlsx)."""

import logging
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from headwise.errors import UserError, first_line
from headwise.tasks.formats.batch import Batch, check_distinct, chunk_rows, column_index, name_columns

logger = logging.getLogger(__name__)

MAX_EXCEL_BYTES = 2**28  # of the decompressed file; openpyxl keeps all texts in memory


@cache  # a file is read several times
def warn_of_sheets(path: Path, names: tuple[str, ...]) -> None:
    """Warn once that only the first sheet of a file is read."""
    logger.warning("%s: only the first sheet, %s, is read, not %s", path, names[0], ", ".join(names[1:6]))


def read_excel(path: Path, columns: Sequence[str] | None) -> Iterator[Batch]:
    """Read the rows of the first sheet. Its first row contains the column names; empty rows are ignored.

    Raises:
        UserError: The file is invalid or too large, or openpyxl is not installed.
    """
    try:
        with open_workbook(path) as workbook:
            sheet = workbook.worksheets[0]
            if len(workbook.sheetnames) > 1:
                warn_of_sheets(path, tuple(workbook.sheetnames))
            rows = iterate_rows(sheet)
            header = read_header(path, next(rows, (1, ()))[1])
            names = list(header) if columns is None else list(columns)
            indices = [column_index(path, header, name) for name in names]
            num_bytes, start = [0], 0
            for chunk in chunk_rows(count_bytes(rows, num_bytes), lambda: num_bytes[0]):
                values = {
                    name: [row[index] if index < len(row) else None for _, row in chunk]
                    for name, index in zip(names, indices, strict=True)
                }
                yield Batch(path, range(start, start + len(chunk)), [line for line, _ in chunk], values)
                start += len(chunk)
    except UserError:
        raise
    except Exception as error:  # openpyxl raises errors of several libraries if a file is invalid
        reason = first_line(error)
        raise UserError(f"{path}: invalid Excel file ({reason[:80]})") from None


def open_workbook(path: Path) -> Any:
    """Open a workbook of bounded size; a context manager closes it."""
    try:
        import openpyxl
    except ImportError:
        raise UserError(f"{path}: reading .xlsx needs openpyxl; pip install 'headwise[excel]'") from None
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > MAX_EXCEL_BYTES:
        raise UserError(
            f"{path}: {size:,} bytes when decompressed, at most {MAX_EXCEL_BYTES:,} are allowed; save it as CSV"
        )
    return closing(openpyxl.load_workbook(path, read_only=True, data_only=True, keep_links=False))


def iterate_rows(sheet: Any) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Iterate over the rows that are not empty, with their numbers."""
    for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
        if any(value is not None for value in row):
            yield number, row


def count_bytes(
    rows: Iterator[tuple[int, tuple[Any, ...]]], num_bytes: list[int]
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Iterate over rows, and count the characters of their texts in `num_bytes[0]`."""
    for number, row in rows:
        num_bytes[0] += sum(len(value) for value in row if isinstance(value, str))
        yield number, row


def read_header(path: Path, row: Sequence[Any]) -> list[str]:
    """Return the column names.

    Raises:
        UserError: There are none, or two columns have the same name.
    """
    header = ["" if value is None else str(value).strip() for value in row]
    while header and not header[-1]:
        header.pop()
    if not header:
        raise UserError(f"{path}: the first sheet is empty; its first row must contain the column names")
    header = name_columns(header)
    check_distinct(f"{path}, row 1", header)
    return header
