"""Files that are divided into parts."""

import csv
import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwise.errors import UserError
from headwise.tasks.formats import FilePart, read_batches
from headwise.tasks.formats.parts import plan_lines, plan_parts

#: Line breaks inside quotes and stray quotes, so that no line break tells where a row ends.
TEXTS = ["plain", 'two\nlines, "quoted"', "é" * 30, "", '5" disk', "\n\n", *map(str, range(20))]


def write_table(path: Path) -> Path:
    match path.name.removesuffix(".gz"):
        case "rows.csv":
            file = io.StringIO(newline="")
            csv.writer(file).writerows([["id", "text"], *([i, text] for i, text in enumerate(TEXTS))])
            content = file.getvalue().replace("\r\n4,", "\r\n\r\n4,").encode("utf-8-sig")
        case "rows.jsonl":
            lines = [json.dumps({"id": str(i), "text": text}) for i, text in enumerate(TEXTS)]
            content = "\n".join([*lines[:4], " ", *lines[4:]]).encode()
        case _:
            sink = pa.BufferOutputStream()
            table = pa.table({"id": [str(i) for i in range(len(TEXTS))], "text": TEXTS})
            with pq.ParquetWriter(sink, table.schema) as writer:
                for start, stop in ((0, 2), (2, 3), (3, 20), (20, 26)):
                    writer.write_table(table.slice(start, stop - start))
            content = sink.getvalue().to_pybytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def read(parts: list[FilePart]) -> list[tuple[int, str, str]]:
    return [
        row
        for part in parts
        for batch in read_batches(part.path, part=part)
        for row in zip(batch.rows, batch.columns["id"], batch.columns["text"], strict=True)
    ]


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.parquet", "rows.csv.gz", "rows.parquet.gz"])
@pytest.mark.parametrize("part_rows", [1, 5, 100])
def test_parts_have_all_rows_in_order(name: str, part_rows: int, tmp_path: Path) -> None:
    parts = plan_parts(write_table(tmp_path / name), part_rows, copy=tmp_path / "copy")
    assert len(parts) >= len(TEXTS) // part_rows
    assert read(parts) == [(i, str(i), text) for i, text in enumerate(TEXTS)]
    assert [part.num_rows for part in parts] == [len(read([part])) for part in parts]


def test_parts_of_parquet_are_row_groups(tmp_path: Path) -> None:
    parts = plan_parts(write_table(tmp_path / "rows.parquet"), 6, copy=tmp_path / "copy")
    assert [part.row_groups for part in parts] == [(0, 2), (2, 3), (2, 3), (2, 3), (3, 4)]
    assert [part.num_rows for part in parts] == [3, 6, 6, 5, 6]


def test_error_in_a_later_part_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n{"a": 2}\n{"a": 3}\nnonsense\n')
    first, second = plan_parts(path, 2, copy=tmp_path / "copy")
    assert len(list(read_batches(path, part=first))) == 1
    with pytest.raises(UserError, match=r"rows.jsonl, line 5: invalid JSON"):
        list(read_batches(path, part=second))


def test_lines_are_divided(tmp_path: Path) -> None:
    path = tmp_path / "new.en.gz"
    path.write_bytes(gzip.compress(b"one\n\nthree\nfour"))
    parts = plan_lines(path, 3, copy=tmp_path / "copy")
    assert [(part.first_row, part.num_rows, part.line, part.offset) for part in parts] == [(0, 3, 0, 0), (3, 1, 3, 11)]
    assert {part.copy for part in parts} == {tmp_path / "copy"}


def test_empty_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text\n")
    with pytest.raises(UserError, match=r"rows.csv: contains no rows"):
        plan_parts(path, 3, copy=tmp_path / "copy")
