"""Readers of CSV, TSV, JSON Lines and Parquet files, gzipped or not, as streams of batches.

At most one batch is in memory. Invalid files raise a `UserError` that names the line.
"""

import csv
import gzip
import json
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from headwise.errors import UserError

BATCH_ROWS = 1000
MAX_FIELD_LENGTH = 2**24  # characters of a CSV field; an unclosed quote would otherwise read the rest of the file


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


#: Extensions of the known formats; each may be followed by `.gz`.
EXTENSIONS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")


def file_extension(path: Path) -> str:
    """Return the extension that tells the format: `.csv` for `a.csv` and `a.csv.gz`."""
    return Path(path.stem if path.suffix == ".gz" else path.name).suffix.lower()


def format_location(path: Path, line: int) -> str:
    """Return a file and line, for a message."""
    has_lines = file_extension(path) != ".parquet" and not str(path).startswith("hub:")
    return f"{path}, {'line' if has_lines else 'row'} {line}"


def read_batches(
    path: Path, columns: Sequence[str] | None = None, header: Sequence[str] | None = None
) -> Iterator[Batch]:
    """Read the rows of a file in order.

    Args:
        path: The file; its extension tells the format.
        columns: The columns to read; all by default.
        header: The column names of a CSV or TSV file without a header line.

    Raises:
        UserError: The file does not exist, its format is unknown, or it is invalid.
    """
    if not path.is_file():
        raise UserError(f"{path}: {'is a directory, expected a file' if path.is_dir() else 'no such file'}")
    match file_extension(path):
        case ".csv":
            return batch_rows(path, partial(parse_delimited, columns=columns, header=header))
        case ".tsv":
            return batch_rows(path, partial(parse_delimited, columns=columns, header=header, is_tsv=True))
        case ".jsonl" | ".ndjson" | ".json":
            return batch_rows(path, partial(parse_json_lines, columns=columns))
        case ".parquet":
            return read_parquet(path, columns)
        case extension:
            reason = f"unknown format {extension!r}" if extension else "no file extension"
            raise UserError(f"{path}: {reason}; expected {', '.join(EXTENSIONS)}, or one of them with .gz")


def read_head(path: Path) -> Batch:
    """Read the first batch, with all columns.

    Raises:
        UserError: The file has no rows.
    """
    batch = next(read_batches(path), None)
    if batch is None:
        raise UserError(f"{path}: the file has no rows")
    return batch


