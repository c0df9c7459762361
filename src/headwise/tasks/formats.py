"""A file of rows as a stream of batches: CSV, TSV, JSON Lines and Parquet, each gzipped or not.

Never more than a batch is in memory. A file that is not what its name promises is a `UserError` that names the line.
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

BATCH_ROWS = 1000  # in a batch
LONGEST = 2**24  # characters in a CSV field; a quote that is never closed would otherwise swallow the file


@dataclass(frozen=True)
class Batch:
    """Some rows of a file.

    Args:
        path: the file.
        rows: each row's number in it, from 0.
        lines: the line each row begins at, from 1; for Parquet, which has no lines, the row's number from 1.
        columns: each column's values.
    """

    path: Path
    rows: Sequence[int]
    lines: Sequence[int]
    columns: Mapping[str, Sequence[Any]]

    def place(self, index: int) -> str:
        return place(self.path, self.lines[index])


#: What a file's name ends with, gzipped (`.gz`) or not.
EXTENSIONS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")


def file_extension(path: Path) -> str:
    """What says the format in a file's name: `.csv` for `a.csv` and `a.csv.gz`."""
    return Path(path.stem if path.suffix == ".gz" else path.name).suffix.lower()


def place(path: Path, line: int) -> str:
    without_lines = file_extension(path) == ".parquet" or str(path).startswith("hub:")
    return f"{path}, {'row' if without_lines else 'line'} {line}"


def read_batches(
    path: Path, columns: Sequence[str] | None = None, header: Sequence[str] | None = None
) -> Iterator[Batch]:
    """The rows of a file, in order.

    Args:
        path: the file; its ending tells the format.
        columns: those to read; all when not given.
        header: the columns' names, for a CSV or TSV file whose first line does not name them.

    Raises:
        UserError: there is no such file, its format is unknown, or it is broken somewhere.
    """
    if not path.is_file():
        raise UserError(f"{path}: {'a folder, not a file' if path.is_dir() else 'no such file'}")
    match file_extension(path):
        case ".csv":
            return in_lines(path, partial(delimited, columns=columns, header=header))
        case ".tsv":
            return in_lines(path, partial(delimited, columns=columns, header=header, tabs=True))
        case ".jsonl" | ".ndjson" | ".json":
            return in_lines(path, partial(json_lines, columns=columns))
        case ".parquet":
            return parquet(path, columns)
        case unknown:
            raise UserError(
                f"{path}: format {unknown or 'without an ending'!r} unknown; expected {', '.join(EXTENSIONS)}, also .gz"
            )


def read_head(path: Path) -> Batch:
    """The first rows, with all columns: enough to see what there is."""
    first = next(read_batches(path), None)
    if first is None:
        raise UserError(f"{path}: holds no rows")
    return first


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text file in UTF-8, gzipped or not."""
    number = 0
    try:
        with cast(IO[bytes], gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as raw:
            for number, line in enumerate(raw, 1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, line {number}: not UTF-8 (byte {error.start + 1} of the line); save it as UTF-8"
        ) from None
    except EOFError:
        raise UserError(f"{path}: the gzip file breaks off after line {number}; it was not copied whole") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: not a sound gzip file after line {number} ({error})") from None


Rows = Iterator[tuple[int, Sequence[Any]]]  # the line each begins at, and its values


def in_lines(path: Path, parse: Callable[[Path], tuple[Sequence[str] | None, Rows]]) -> Iterator[Batch]:
    """Batches of what `parse` gives row by row: values in the order of names, or without names a dictionary a row."""
    names, rows = parse(path)
    first = 0
    while chunk := list(islice(rows, BATCH_ROWS)):
        starts, values = zip(*chunk, strict=True)
        columns = dict(zip(names, zip(*values, strict=True), strict=True)) if names is not None else by_key(values)
        yield Batch(path, range(first, first + len(chunk)), starts, columns)
        first += len(chunk)


def by_key(records: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    records = list(records)
    keys = dict.fromkeys(key for record in records for key in record)
    return {key: [record.get(key) for record in records] for key in keys}


#: What the csv module says, in words that help.
UNSOUND = {
    "unexpected end of data": "a quote is never closed",
    "field larger than": "a quote is never closed",
    "new-line character": "a carriage return stands in a text without quotes",
}


def delimited(
    path: Path, columns: Sequence[str] | None, header: Sequence[str] | None, tabs: bool = False
) -> tuple[Sequence[str], Rows]:
    """CSV with commas and quotes; or TSV, where a field is what stands between tabs and quotes are ordinary."""
    csv.field_size_limit(LONGEST)
    style: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {"strict": True}
    reader = csv.reader(read_lines(path), **style)
    if header is None:
        header = next(sound(path, reader), (0, []))[1]
        if not header:
            raise UserError(f"{path}: empty; its first line must name the columns")
        distinct(f"{path}, line 1", header)
    names = list(header) if columns is None else columns
    picked = [position(path, header, name) for name in names]
    return names, fields(path, reader, len(header), picked, tabs)


def fields(path: Path, reader: Any, width: int, picked: Sequence[int], tabs: bool) -> Rows:
    for line, row in sound(path, reader):
        if len(row) != width:
            if not row:
                continue
            hint = "a tab in a text makes two fields of it" if tabs else "a text with a comma needs quotes around it"
            raise UserError(f"{path}, line {line}: {len(row)} fields where the first line has {width}; {hint}")
        yield line, [row[index] for index in picked]


def sound(path: Path, reader: Any) -> Iterator[tuple[int, list[str]]]:
    """The reader's rows with the line each begins at."""
    line = reader.line_num + 1
    try:
        for row in reader:
            yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        reason = next((words for part, words in UNSOUND.items() if part in str(error)), error)
        raise UserError(f"{path}, line {line}: {reason}") from None


