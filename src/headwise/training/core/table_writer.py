"""Rows written as they were read: CSV, TSV, JSON Lines or Parquet, gzipped or not."""

import csv
import gzip
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from headwise.errors import UserError
from headwise.tasks.formats import EXTENSIONS, file_extension
from headwise.training.core.run_dir import atomic_path

Columns = Mapping[str, Sequence[Any]]
Write = Callable[[Columns], None]


@contextmanager
def new_file(out: Path, *, like: Path) -> Iterator[Path]:
    """A path to write to. The file is there when all is written, or not at all.

    Raises:
        UserError: it is the file that is being read.
    """
    if out.exists() and like.exists() and out.samefile(like):
        raise UserError(f"--out {out}: that is the input itself")
    with atomic_path(out) as part:
        yield part


@contextmanager
def writer_for(out: Path, *, like: Path) -> Iterator[Write]:
    """A function that writes batch after batch of columns. The file is there when all is written, or not at all.

    Args:
        out: the file; its ending tells the format.
        like: what was read.

    Raises:
        UserError: an ending that says no format, the file that is being read, or rows that the format cannot hold.
    """
    if file_extension(out) not in EXTENSIONS:
        raise UserError(f"--out {out}: what format? Known: {', '.join(EXTENSIONS)}, also .gz; the input is {like.name}")
    with new_file(out, like=like) as part:
        if file_extension(out) == ".parquet":
            known = pq.read_schema(like) if like.suffix == ".parquet" and like.is_file() else pa.schema([])
            with parquet(part, out, known) as write:
                yield write
            if out.suffix == ".gz":
                zipped(part)
        else:
            with open_text(part, packed=out.suffix == ".gz") as file:
                yield json_lines(file) if file_extension(out) not in (".csv", ".tsv") else delimited(file, out)


def open_text(path: Path, *, packed: bool) -> Any:
    opened = gzip.open if packed else open
    return opened(path, "wt", encoding="utf-8", newline="")


def delimited(file: TextIO, out: Path) -> Write:
    """CSV; or TSV, where nothing is quoted."""
    tabs: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}
    rows = csv.writer(file, lineterminator="\n", **tabs if file_extension(out) == ".tsv" else {})
    named: list[str] = []

    def write(columns: Columns) -> None:
        lines = []
        if not named:
            named.extend(columns)
            lines.append(named)
        new = [name for name in columns if name not in named]
        if new:
            raise UserError(f"--out {out}: column {new[0]!r} is not in the first rows; JSON Lines can hold that")
        blank = [""] * len(next(iter(columns.values())))
        values = [["" if x is None else x for x in columns.get(name, blank)] for name in named]
        try:
            rows.writerows([*lines, *zip(*values, strict=True)])
        except csv.Error:
            raise UserError(f"--out {out}: a field holds a tab or a line end, which TSV cannot; name a .csv") from None

    return write


def json_lines(file: TextIO) -> Write:
    def write(columns: Columns) -> None:
        for values in zip(*columns.values(), strict=True):
            record = dict(zip(columns, values, strict=True))
            file.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")

    return write


@contextmanager
def parquet(path: Path, out: Path, known: pa.Schema) -> Iterator[Write]:
    """Parquet, columns of the types that are known, others of the type of their first values."""
    writer: pq.ParquetWriter | None = None

    def write(columns: Columns) -> None:
        nonlocal writer
        writer = writer or pq.ParquetWriter(path, schema_of(columns, known))
        blank = [None] * len(next(iter(columns.values())))
        try:
            arrays = [pa.array(list(columns.get(field.name, blank)), field.type) for field in writer.schema]
            if not columns.keys() <= set(writer.schema.names):
                raise pa.ArrowInvalid("a column that is not in the first rows")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UserError(f"--out {out}: rows differ ({error}); JSON Lines can hold that") from None
        writer.write_table(pa.table(arrays, schema=writer.schema))

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


def schema_of(columns: Columns, known: pa.Schema) -> pa.Schema:
    types = {name: pa.array(list(x)).type for name, x in columns.items()}
    types |= {name: pa.float64() for name in types if name.startswith("probability_") and name not in known.names}
    types |= {name: pa.string() for name, kind in types.items() if pa.types.is_null(kind)}
    return pa.schema([known.field(name) if name in known.names else (name, kind) for name, kind in types.items()])


def zipped(path: Path) -> None:
    """A file gzipped in place."""
    packed = path.with_name(f"{path.name}.gz")
    with path.open("rb") as plain, gzip.open(packed, "wb") as file:
        shutil.copyfileobj(plain, file)
    packed.replace(path)
