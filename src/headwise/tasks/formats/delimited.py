"""Readers of CSV and TSV files."""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from headwise.errors import UserError
from headwise.files import LineReader, max_line_bytes
from headwise.tasks.formats.batch import NumberedRows, check_distinct, column_index, name_columns

#: Delimiters that are recognized in the header of a CSV file; of several, the most frequent. Of equally frequent ones,
#: the comma is the last, because names contain commas more often than the others.
DELIMITERS = (";", "\t", "|", ",")

#: Other spellings of delimiters on the command line.
DELIMITER_NAMES = {"comma": ",", "semicolon": ";", "tab": "\t", "\\t": "\t", "pipe": "|"}

#: Messages of the csv module, and what to tell a user.
CSV_ERRORS = {
    "unexpected end of data": "a quote is never closed",
    "new-line character": "a carriage return outside quotes",
}


def parse_delimiter(value: str) -> str:
    r"""Return a delimiter, which may be given by its name.

    >>> parse_delimiter(";"), parse_delimiter("tab")
    (';', '\t')

    Raises:
        UserError: It is not one character.
    """
    delimiter = DELIMITER_NAMES.get(value, value)
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise UserError(f"--delimiter must be one character, or {', '.join(DELIMITER_NAMES)}; got {value!r}")
    return delimiter


def parse_delimited(
    lines: LineReader,
    columns: Sequence[str] | None,
    header: Sequence[str] | None,
    delimiter: str | None = None,
    is_tsv: bool = False,
) -> tuple[Sequence[str], NumberedRows]:
    """Parse CSV, or TSV, where quotes have no meaning.

    Args:
        lines: The file.
        columns: The columns to read; all by default.
        header: The column names of a file without a header line.
        delimiter: The delimiter; by default a tab in TSV, else the one that the header has.
        is_tsv: Whether quotes have no meaning.
    """
    path = lines.path
    lines.hint = "a quote may not be closed"
    csv.field_size_limit(max_line_bytes())
    lines.start_record()
    text_lines, first_line = iter(lines), 1
    if header is None:
        start = next(text_lines, "")
        if separator := re.fullmatch(r"sep=(.)\s*", start):  # Excel writes and reads this line
            delimiter, first_line = delimiter or separator[1], 2
        else:
            delimiter = delimiter or ("\t" if is_tsv else detect_delimiter(start))
            text_lines = chain([start], text_lines)
    delimiter = delimiter or ("\t" if is_tsv else ",")
    dialect: dict[str, Any] = {"quoting": csv.QUOTE_NONE} if is_tsv else {"strict": True}
    rows = iterate_csv(lines, csv.reader(text_lines, delimiter=delimiter, **dialect), first_line)
    if header is None:
        header = next(rows, (0, []))[1]
        if not header:
            raise UserError(f"{path}: the file is empty; its first line must contain the column names")
        header = name_columns(header)
        check_distinct(f"{path}, line {first_line}", header)
    names = list(header) if columns is None else columns
    indices = [column_index(path, header, name) for name in names]
    return names, select_fields(lines, rows, len(header), indices, delimiter, is_tsv)


def detect_delimiter(header: str) -> str:
    """Return the delimiter of a header line: the most frequent one outside quotes, a comma if there is none.

    >>> detect_delimiter("text;label"), detect_delimiter('"a;b;c",d'), detect_delimiter("text")
    (';', ',', ',')
    """
    unquoted = re.sub(r'"[^"]*"', "", header)
    delimiter = max(DELIMITERS, key=unquoted.count)
    return delimiter if delimiter in unquoted else ","


def select_fields(
    lines: LineReader,
    rows: Iterable[tuple[int, list[str]]],
    num_fields: int,
    indices: Sequence[int],
    delimiter: str,
    is_tsv: bool,
) -> NumberedRows:
    """Select fields of each row, and check that no row has another number of fields than the header."""
    for line, row in rows:
        if len(row) != num_fields:
            if not row:
                continue
            name = {",": "commas", ";": "semicolons", "\t": "tabs"}.get(delimiter, repr(delimiter))
            hint = "a tab inside a text splits it" if is_tsv else f"put quotes around texts that contain {name}"
            if num_fields == 1:
                hint = f"if the columns are not separated by {name}, set --delimiter"
            raise UserError(
                f"{lines.path}, line {line}: expected {num_fields} fields as in the header, got {len(row)}; {hint}"
            )
        yield line, [row[index] for index in indices]


def iterate_csv(lines: LineReader, reader: Any, line: int) -> Iterator[tuple[int, list[str]]]:
    """Iterate over the rows of a CSV reader with the first line of each.

    Args:
        lines: The lines that the reader reads.
        reader: The CSV reader.
        line: The first line of the first row.
    """
    try:
        for row in reader:
            lines.start_record()
            yield line, row
            line = lines.number + 1
    except csv.Error as error:
        reason = next((text for part, text in CSV_ERRORS.items() if part in str(error)), error)
        raise UserError(f"{lines.path}, line {line}: {reason}") from None
