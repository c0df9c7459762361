"""A cache of parsed files: Arrow files that are memory-mapped, so that data sets can be larger than memory.

Files that were parsed before and have not changed are not parsed again.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import datasets
import pyarrow as pa
from datasets import Dataset

from headwise.errors import UserError
from headwise.tasks.formats import Batch, format_location

logger = logging.getLogger(__name__)

VERSION = 2  # of the stored content; a new version invalidates the cache
MAX_REPORTED_ROWS = 5  # of those that are invalid

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
        convert_batch: Converts many values at once and faster; raises a ValueError if a value may be invalid, and then
            `convert` decides.
    """

    column: str
    type: pa.DataType
    convert: Callable[..., Any]
    cache_key: str = ""
    convert_batch: Callable[[Sequence[Any]], pa.Array] | None = None

    def to_array(self, values: Sequence[Any]) -> pa.Array:
        """Convert the values of a batch.

        Raises:
            ValueError: A value is invalid.
        """
        return (
            pa.array(map(self.convert, values), self.type) if self.convert_batch is None else self.convert_batch(values)
        )


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


@dataclass
class BadRows:
    """Rows with an invalid value, such as an empty text or no label.

    Args:
        count: Their number.
        total: The number of all rows.
        first: The locations of the first ones, and the reasons.
    """

    count: int = 0
    total: int = 0
    first: list[tuple[str, str]] = field(default_factory=list)

    def add(self, location: str, reason: str) -> None:
        """Add a row."""
        self.count += 1
        if len(self.first) < MAX_REPORTED_ROWS:
            self.first.append((location, reason))

    def __str__(self) -> str:
        """Describe the rows.

        >>> str(BadRows(1, 9, [("a.csv, line 3", "column 'text': empty text")]))
        "a.csv, line 3: column 'text': empty text"
        """
        if self.count == 1:
            return ": ".join(self.first[0])
        # The name of the file comes once.
        files = list(dict.fromkeys(location.rpartition(", ")[0] for location, _ in self.first))
        rows = [
            f"{location if len(files) > 1 else location.rpartition(', ')[2]} ({reason})"
            for location, reason in self.first
        ]
        more = self.count - len(rows)
        end = f" and {more:,} more" if more else ""
        start = "" if len(files) > 1 else f"{files[0]}: "
        return f"{start}{self.count:,} of {self.total:,} rows are invalid: {', '.join(rows)}{end}"


