"""A cache of parsed files: Arrow files that are memory-mapped, so that data sets can be larger than memory.

Files that were parsed before and have not changed are not parsed again.
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
from headwise.tasks.formats import Batch, format_location

VERSION = 1  # of the stored content; a new version invalidates the cache

#: Returns the batches of a file, with the given columns; None for all columns.
Read = Callable[[Path, Sequence[str] | None], Iterable[Batch]]


@dataclass(frozen=True)
class Field:
    """A column of the cached rows.

    Args:
        column: The column of the file.
        type: The type in the cache.
        convert: Converts a value of the file; raises a ValueError if the value is invalid.
        cache_key: Distinguishes conversions, if `convert` depends on more than the value.
    """

    column: str
    type: pa.DataType
    convert: Callable[..., Any]
    cache_key: str = ""


@dataclass(frozen=True)
class Source:
    """Files with the same reader.

    Args:
        files: The files.
        read: Their reader.
        cache_key: Distinguishes readers of the same files.
    """

    files: tuple[Path, ...]
    read: Read
    cache_key: str

    def head(self) -> Batch:
        """Read the first batch, with all columns."""
        batch = next(iter(self.read(self.files[0], None)), None)
        if batch is None:
            raise UserError(f"{self.files[0]}: the file has no rows")
        return batch


@dataclass(frozen=True)
class Rows:
    """Cached rows: the fields, and the columns `row`, `line` and `file` with the location of each row."""

    data: Dataset
    files: tuple[Path, ...]

    def location(self, index: int) -> str:
        """Return the file and line of a row, for a message."""
        row = self.data[int(index)]
        return format_location(self.files[row["file"]], row["line"])

    @property
    def file(self) -> Path:
        """The Arrow file."""
        return Path(self.data.cache_files[0]["filename"])

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a column."""
        return self.data.data.column(name)

    @property
    def origin(self) -> str:
        """The names of the files, for a message."""
        return ", ".join(map(str, self.files))


def load_rows(source: Source, fields: Mapping[str, Field], *, cache: Path | None = None) -> Rows:
    """Load all rows of a source, memory-mapped.

    Args:
        source: The files.
        fields: The columns to load, by their names in the cache.
        cache: The cache directory; by default a subdirectory of the cache of Hugging Face's datasets.

    Raises:
        UserError: A value is invalid, there are no rows, or the cache cannot be written.
    """
    directory = Path(datasets.config.HF_DATASETS_CACHE, "headwise") if cache is None else Path(cache)
    target = directory / f"{fingerprint(source, fields)}.arrow"
    if not target.exists():
        temporary = target.with_suffix(f".{uuid4().hex}")
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write_arrow(temporary, convert_batches(source, fields), arrow_schema(fields))
            os.replace(temporary, target)  # another process may have written the same content
        except OSError as error:
            raise UserError(f"{error.filename or directory}: {error.strerror or error}") from None
        finally:
            temporary.unlink(missing_ok=True)
    rows = Rows(Dataset.from_file(str(target)), source.files)
    if not len(rows.data):
        raise UserError(f"{rows.origin}: the file has no rows")
    return rows


def fingerprint(source: Source, fields: Mapping[str, Field]) -> str:
    """Return a hash that changes if a file, its reader or a field changes."""
    files = [
        (str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in source.files if file.exists()
    ]
    columns = [
        (name, field.column, str(field.type), field.convert.__qualname__, field.cache_key)
        for name, field in fields.items()
    ]
    return hashlib.sha256(repr((VERSION, source.cache_key, columns, files)).encode()).hexdigest()[:32]


def arrow_schema(fields: Mapping[str, Field]) -> pa.Schema:
    """Return the schema of cached rows."""
    location = [("row", pa.int64()), ("line", pa.int64()), ("file", pa.int64())]
    return pa.schema([*((name, field.type) for name, field in fields.items()), *location])


def convert_batches(source: Source, fields: Mapping[str, Field]) -> Iterator[list[pa.Array]]:
    """Read a source and convert its batches to the columns of the cache."""
    columns = list(dict.fromkeys(field.column for field in fields.values()))
    for file_index, file in enumerate(source.files):
        for batch in source.read(file, columns):
            values = [convert_column(batch, field) for field in fields.values()]
            location = (batch.rows, batch.lines, [file_index] * len(batch.rows))
            yield [*values, *map(pa.array, location)]


def convert_column(batch: Batch, field: Field) -> pa.Array:
    """Convert a column of a batch.

    Raises:
        UserError: A value is invalid.
    """
    values = batch.columns[field.column]
    try:
        return pa.array(map(field.convert, values), field.type)
    except ValueError:
        for index, value in enumerate(values):
            try:
                pa.array([field.convert(value)], field.type)
            except ValueError as error:
                raise UserError(f"{batch.location(index)}: column {field.column!r}: {error}") from None
        raise


def write_arrow(path: Path, batches: Iterable[list[pa.Array]], schema: pa.Schema) -> None:
    """Write batches as an Arrow stream."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for columns in batches:
            writer.write_batch(pa.record_batch(columns, schema=schema))
