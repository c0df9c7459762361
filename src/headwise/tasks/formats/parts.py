"""Division of files into parts that can be read independently of each other."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headwise.errors import UserError, first_line
from headwise.files import LineReader, check_regular, is_gzip
from headwise.tasks.formats import read_batches
from headwise.tasks.formats.batch import FilePart, file_extension
from headwise.tasks.formats.delimited import parse_delimited
from headwise.tasks.formats.parquet import gunzip

#: More parts are not planned. Damaged files may claim any number of rows.
MAX_PARTS = 1_000_000


def plan_parts(path: Path, part_rows: int, *, copy: Path, delimiter: str | None = None) -> list[FilePart]:
    """Divide a file into parts of consecutive rows, in their order.

    Parts of a Parquet file are whole row groups, or divisions of a row group with more than `part_rows` rows. A gzipped
    file cannot be read from the middle: if it has several parts, it is decompressed.

    Args:
        path: The file.
        part_rows: The number of rows of a part.
        copy: Where the decompressed copy of a gzipped file is written.
        delimiter: The delimiter of a CSV or TSV file; by default it is recognized.

    Raises:
        UserError: The file does not exist, is invalid or has no rows.
    """
    check_regular(path)
    match file_extension(path):
        case ".parquet":
            parts = plan_parquet(path, part_rows, copy)
        case ".csv" | ".tsv" as extension:
            lines = LineReader(path)
            _, rows = parse_delimited(lines, None, None, delimiter, extension == ".tsv")
            parts = divide_lines(lines, rows, part_rows)
        case ".jsonl" | ".ndjson" | ".json":
            lines = LineReader(path)
            parts = divide_lines(lines, (line for line in lines.read_bytes() if not line.isspace()), part_rows)
        case _:  # Excel, or an unknown format, which the reader reports
            parts = [FilePart(path, 0, sum(len(batch.rows) for batch in read_batches(path)))]
    if not parts or not parts[0].num_rows:
        raise UserError(f"{path}: contains no rows")
    return use_copy(parts, copy)


def plan_lines(path: Path, part_rows: int, *, copy: Path) -> list[FilePart]:
    """Divide a text file with one row per line into parts.

    Raises:
        UserError: The file does not exist or is invalid.
    """
    check_regular(path)
    lines = LineReader(path)
    return use_copy(divide_lines(lines, lines.read_bytes(), part_rows), copy)


def divide_lines(lines: LineReader, rows: Iterator[object], part_rows: int) -> list[FilePart]:
    """Divide a text file into parts, given an iterator that reads its rows one by one."""
    make_part = partial(FilePart, lines.path)
    starts, num_rows = [(0, 0, 0)], 0
    for num_rows, _ in enumerate(rows, 1):
        if num_rows % part_rows == 0:
            starts.append((num_rows, lines.num_bytes, lines.number))
    ends = [start for start, *_ in starts[1:]] + [num_rows]
    return [
        make_part(start, end - start, offset=offset, line=line)
        for (start, offset, line), end in zip(starts, ends, strict=True)
        if end > start
    ]


def plan_parquet(path: Path, part_rows: int, copy: Path) -> list[FilePart]:
    """Divide a Parquet file into parts: row groups, several small ones together and large ones divided."""
    is_copied = is_gzip(path)
    if is_copied:
        gunzip(path, copy)
    try:
        metadata = pq.read_metadata(copy if is_copied else path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = first_line(error)
        raise UserError(f"{path}: invalid Parquet file ({reason})") from None
    parts: list[FilePart] = []
    first_row = 0
    for group in range(metadata.num_row_groups):
        num_rows = metadata.row_group(group).num_rows
        if not 0 <= num_rows <= MAX_PARTS * part_rows - first_row:
            raise UserError(
                f"{path}: invalid Parquet file, or more rows than {MAX_PARTS:,} parts of {part_rows:,} rows can have; "
                "set a larger --part-rows"
            )
        last = parts[-1] if parts else None
        if last is not None and last.row_groups is not None and last.num_rows + num_rows <= part_rows:
            parts[-1] = replace(last, num_rows=last.num_rows + num_rows, row_groups=(last.row_groups[0], group + 1))
        else:
            for start in range(0, num_rows, part_rows):
                size = min(part_rows, num_rows - start)
                parts.append(FilePart(path, first_row + start, size, row_groups=(group, group + 1), skipped_rows=start))
        first_row += num_rows
    return [replace(part, copy=copy) for part in parts] if is_copied else parts


def use_copy(parts: list[FilePart], copy: Path) -> list[FilePart]:
    """Return the parts; if there are several of a gzipped file, as parts of a decompressed copy."""
    if len(parts) < 2 or parts[0].copy is not None or not is_gzip(parts[0].path):
        return parts
    gunzip(parts[0].path, copy)
    return [replace(part, copy=copy) for part in parts]
