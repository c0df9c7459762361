"""Output files that are written batch by batch: CSV, TSV, JSON Lines or Parquet, optionally gzipped."""

import csv
import gzip
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from headwise.csv_cells import quote_row
from headwise.errors import UserError
from headwise.tasks.formats import WRITABLE_EXTENSIONS, Batch, file_extension
from headwise.training.core.distributed import main_process_only, state
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
def standard_output(extension: str) -> Iterator[Path]:
    """Yield a temporary path, the same in all processes, whose contents are written to standard output at the end."""
    directory = Path(main_process_only(lambda: tempfile.mkdtemp(), share=True))
    path = directory / f"output{extension}"
    try:
        yield path
        if state().is_main_process:
            sys.stdout.flush()
            with path.open("rb") as file:
                shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.flush()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@dataclass(frozen=True)
class TableFormat:
    """The format of an output table, which is written in parts that are joined at the end.

    Args:
        out: the output file; its extension is the format.
        columns: the names of all columns.
        schema: their types; None for text formats.
    """

    out: Path
    columns: tuple[str, ...]
    schema: pa.Schema | None

    @classmethod
    def from_head(cls, out: Path, head: Batch, new_columns: Mapping[str, pa.DataType]) -> "TableFormat":
        """Return the format of a file with all columns of another file and new ones.

        Args:
            out: the output file.
            head: the first rows of the other file. Columns have the types of the file, or of these rows.
            new_columns: the names and types of the new columns.

        Raises:
            UserError: the extension is unknown, the output is the other file, the format cannot store the rows, or the
                other file already has a column of that name.
        """
        extension = check_extension(out, head.path)
        if out.exists() and out.samefile(head.path):
            raise UserError(f"--out {out}: the output is the input file")
        taken = [name for name in new_columns if name in head.columns]
        if taken:
            raise UserError(f"{head.path}: already has a column {taken[0]!r}; rename it to add predictions")
        schema = None
        if extension == ".parquet":
            with parquet_errors(out):
                schema = infer_schema(head.columns, read_schema(head.path))
            schema = pa.schema([*schema, *(pa.field(name, arrow_type) for name, arrow_type in new_columns.items())])
        return cls(out, (*head.columns, *new_columns), schema)

    @contextmanager
    def open_part(self, path: Path, *, is_first: bool) -> Iterator[Write]:
        """Yield a function that writes batches of rows.

        Args:
            path: the file of the part.
            is_first: whether the part is the first one, which contains the header.
        """
        extension = file_extension(self.out)
        if self.schema is not None:
            with pq.ParquetWriter(path, self.schema) as writer:
                yield lambda columns: writer.write_table(self.to_table(columns))
            return
        with open_text(path, gzipped=self.out.suffix == ".gz") as file:
            if extension in (".csv", ".tsv"):
                yield csv_writer(file, self.out, self.columns, with_header=is_first)
            else:
                yield json_lines_writer(file)

    def to_table(self, columns: Columns) -> pa.Table:
        """Return a batch of rows with the types of the output.

        Raises:
            UserError: a value has another type, or a column is not in the first rows.
        """
        assert self.schema is not None
        blank = [None] * len(next(iter(columns.values())))
        with parquet_errors(self.out):
            if not columns.keys() <= set(self.columns):
                raise pa.ArrowInvalid("a column is missing in the first rows")
            arrays = [pa.array(list(columns.get(field.name, blank)), field.type) for field in self.schema]
        return pa.table(arrays, schema=self.schema)

    def join(self, parts: Sequence[Path]) -> None:
        """Write the output file: its parts in order, one row group for each part of a Parquet file."""
        with atomic_path(self.out) as path:
            if self.schema is None:
                join_files(parts, path)
                return
            with pq.ParquetWriter(path, self.schema) as writer:
                for part in parts:
                    writer.write_table(pq.read_table(part, memory_map=True))
            if self.out.suffix == ".gz":
                gzip_in_place(path)


def check_extension(out: Path, source: Path) -> str:
    """Return the extension that is the format of an output file.

    Raises:
        UserError: it is unknown.
    """
    extension = file_extension(out)
    if extension not in WRITABLE_EXTENSIONS:
        raise UserError(
            f"--out {out}: unknown format; expected {', '.join(WRITABLE_EXTENSIONS)}, optionally with .gz (the input "
            f"is {source.name})"
        )
    return extension


@contextmanager
def parquet_errors(out: Path) -> Iterator[None]:
    """Turn errors of values that Parquet cannot store into a UserError."""
    try:
        yield
    except (pa.ArrowException, OverflowError) as error:
        raise UserError(f"--out {out}: rows have different types ({error}); use JSON Lines instead") from None


def join_files(parts: Sequence[Path], path: Path) -> None:
    """Write the bytes of files one after the other. Gzipped files become one gzipped file."""
    with path.open("wb") as file:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, file)


def open_text(path: Path, *, gzipped: bool) -> Any:
    """Open a text file for writing."""
    opener = gzip.open if gzipped else open
    return opener(path, "wt", encoding="utf-8", newline="")


def csv_writer(file: TextIO, out: Path, header: Sequence[str], *, with_header: bool) -> Write:
    """Return a function that writes CSV, or TSV without quoting."""
    tsv_options: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}
    writer = csv.writer(file, lineterminator="\n", **tsv_options if file_extension(out) == ".tsv" else {})

    def write_rows(rows: Iterable[Iterable[Any]]) -> None:
        try:
            writer.writerows(map(quote_row, rows))
        except csv.Error:
            raise UserError(f"--out {out}: TSV cannot store tabs or line breaks in a field; use .csv") from None

    def write(columns: Columns) -> None:
        new = [name for name in columns if name not in header]
        if new:
            raise UserError(f"--out {out}: column {new[0]!r} is missing in the first rows; use JSON Lines instead")
        blank = [""] * len(next(iter(columns.values())))
        values = [["" if x is None else x for x in columns.get(name, blank)] for name in header]
        write_rows(zip(*values, strict=True))

    if with_header:
        write_rows([header])
    return write


def json_lines_writer(file: TextIO) -> Write:
    """Return a function that writes JSON Lines."""

    def write(columns: Columns) -> None:
        for values in zip(*columns.values(), strict=True):
            record = dict(zip(columns, values, strict=True))
            file.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")

    return write


def read_schema(source: Path) -> pa.Schema:
    """Return the schema of a Parquet file; that of any other file is empty."""
    try:
        return pq.read_schema(source) if file_extension(source) == ".parquet" and source.is_file() else pa.schema([])
    except (pa.ArrowException, OSError, UnicodeDecodeError):  # gzipped, or invalid, which its reader reports
        return pa.schema([])


def infer_schema(columns: Columns, source_schema: pa.Schema) -> pa.Schema:
    """Return the schema of a batch: types of the source where it has the column, else those of the values."""
    fields = []
    for name, values in columns.items():
        if name in source_schema.names:
            fields.append(source_schema.field(name))
            continue
        arrow_type = pa.array(list(values)).type
        fields.append(pa.field(name, pa.string() if pa.types.is_null(arrow_type) else arrow_type))
    return pa.schema(fields)


def gzip_in_place(path: Path) -> None:
    """Compress a file."""
    compressed = path.with_name(f"{path.name}.gz")
    with path.open("rb") as plain, gzip.open(compressed, "wb") as file:
        shutil.copyfileobj(plain, file)
    compressed.replace(path)
