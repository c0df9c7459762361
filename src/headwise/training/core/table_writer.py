"""Output files that are written batch by batch: CSV, TSV, JSON Lines or Parquet, optionally gzipped."""

import csv
import gzip
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from headwise.csv_cells import quote_row
from headwise.errors import UserError
from headwise.tasks.formats import WRITABLE_EXTENSIONS, file_extension
from headwise.training.core.distributed import state
from headwise.training.core.run_dir import atomic_path

Columns = Mapping[str, Sequence[Any]]
#: Writes a batch of rows, given by column.
Write = Callable[[Columns], None]


@contextmanager
def open_output(out: Path, *, source: Path) -> Iterator[Path]:
    """Yield a temporary path that is moved to `out` at the end, or deleted on an error.

    Of several processes, only the main process writes; the others get the path of the null device.

    Args:
        out: the output file.
        source: the input file.

    Raises:
        UserError: the output is the input.
    """
    if out.exists() and source.exists() and out.samefile(source):
        raise UserError(f"--out {out}: the output is the input file")
    if not state().is_main_process:
        yield Path(os.devnull)
        return
    with atomic_path(out) as path:
        yield path


@contextmanager
def open_table(out: Path, *, source: Path) -> Iterator[Write]:
    """Yield a function that writes batches of rows. On an error, no file is left.

    Args:
        out: the output file; its extension is the format.
        source: the input file.

    Raises:
        UserError: the extension is unknown, the output is the input, or the format cannot store the rows.
    """
    extension = file_extension(out)
    if extension not in WRITABLE_EXTENSIONS:
        raise UserError(
            f"--out {out}: unknown format; expected {', '.join(WRITABLE_EXTENSIONS)}, optionally with .gz (the input "
            f"is {source.name})"
        )
    if not state().is_main_process:
        yield lambda _: None
        return
    with open_output(out, source=source) as path:
        if extension == ".parquet":
            with parquet_writer(path, out, read_schema(source)) as write:
                yield write
            if out.suffix == ".gz":
                gzip_in_place(path)
        else:
            with open_text(path, gzipped=out.suffix == ".gz") as file:
                yield csv_writer(file, out) if extension in (".csv", ".tsv") else json_lines_writer(file)


def open_text(path: Path, *, gzipped: bool) -> Any:
    """Open a text file for writing."""
    opener = gzip.open if gzipped else open
    return opener(path, "wt", encoding="utf-8", newline="")


def csv_writer(file: TextIO, out: Path) -> Write:
    """Return a function that writes CSV, or TSV without quoting."""
    tsv_options: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}
    writer = csv.writer(file, lineterminator="\n", **tsv_options if file_extension(out) == ".tsv" else {})
    header: list[str] = []

    def write(columns: Columns) -> None:
        lines = []
        if not header:
            header.extend(columns)
            lines.append(header)
        new = [name for name in columns if name not in header]
        if new:
            raise UserError(f"--out {out}: column {new[0]!r} is missing in the first rows; use JSON Lines instead")
        blank = [""] * len(next(iter(columns.values())))
        values = [["" if x is None else x for x in columns.get(name, blank)] for name in header]
        try:
            writer.writerows(map(quote_row, [*lines, *zip(*values, strict=True)]))
        except csv.Error:
            raise UserError(f"--out {out}: TSV cannot store tabs or line breaks in a field; use .csv") from None

    return write


def json_lines_writer(file: TextIO) -> Write:
    """Return a function that writes JSON Lines."""

    def write(columns: Columns) -> None:
        for values in zip(*columns.values(), strict=True):
            record = dict(zip(columns, values, strict=True))
            file.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")

    return write


@contextmanager
def parquet_writer(path: Path, out: Path, source_schema: pa.Schema) -> Iterator[Write]:
    """Yield a function that writes Parquet. Columns have the types of the source, or of their first values."""
    writer: pq.ParquetWriter | None = None

    def write(columns: Columns) -> None:
        nonlocal writer
        blank = [None] * len(next(iter(columns.values())))
        try:
            writer = writer or pq.ParquetWriter(path, infer_schema(columns, source_schema))
            arrays = [pa.array(list(columns.get(field.name, blank)), field.type) for field in writer.schema]
            if not columns.keys() <= set(writer.schema.names):
                raise pa.ArrowInvalid("a column is missing in the first rows")
        except (pa.ArrowException, OverflowError) as error:
            raise UserError(f"--out {out}: rows have different types ({error}); use JSON Lines instead") from None
        writer.write_table(pa.table(arrays, schema=writer.schema))

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


def read_schema(source: Path) -> pa.Schema:
    """Return the schema of a Parquet file; that of any other file is empty."""
    try:
        return pq.read_schema(source) if file_extension(source) == ".parquet" and source.is_file() else pa.schema([])
    except (pa.ArrowException, OSError):  # gzipped, or invalid, which its reader reports
        return pa.schema([])


def infer_schema(columns: Columns, source_schema: pa.Schema) -> pa.Schema:
    """Return the schema of a batch: types of the source where it has the column, else those of the values."""
    fields = []
    for name, values in columns.items():
        if name in source_schema.names:
            fields.append(source_schema.field(name))
            continue
        arrow_type = pa.float64() if name.startswith(("probability_", "confidence")) else pa.array(list(values)).type
        fields.append(pa.field(name, pa.string() if pa.types.is_null(arrow_type) else arrow_type))
    return pa.schema(fields)


def gzip_in_place(path: Path) -> None:
    """Compress a file."""
    compressed = path.with_name(f"{path.name}.gz")
    with path.open("rb") as plain, gzip.open(compressed, "wb") as file:
        shutil.copyfileobj(plain, file)
    compressed.replace(path)
