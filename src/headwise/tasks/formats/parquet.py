"""The reader of Parquet files."""

import gzip
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwise.errors import UserError, first_line
from headwise.files import LINE_LIMIT_VARIABLE, MAX_COMPRESSION_RATIO, MAX_RATIO_FREE_BYTES, is_gzip, max_line_bytes
from headwise.tasks.formats import batch as batches
from headwise.tasks.formats.batch import Batch, FilePart, check_distinct, column_index


def read_parquet(path: Path, columns: Sequence[str] | None, part: FilePart | None = None) -> Iterator[Batch]:
    """Read the rows of a Parquet file. A gzipped file is decompressed to a temporary file first.

    Args:
        path: The file.
        columns: The columns to read; all by default.
        part: The rows to read, of consecutive row groups; all by default.

    Raises:
        UserError: The file is invalid, or a value is too long or cannot be read.
    """
    if part is not None:
        yield from read_decompressed(part.copy or path, path, columns, part)
    elif is_gzip(path):
        with tempfile.TemporaryDirectory() as directory:
            decompressed = Path(directory, "rows.parquet")
            gunzip(path, decompressed)
            yield from read_decompressed(decompressed, path, columns)
    else:
        yield from read_decompressed(path, path, columns)


def read_decompressed(
    file_path: Path, path: Path, columns: Sequence[str] | None, part: FilePart | None = None
) -> Iterator[Batch]:
    """Read the rows of a Parquet file.

    Args:
        file_path: The file.
        path: Its name in messages.
        columns: The columns to read; all by default.
        part: The rows to read; all by default.
    """
    try:
        schema = pq.read_schema(file_path, memory_map=True)
        check_distinct(path, schema.names)
        for name in columns or ():
            column_index(path, schema.names, name)
        texts = [field.name for field in schema if is_text(field.type)]  # in memory, equal texts are stored once
        with pq.ParquetFile(file_path, memory_map=True, read_dictionary=texts) as file:
            names = list(columns or schema.names)
            check_compression(path, file.metadata, file_path.stat().st_size)
            start = 0 if part is None else part.first_row
            for record_batch in read_record_batches(file, names, part):
                for piece in split_by_size(path, record_batch, start):
                    rows = range(start, start + piece.num_rows)
                    values = {name: to_values(path, start, name, piece.column(name)) for name in piece.schema.names}
                    yield Batch(path, rows, range(start + 1, start + 1 + piece.num_rows), values)
                    start += piece.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = first_line(error)
        raise UserError(f"{path}: invalid Parquet file ({reason})") from None


def read_record_batches(file: pq.ParquetFile, names: list[str], part: FilePart | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, or of a part of it, in batches."""
    if part is None or part.row_groups is None:
        yield from file.iter_batches(batches.BATCH_ROWS, columns=names)
        return
    num_skipped, num_missing = part.skipped_rows, part.num_rows
    for record_batch in file.iter_batches(batches.BATCH_ROWS, row_groups=range(*part.row_groups), columns=names):
        rows = record_batch.slice(num_skipped, num_missing)
        num_skipped = max(num_skipped - record_batch.num_rows, 0)
        num_missing -= rows.num_rows
        if rows.num_rows:
            yield rows
        if not num_missing:
            return


def is_text(arrow_type: pa.DataType) -> bool:
    """Return whether values are strings or bytes."""
    return any(
        check(arrow_type)
        for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )


def check_compression(path: Path, metadata: pq.FileMetaData, file_size: int) -> None:
    """Check that no row group is so large and so strongly compressed that a page of it may not fit into memory.

    Sizes of single columns are not read: pyarrow ends the process if they are damaged.

    Raises:
        UserError: There is one.
    """
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        size = row_group.total_byte_size
        ratio = size / max(file_size, 1)
        if size > MAX_RATIO_FREE_BYTES and ratio > MAX_COMPRESSION_RATIO:
            raise UserError(
                f"{path}: row group {group + 1} has {size:,} bytes, compressed {ratio:,.0f} times; at most "
                f"{MAX_COMPRESSION_RATIO} times are allowed"
            )


def split_by_size(path: Path, part: pa.RecordBatch, start: int) -> Iterator[pa.RecordBatch]:
    """Split a batch into pieces of about BATCH_BYTES, in which equal texts count each time.

    Raises:
        UserError: A text is longer than a line may be.
    """
    limit = max_line_bytes()
    sizes = np.zeros(part.num_rows, np.int64)
    for name, column in zip(part.schema.names, part.columns, strict=True):
        if not isinstance(column, pa.DictionaryArray) or not is_text(column.type.value_type):
            sizes += column.nbytes // max(part.num_rows, 1)
            continue
        lengths = pc.binary_length(column.dictionary).take(column.indices).fill_null(0).to_numpy(zero_copy_only=False)
        too_long = np.flatnonzero(lengths > limit)
        if len(too_long):
            raise UserError(
                f"{path}, row {start + too_long[0] + 1}: column {name!r} has {lengths[too_long[0]]:,} bytes, "
                f"at most {limit:,} are allowed; check the file, or set {LINE_LIMIT_VARIABLE}"
            )
        sizes += lengths
    ends = np.cumsum(sizes)
    begin = 0
    while begin < part.num_rows:
        read = ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, read + batches.BATCH_BYTES)))
        yield part.slice(begin, end - begin)
        begin = end


def to_values(path: Path, start: int, name: str, column: pa.Array) -> list[Any]:
    """Return the values of a column; bytes are decoded as UTF-8.

    Raises:
        UserError: A value does not exist in Python, such as a date after the year 9999 or bytes that are not UTF-8.
    """
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    try:
        return [to_value(value) for value in column]
    except (ValueError, OverflowError, pa.ArrowException):
        for index, value in enumerate(column):
            try:
                to_value(value)
            except UnicodeDecodeError as error:
                reason = f"not UTF-8 (byte {error.start + 1} of the value)"
            except (ValueError, OverflowError, pa.ArrowException) as error:
                reason = f"the {value.type} cannot be read ({first_line(error)})"
            else:
                continue
            raise UserError(f"{path}, row {start + index + 1}: column {name!r}: {reason}") from None
        raise


def to_value(value: Any) -> Any:
    """Return the Python value of an Arrow scalar."""
    python_value = value.as_py()
    return python_value.decode("utf-8") if isinstance(python_value, bytes) else python_value


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
