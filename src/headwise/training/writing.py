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

from headwise.mistakes import Mistake
from headwise.tasks.formats import ENDINGS, ending
from headwise.training.folder import flush

Columns = Mapping[str, Sequence[Any]]
Write = Callable[[Columns], None]


@contextmanager
def writer_for(out: Path, *, like: Path) -> Iterator[Write]:
    """A function that writes batch after batch of columns. The file is there when all is written, or not at all.

    Args:
        out: the file; its ending tells the format.
        like: what was read.

    Raises:
        Mistake: an ending that says no format, or the file that is being read.
    """
    if ending(out) not in ENDINGS:
        raise Mistake(f"--out {out}: what format? Known: {', '.join(ENDINGS)}, also .gz; the input is {like.name}")
    if out.exists() and out.samefile(like):
        raise Mistake(f"--out {out}: that is the input itself")
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f".{out.name}.part")
    try:
        if ending(out) == ".parquet":
            with parquet(part) as write:
                yield write
            if out.suffix == ".gz":
                zipped(part)
        else:
            with open_text(part, packed=out.suffix == ".gz") as file:
                yield json_lines(file) if ending(out) not in (".csv", ".tsv") else delimited(file, ending(out))
        flush(part)
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)


def open_text(path: Path, *, packed: bool) -> Any:
    opened = gzip.open if packed else open
    return opened(path, "wt", encoding="utf-8", newline="")


def delimited(file: TextIO, kind: str) -> Write:
    """CSV; or TSV, where nothing is quoted and no text that was read has a tab."""
    style: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None} if kind == ".tsv" else {}
    rows = csv.writer(file, lineterminator="\n", **style)
    named: list[str] = []

    def write(columns: Columns) -> None:
        if not named:
            named.extend(columns)
            rows.writerow(named)
        rows.writerows(zip(*(["" if x is None else x for x in columns[name]] for name in named), strict=True))

    return write


def json_lines(file: TextIO) -> Write:
    def write(columns: Columns) -> None:
        for values in zip(*columns.values(), strict=True):
            file.write(json.dumps(dict(zip(columns, values, strict=True)), ensure_ascii=False) + "\n")

    return write


@contextmanager
def parquet(path: Path) -> Iterator[Write]:
    writer: pq.ParquetWriter | None = None

    def write(columns: Columns) -> None:
        nonlocal writer
        table = pa.table({name: pa.array(list(x)) for name, x in columns.items()}, schema=writer and writer.schema)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


def zipped(path: Path) -> None:
    """A file gzipped in place."""
    packed = path.with_name(f"{path.name}.gz")
    with path.open("rb") as plain, gzip.open(packed, "wb") as file:
        shutil.copyfileobj(plain, file)
    packed.replace(path)
