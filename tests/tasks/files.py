"""Small files in every format, with the same rows."""

import csv
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Columns = Mapping[str, Sequence[Any]]


def write(path: Path, columns: Columns) -> Path:
    """The columns as a file of the format that its name tells, gzipped if it ends in .gz."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    rows = list(zip(*columns.values(), strict=True))
    match plain.suffix:
        case ".csv":
            with plain.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([list(columns), *rows])
        case ".tsv":
            plain.write_text(
                "".join("\t".join(map(str, row)) + "\n" for row in [list(columns), *rows]), encoding="utf-8"
            )
        case ".jsonl" | ".json":
            lines = (json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
            plain.write_text("".join(lines), encoding="utf-8")
        case ".parquet":
            pq.write_table(pa.table(dict(columns)), plain)
    if plain != path:
        path.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    return path


def sample(count: int = 40, classes: Sequence[Any] = ("good", "bad")) -> Columns:
    return {
        "text": [f"text number {number}, with a comma" for number in range(count)],
        "label": [classes[number % len(classes)] for number in range(count)],
    }
