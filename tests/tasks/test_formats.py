"""Files of every format are read alike, and broken ones are told by file and line."""

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwise.errors import UserError
from headwise.tasks import formats
from headwise.tasks.formats import read_batches, read_head
from tests.tasks.files import sample, write

FORMATS = ("csv", "tsv", "jsonl", "json", "parquet")


def text_of(path: Path) -> list[str]:
    return [str(text) for batch in read_batches(path, ["text"]) for text in batch.columns["text"]]


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_gives_the_same_rows(
    tmp_path: Path, ending: str, packed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "BATCH_ROWS", 7)
    columns = sample(20)
    path = write(tmp_path / f"rows.{ending}{packed}", columns)
    found = list(read_batches(path))
    assert [len(batch.rows) for batch in found] == [7, 7, 6]
    assert [row for batch in found for row in batch.rows] == list(range(20))
    for name, values in columns.items():
        assert [value for batch in found for value in batch.columns[name]] == values
    assert list(next(read_batches(path, ["label"])).columns) == ["label"]


def test_lines_are_counted_where_fields_hold_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,label\n"one\ntwo",a\n\nthree,b\n')
    batch = read_head(path)
    assert list(batch.lines) == [2, 5]
    assert list(batch.rows) == [0, 1]
    assert batch.columns["text"] == ("one\ntwo", "three")


def test_csv_may_begin_with_a_byte_order_mark_and_hold_long_fields(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\ufefftext,label\r\n" + "word " * 40_000 + ",a\r\n", encoding="utf-8")
    assert list(read_head(path).columns) == ["text", "label"]
    assert read_head(path).columns["label"] == ("a",)


def test_quotes_are_ordinary_in_tsv(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('text\tlabel\n"open\ta\nsay "hi"\tb\n')
    assert text_of(path) == ['"open', 'say "hi"']


BROKEN = {
    "ragged.csv": (b"text,label\na,1\nb,c,2\n", "line 3: 3 fields where the first line has 2"),
    "ragged.tsv": (b"text\tlabel\na\t1\nb\n", "line 3: 1 fields where the first line has 2"),
    "quote.csv": (b'text,label\na,1\n"b,2\nc,3\n', "line 3: a quote is never closed"),
    "twice.csv": (b"text,text\na,1\n", "line 1: two columns have the same name: text, text"),
    "latin.csv": ("text,label\na,1\ncafé,2\n".encode("latin-1"), "line 3: not UTF-8"),
    "latin.jsonl": ('{"text": "a"}\n{"text": "café"}\n'.encode("latin-1"), "line 2: not UTF-8"),
    "cut.jsonl": (b'{"text": "a"}\n{"text": "b\n', "line 2: not JSON"),
    "list.jsonl": (b'{"text": "a"}\n["b"]\n', "line 2: expected a JSON object"),
    "array.json": (b'[{"text": "a"}]\n', "a JSON array; expected one object a line"),
    "half.jsonl": (b'{"text": "\\ud83d\\ude00"}\n{"text": "cut \\ud83d"}\n', "line 2: half a character"),
    "gap.jsonl": (b'{"text": "a"}\n{"label": "b"}\n', "line 2: no column 'text'; there: label"),
    "column.csv": (b"body,label\na,1\n", "no column 'text'; there: body, label"),
    "empty.csv": (b"", "empty"),
    "not.parquet": (b"text,label\n", "not a sound Parquet file"),
    "not.csv.gz": (b"text,label\n", "not a sound gzip file"),
    "not.parquet.gz": (b"text,label\n", "not a whole gzip file"),
    "rows.xlsx": (b"", "format '.xlsx' is unknown; known: .csv"),
    "return.csv": (b"text,label\na\rb,1\n", "line 2: a carriage return"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_told_by_file_and_line(tmp_path: Path, name: str) -> None:
    content, message = BROKEN[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError) as told:
        text_of(path)
    assert str(told.value).startswith(str(path))
    assert message in str(told.value)
    assert "\n" not in str(told.value)


def test_a_gzip_file_that_breaks_off_is_told(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.csv.gz", sample(5000)).read_bytes()
    path = tmp_path / "cut.csv.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"cut\.csv\.gz: the gzip file breaks off after line \d\d+"):
        text_of(path)


def test_a_parquet_file_with_two_columns_of_a_name_is_told(tmp_path: Path) -> None:
    path = tmp_path / "twice.parquet"
    pq.write_table(pa.table([["a"], ["b"]], names=["text", "text"]), path)
    with pytest.raises(UserError, match=r"twice\.parquet: two columns have the same name: text, text"):
        read_head(path)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_batches(tmp_path / "none.csv")
    with pytest.raises(UserError, match="a folder, not a file"):
        read_batches(tmp_path)


def test_a_quote_that_is_never_closed_does_not_swallow_a_large_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "LONGEST", 1000)
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b'text,label\na,1\n"b,2\n' + b"more,1\n" * 10_000))
    with pytest.raises(UserError, match="line 3: a quote is never closed"):
        text_of(path)