def read_lines(path: Path) -> Iterator[str]:
    """Read the lines of a UTF-8 text file, gzipped or not."""
    number = 0
    try:
        with cast(IO[bytes], gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as file:
            for number, line in enumerate(file, 1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, line {number}: not UTF-8 (byte {error.start + 1} of the line); save the file as UTF-8"
        ) from None
    except EOFError:
        raise UserError(f"{path}: the gzip file ends after line {number}; it is incomplete") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: invalid gzip file after line {number} ({error})") from None


#: Rows of a text file: the first line of each, and its values.
NumberedRows = Iterator[tuple[int, Sequence[Any]]]


def batch_rows(path: Path, parse: Callable[[Path], tuple[Sequence[str] | None, NumberedRows]]) -> Iterator[Batch]:
    """Group rows into batches.

    Args:
        path: The file.
        parse: Returns the column names and the rows with values in that order, or None and rows that are dictionaries.
    """
    names, rows = parse(path)
    start = 0
    while chunk := list(islice(rows, BATCH_ROWS)):
        lines, values = zip(*chunk, strict=True)
        columns = dict(zip(names, zip(*values, strict=True), strict=True)) if names is not None else to_columns(values)
        yield Batch(path, range(start, start + len(chunk)), lines, columns)
        start += len(chunk)


def to_columns(records: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Turn records into columns, with None for missing keys."""
    records = list(records)
    keys = dict.fromkeys(key for record in records for key in record)
    return {key: [record.get(key) for record in records] for key in keys}


#: Messages of the csv module, and what to tell a user.
CSV_ERRORS = {
    "unexpected end of data": "a quote is never closed",
    "field larger than": "a quote is never closed",
    "new-line character": "a carriage return outside quotes",
}


def parse_delimited(
    path: Path, columns: Sequence[str] | None, header: Sequence[str] | None, is_tsv: bool = False
) -> tuple[Sequence[str], NumberedRows]:
    """Parse CSV with commas and quotes, or TSV, where quotes have no meaning."""
    csv.field_size_limit(MAX_FIELD_LENGTH)
    dialect: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if is_tsv else {"strict": True}
    reader = csv.reader(read_lines(path), **dialect)
    if header is None:
        header = next(iterate_csv(path, reader), (0, []))[1]
        if not header:
            raise UserError(f"{path}: the file is empty; its first line must contain the column names")
        check_distinct(f"{path}, line 1", header)
    names = list(header) if columns is None else columns
    indices = [column_index(path, header, name) for name in names]
    return names, select_fields(path, reader, len(header), indices, is_tsv)


def select_fields(path: Path, reader: Any, num_fields: int, indices: Sequence[int], is_tsv: bool) -> NumberedRows:
    """Select fields of each row, and check that no row has another number of fields than the header."""
    for line, row in iterate_csv(path, reader):
        if len(row) != num_fields:
            if not row:
                continue
            hint = "a tab inside a text splits it" if is_tsv else "put quotes around texts that contain commas"
            raise UserError(
                f"{path}, line {line}: expected {num_fields} fields as in the header, got {len(row)}; {hint}"
            )
        yield line, [row[index] for index in indices]


def iterate_csv(path: Path, reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Iterate over the rows of a CSV reader with the first line of each."""
    line = reader.line_num + 1
    try:
        for row in reader:
            yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        reason = next((text for part, text in CSV_ERRORS.items() if part in str(error)), error)
        raise UserError(f"{path}, line {line}: {reason}") from None


def column_index(path: Path, header: Sequence[str], name: str) -> int:
    """Return the index of a column.

    Raises:
        UserError: There is no such column.
    """
    if name not in header:
        raise missing_column(path, name, header)
    return header.index(name)


def check_distinct(location: Path | str, header: Sequence[str]) -> None:
    """Check that column names are distinct.

    Raises:
        UserError: They are not.
    """
    if len(set(header)) < len(header):
        raise UserError(f"{location}: two columns have the same name: {', '.join(header)}")


def missing_column(location: Path | str, name: str, columns: Iterable[str]) -> UserError:
    """Return the error for a column that does not exist."""
    return UserError(f"{location}: no column {name!r}; the columns are {', '.join(map(str, columns))}")


def parse_json_lines(path: Path, columns: Sequence[str] | None) -> tuple[Sequence[str] | None, NumberedRows]:
    """Parse one JSON object per line."""
    return columns, iterate_json(path, columns)


def iterate_json(path: Path, columns: Sequence[str] | None) -> NumberedRows:
    """Iterate over the objects of a JSON Lines file, or over the values of some keys."""
    for number, line in enumerate(read_lines(path), 1):
        if line.isspace():
            continue
        if number == 1 and line.startswith("["):
            raise UserError(f"{path}: a JSON array; expected one object per line (JSON Lines)")
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {number}: invalid JSON: {error.msg} at character {error.pos + 1}") from None
        if "\\ud" in line.lower() and not is_utf8(record):
            raise UserError(f"{path}, line {number}: contains a lone surrogate (\\ud800 to \\udfff), which is not text")
        if not isinstance(record, dict):
            raise UserError(f"{path}, line {number}: expected a JSON object, got {line.strip()[:40]}")
        if columns is None:
            yield number, cast(Any, record)
            continue
        try:
            yield number, [record[name] for name in columns]
        except KeyError as error:
            raise missing_column(format_location(path, number), error.args[0], record) from None


def is_utf8(record: Any) -> bool:
    """Return whether all strings of a record can be encoded as UTF-8."""
    try:
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def read_parquet(path: Path, columns: Sequence[str] | None) -> Iterator[Batch]:
    """Read the rows of a Parquet file. A gzipped file is decompressed to a temporary file first."""
    if path.suffix == ".gz":
        with tempfile.TemporaryDirectory() as directory:
            decompressed = Path(directory, path.stem)
            gunzip(path, decompressed)
            for batch in read_parquet(decompressed, columns):
                yield Batch(path, batch.rows, batch.lines, batch.columns)
        return
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            names = file.schema_arrow.names
            check_distinct(path, names)
            for name in columns or ():
                column_index(path, names, name)
            start = 0
            for part in file.iter_batches(BATCH_ROWS, columns=list(columns or names)):
                rows = range(start, start + part.num_rows)
                values = {name: part.column(name).to_pylist() for name in part.schema.names}
                yield Batch(path, rows, range(start + 1, start + 1 + part.num_rows), values)
                start += part.num_rows
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: invalid Parquet file ({str(error).splitlines()[0]})") from None


def gunzip(path: Path, target: Path) -> None:
    """Decompress a gzip file.

    Raises:
        UserError: It is invalid or incomplete.
    """
    try:
        with gzip.open(path) as compressed, target.open("wb") as file:
            shutil.copyfileobj(compressed, file)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise UserError(f"{path}: invalid or incomplete gzip file") from None
