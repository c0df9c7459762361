"""Readers of CSV, TSV, JSON Lines, Parquet and Excel files, gzipped or not, as streams of batches.

At most one batch is in memory, and its size is limited. Invalid files raise a `UserError` that names the line.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from headwise.errors import UserError
from headwise.files import check_regular, read_lines
from headwise.tasks.formats.batch import (
    BATCH_ROWS,
    Batch,
    FilePart,
    NumberedRows,
    batch_rows,
    chunk_rows,
    file_extension,
    format_location,
    format_names,
    missing_column,
)
from headwise.tasks.formats.delimited import parse_delimited, parse_delimiter
from headwise.tasks.formats.excel import read_excel
from headwise.tasks.formats.json_lines import parse_json_lines
from headwise.tasks.formats.parquet import read_parquet

__all__ = [
    "BATCH_ROWS",
    "EXTENSIONS",
    "WRITABLE_EXTENSIONS",
    "Batch",
    "FilePart",
    "NumberedRows",
    "batch_rows",
    "chunk_rows",
    "file_extension",
    "format_location",
    "format_names",
    "missing_column",
    "parse_delimiter",
    "read_batches",
    "read_head",
    "read_lines",
]

#: Extensions of the formats that can be written; each may be followed by `.gz`.
WRITABLE_EXTENSIONS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")

#: Extensions of the formats that can be read.
EXTENSIONS = (*WRITABLE_EXTENSIONS, ".xlsx")
#: Usual extensions of files in CoNLL format, which only tagging reads.
TAG_EXTENSIONS = (".conll", ".conllu", ".bio", ".iob")


def read_batches(
    path: Path,
    columns: Sequence[str] | None = None,
    header: Sequence[str] | None = None,
    *,
    delimiter: str | None = None,
    part: FilePart | None = None,
) -> Iterator[Batch]:
    """Read the rows of a file in order.

    Args:
        path: The file; its extension determines the format, and its content whether it is gzipped.
        columns: The columns to read; all by default.
        header: The column names of a CSV or TSV file without a header line.
        delimiter: The delimiter of a CSV or TSV file; by default it is recognized.
        part: The rows to read, see `parts.plan_parts`; all by default.

    Raises:
        UserError: The file does not exist, its format is unknown, or it is invalid.
    """
    check_regular(path)
    extension = file_extension(path)
    if delimiter is not None and extension not in (".csv", ".tsv"):
        raise UserError(f"{path}: --delimiter is for CSV and TSV files")
    match extension:
        case ".csv" | ".tsv":
            parse = partial(
                parse_delimited, columns=columns, header=header, delimiter=delimiter, is_tsv=extension == ".tsv"
            )
            return batch_rows(path, parse, part)
        case ".jsonl" | ".ndjson" | ".json":
            return batch_rows(path, partial(parse_json_lines, columns=columns), part)
        case ".parquet":
            return read_parquet(path, columns, part)
        case ".xlsx":
            return read_excel(path, columns)
    reason = f"unknown format {extension!r}" if extension else "no file extension"
    hint = "; a file with a word and its tag per line needs --label-type tokens" if extension in TAG_EXTENSIONS else ""
    raise UserError(f"{path}: {reason}; expected {', '.join(EXTENSIONS)}, or one of them with .gz{hint}")


def read_head(path: Path) -> Batch:
    """Read the first batch, with all columns.

    Raises:
        UserError: The file has no rows.
    """
    batch = next(read_batches(path), None)
    if batch is None:
        raise UserError(f"{path}: the file has no rows")
    return batch
