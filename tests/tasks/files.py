"""Small files in every format."""

import csv
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq

Columns = Mapping[str, Sequence[Any]]


def write_file(path: Path, columns: Columns) -> Path:
    """Write columns to a file; its extension tells the format, and whether it is gzipped."""
    uncompressed = path.with_suffix("") if path.suffix == ".gz" else path
    rows = list(zip(*columns.values(), strict=True))
    match uncompressed.suffix:
        case ".csv":
            with uncompressed.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([list(columns), *rows])
        case ".tsv":
            uncompressed.write_text(
                "".join("\t".join(map(str, row)) + "\n" for row in [list(columns), *rows]), encoding="utf-8"
            )
        case ".jsonl" | ".json":
            lines = (json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
            uncompressed.write_text("".join(lines), encoding="utf-8")
        case ".parquet":
            pq.write_table(pa.table(dict(columns)), uncompressed)
        case ".xlsx":
            workbook = openpyxl.Workbook()
            for row in [tuple(columns), *rows]:
                workbook.active.append(row)
            workbook.save(uncompressed)
    if uncompressed != path:
        path.write_bytes(gzip.compress(uncompressed.read_bytes()))
        uncompressed.unlink()
    return path


def sample_columns(count: int = 40, classes: Sequence[Any] = ("good", "bad")) -> Columns:
    """Return texts with the classes in turn."""
    return {
        "text": [f"text number {number}, with a comma" for number in range(count)],
        "label": [classes[number % len(classes)] for number in range(count)],
    }