@dataclass(frozen=True)
class Rows:
    """Cached rows: the fields, and the columns `row`, `line` and `file` with the location of each row.

    Args:
        file: The Arrow file.
        files: The files that were parsed.
        skipped: The rows that were skipped.
    """

    file: Path
    files: tuple[Path, ...]
    skipped: BadRows = field(default_factory=BadRows)

    @cached_property
    def data(self) -> Dataset:
        """The rows, memory-mapped. A batch of `BATCH_ROWS` rows takes thousands of bytes of memory for its layout."""
        return Dataset.from_file(str(self.file))

    def location(self, index: int) -> str:
        """Return the file and line of a row, for a message."""
        row = self.data[int(index)]
        return format_location(self.files[row["file"]], row["line"])

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a column."""
        return self.data.data.column(name)

    @property
    def origin(self) -> str:
        """The names of the files, for a message."""
        return ", ".join(map(str, self.files))


def load_rows(
    source: Source, fields: Mapping[str, Field], *, cache: Path | None = None, skip_bad_rows: bool | None = None
) -> Rows:
    """Load all rows of a source, memory-mapped.

    Args:
        source: The files.
        fields: The columns to load, by their names in the cache.
        cache: The cache directory; by default a subdirectory of the cache of Hugging Face's datasets.
        skip_bad_rows: Whether rows with invalid values are skipped, with a warning; None if there is no such option.

    Raises:
        UserError: A value is invalid, there are no rows, or the cache cannot be written.
    """
    directory = Path(datasets.config.HF_DATASETS_CACHE, "headwise") if cache is None else Path(cache)
    target = directory / f"{fingerprint(source, fields)}{'-skipped' if skip_bad_rows else ''}.arrow"
    report = target.with_suffix(".json")  # of the rows that were skipped
    bad_rows = BadRows()
    if not target.exists() or (skip_bad_rows and not report.exists()):
        temporary = target.with_suffix(f".{uuid4().hex}")
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write_arrow(temporary, convert_batches(source, fields, bad_rows), arrow_schema(fields))
            if bad_rows.count and (not skip_bad_rows or bad_rows.count == bad_rows.total):
                raise invalid_rows(bad_rows, has_option=skip_bad_rows is not None)
            if skip_bad_rows:
                write_report(report, bad_rows)
            os.replace(temporary, target)  # another process may have written the same content
        except OSError as error:
            raise UserError(f"{error.filename or directory}: {error.strerror or error}") from None
        finally:
            temporary.unlink(missing_ok=True)
    elif skip_bad_rows:
        bad_rows = BadRows(**json.loads(report.read_text(encoding="utf-8")))
    rows = Rows(target, source.files, bad_rows)
    if not any(batch.num_rows for batch in pa.ipc.open_stream(pa.memory_map(str(target)))):
        raise UserError(f"{rows.origin}: the file has no rows")
    if bad_rows.count:
        logger.warning("skipped: %s", bad_rows)
    return rows


def invalid_rows(bad_rows: BadRows, *, has_option: bool) -> UserError:
    """Return the error for invalid rows.

    Args:
        bad_rows: The rows.
        has_option: Whether the user can skip them.
    """
    rows = "the row, or skip it" if bad_rows.count == 1 else "the rows, or skip them"
    hint = f"; correct {rows} with --skip-bad-rows" if has_option and bad_rows.count < bad_rows.total else ""
    return UserError(f"{bad_rows}{hint}")


def write_report(path: Path, bad_rows: BadRows) -> None:
    """Write the rows that were skipped, for later loads from the cache."""
    temporary = path.with_suffix(f".{uuid4().hex}")
    temporary.write_text(json.dumps(asdict(bad_rows)), encoding="utf-8")
    os.replace(temporary, path)


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


def convert_batches(source: Source, fields: Mapping[str, Field], bad_rows: BadRows) -> Iterator[list[pa.Array]]:
    """Read a source and convert its valid rows to the columns of the cache; the others are added to `bad_rows`."""
    columns = list(dict.fromkeys(field.column for field in fields.values()))
    for file_index, file in enumerate(source.files):
        for batch in source.read(file, columns):
            bad_rows.total += len(batch.rows)
            rows, lines = batch.rows, batch.lines
            try:
                values = [field.to_array(batch.columns[field.column]) for field in fields.values()]
            except ValueError:
                valid = find_valid_rows(batch, fields, bad_rows)
                values = [
                    pa.array([field.convert(batch.columns[field.column][index]) for index in valid], field.type)
                    for field in fields.values()
                ]
                rows, lines = [rows[index] for index in valid], [lines[index] for index in valid]
            location = (rows, lines, [file_index] * len(rows))
            yield [*values, *(pa.array(numbers, pa.int64()) for numbers in location)]


def find_valid_rows(batch: Batch, fields: Mapping[str, Field], bad_rows: BadRows) -> list[int]:
    """Return the indices of the rows whose values are valid, and add the others to `bad_rows`."""
    valid = []
    for index in range(len(batch.rows)):
        for field_ in fields.values():
            try:
                pa.array([field_.convert(batch.columns[field_.column][index])], field_.type)
            except ValueError as error:
                bad_rows.add(batch.location(index), f"column {field_.column!r}: {error}")
                break
        else:
            valid.append(index)
    return valid


def write_arrow(path: Path, batches: Iterable[list[pa.Array]], schema: pa.Schema) -> None:
    """Write batches as an Arrow stream."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for columns in batches:
            writer.write_batch(pa.record_batch(columns, schema=schema))