def position(path: Path, header: Sequence[str], name: str) -> int:
    if name not in header:
        raise missing_column(path, name, header)
    return header.index(name)


def distinct(where: Path | str, header: Sequence[str]) -> None:
    if len(set(header)) < len(header):
        raise UserError(f"{where}: two columns have the same name: {', '.join(header)}")


def missing_column(where: Path | str, name: str, there: Iterable[str]) -> UserError:
    return UserError(f"{where}: no column {name!r}; there: {', '.join(map(str, there))}")


def json_lines(path: Path, columns: Sequence[str] | None) -> tuple[Sequence[str] | None, Rows]:
    """One JSON object a line."""
    return columns, objects(path, columns)


def objects(path: Path, columns: Sequence[str] | None) -> Rows:
    for number, line in enumerate(read_lines(path), 1):
        if line.isspace():
            continue
        if number == 1 and line.startswith("["):
            raise UserError(
                f"{path}: a JSON array; expected one object a line, without brackets and commas around them"
            )
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {number}: not JSON: {error.msg} at character {error.pos + 1}") from None
        if "\\ud" in line.lower() and not is_utf8(record):
            raise UserError(
                f"{path}, line {number}: half a character (a lone surrogate, \\ud800 to \\udfff) is no text"
            )
        if not isinstance(record, dict):
            raise UserError(f"{path}, line {number}: expected a JSON object, got {line.strip()[:40]}")
        if columns is None:
            yield number, cast(Any, record)
            continue
        try:
            yield number, [record[name] for name in columns]
        except KeyError as error:
            raise missing_column(place(path, number), error.args[0], record) from None


def is_utf8(record: Any) -> bool:
    """Whether what JSON escapes can be written as it is."""
    try:
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def parquet(path: Path, columns: Sequence[str] | None) -> Iterator[Batch]:
    if path.suffix == ".gz":
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder, path.stem)
            unzip(path, plain)
            yield from (Batch(path, part.rows, part.lines, part.columns) for part in parquet(plain, columns))
        return
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            names = file.schema_arrow.names
            distinct(path, names)
            for name in columns or ():
                position(path, names, name)
            first = 0
            for part in file.iter_batches(BATCH_ROWS, columns=list(columns or names)):
                rows = range(first, first + part.num_rows)
                values = {name: part.column(name).to_pylist() for name in part.schema.names}
                yield Batch(path, rows, range(first + 1, first + 1 + part.num_rows), values)
                first += part.num_rows
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: not a sound Parquet file ({str(error).splitlines()[0]})") from None


def unzip(path: Path, to: Path) -> None:
    try:
        with gzip.open(path) as packed, to.open("wb") as plain:
            shutil.copyfileobj(packed, plain)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise UserError(f"{path}: not a whole gzip file") from None
