"""Batches become rows on disk: Arrow files that are mapped into memory, so that their size does not matter.

A file that was read before, and has not changed since, is not read again.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import datasets
import pyarrow as pa
from datasets import Dataset

from headwise.errors import UserError
from headwise.tasks.formats import Batch, place

VERSION = 1  # of what is stored; a new one forgets what older ones stored


Read = Callable[[Path, Sequence[str] | None], Iterable[Batch]]


@dataclass(frozen=True)
class Field:
    """One column of what is stored.

    Args:
        column: its name in the batches.
        type: what is stored.
        convert: a value of the file → what is stored; a ValueError says what is wrong with it.
        way: how it converts, where `convert` depends on more than the value.
    """

    column: str
    type: pa.DataType
    convert: Callable[..., Any]
    way: str = ""


@dataclass(frozen=True)
class Source:
    """Files that are read in the same way.

    Args:
        files: what to read.
        read: a file and the columns that are needed (None: all) → its batches.
        way: how it is read, to tell apart what was stored of the same files.
    """

    files: tuple[Path, ...]
    read: Read
    way: str

    def head(self) -> Batch:
        """The first rows: enough to see what there is."""
        first = next(iter(self.read(self.files[0], None)), None)
        if first is None:
            raise UserError(f"{self.files[0]}: holds no rows")
        return first


@dataclass(frozen=True)
class Rows:
    """Rows as they were read: the fields, and `row`, `line` and `file`, which say where each came from."""

    data: Dataset
    files: tuple[Path, ...]

    def place(self, index: int) -> str:
        """File and line of a row, for a message."""
        row = self.data[int(index)]
        return place(self.files[row["file"]], row["line"])

    @property
    def file(self) -> Path:
        """Where the rows are stored."""
        return Path(self.data.cache_files[0]["filename"])

    def column(self, name: str) -> pa.ChunkedArray:
        return self.data.data.column(name)

    @property
    def origin(self) -> str:
        return ", ".join(map(str, self.files))


def store(source: Source, fields: Mapping[str, Field], *, cache: Path | None = None) -> Rows:
    """All rows of a source, memory-mapped.

    Args:
        source: what to read.
        fields: what to store of it, by the name it gets.
        cache: the folder for what is stored; by default one beside Hugging Face's data sets.

    Raises:
        UserError: a value that a field does not take, with its file and line; no rows; no room on the disk.
    """
    folder = Path(datasets.config.HF_DATASETS_CACHE, "headwise") if cache is None else Path(cache)
    target = folder / f"{fingerprint(source, fields)}.arrow"
    if not target.exists():
        unfinished = target.with_suffix(f".{uuid4().hex}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write(unfinished, converted(source, fields), schema(fields))
            os.replace(unfinished, target)  # another process may have been faster; what it wrote is the same
        except OSError as error:
            raise UserError(f"{error.filename or folder}: {error.strerror or error}") from None
        finally:
            unfinished.unlink(missing_ok=True)
    rows = Rows(Dataset.from_file(str(target)), source.files)
    if not len(rows.data):
        raise UserError(f"{rows.origin}: holds no rows")
    return rows


def fingerprint(source: Source, fields: Mapping[str, Field]) -> str:
    seen = [
        (str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in source.files if file.exists()
    ]
    kept = [
        (name, field.column, str(field.type), field.convert.__qualname__, field.way) for name, field in fields.items()
    ]
    return hashlib.sha256(repr((VERSION, source.way, kept, seen)).encode()).hexdigest()[:32]


def schema(fields: Mapping[str, Field]) -> pa.Schema:
    places = [("row", pa.int64()), ("line", pa.int64()), ("file", pa.int64())]
    return pa.schema([*((name, field.type) for name, field in fields.items()), *places])


def converted(source: Source, fields: Mapping[str, Field]) -> Iterator[list[pa.Array]]:
    columns = list(dict.fromkeys(field.column for field in fields.values()))
    for number, file in enumerate(source.files):
        for batch in source.read(file, columns):
            values = [take(batch, field) for field in fields.values()]
            where = (batch.rows, batch.lines, [number] * len(batch.rows))
            yield [*values, *map(pa.array, where)]


def take(batch: Batch, field: Field) -> pa.Array:
    values = batch.columns[field.column]
    try:
        return pa.array(map(field.convert, values), field.type)
    except ValueError:
        for index, value in enumerate(values):
            try:
                pa.array([field.convert(value)], field.type)
            except ValueError as error:
                raise UserError(f"{batch.place(index)}: column {field.column!r}: {error}") from None
        raise


def write(path: Path, batches: Iterable[list[pa.Array]], schema: pa.Schema) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as out:
        for columns in batches:
            out.write_batch(pa.record_batch(columns, schema=schema))
