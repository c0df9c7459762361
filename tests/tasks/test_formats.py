"""All formats give the same rows; invalid files raise errors that name file and line."""

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwise.errors import UserError
from headwise.tasks import formats
from headwise.tasks.formats import read_batches, read_head
from tests.tasks.files import sample_columns, write_file

FORMATS = ("csv", "tsv", "jsonl", "json", "parquet")


def read_texts(path: Path) -> list[str]:
    return [str(text) for batch in read_batches(path, ["text"]) for text in batch.columns["text"]]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("extension", FORMATS)
def test_every_format_gives_the_same_rows(
    tmp_path: Path, extension: str, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "BATCH_ROWS", 7)
    columns = sample_columns(20)
    path = write_file(tmp_path / f"rows.{extension}{suffix}", columns)
    batches = list(read_batches(path))
    assert [len(batch.rows) for batch in batches] == [7, 7, 6]
    assert [row for batch in batches for row in batch.rows] == list(range(20))
    for name, values in columns.items():
        assert [value for batch in batches for value in batch.columns[name]] == values
    assert list(next(read_batches(path, ["label"])).columns) == ["label"]


def test_fields_with_line_breaks_do_not_shift_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,label\n"one\ntwo",a\n\nthree,b\n')
    batch = read_head(path)
    assert list(batch.lines) == [2, 5]
    assert list(batch.rows) == [0, 1]
    assert batch.columns["text"] == ("one\ntwo", "three")


def test_csv_may_have_a_byte_order_mark_and_long_fields(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\ufefftext,label\r\n" + "word " * 40_000 + ",a\r\n", encoding="utf-8")
    assert list(read_head(path).columns) == ["text", "label"]
    assert read_head(path).columns["label"] == ("a",)


def test_quotes_have_no_meaning_in_tsv(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('text\tlabel\n"open\ta\nsay "hi"\tb\n')
    assert read_texts(path) == ['"open', 'say "hi"']


INVALID_FILES = {
    "ragged.csv": (b"text,label\na,1\nb,c,2\n", "line 3: expected 2 fields as in the header, got 3"),
    "ragged.tsv": (b"text\tlabel\na\t1\nb\n", "line 3: expected 2 fields as in the header, got 1"),
    "quote.csv": (b'text,label\na,1\n"b,2\nc,3\n', "line 3: a quote is never closed"),
    "twice.csv": (b"text,text\na,1\n", "line 1: two columns have the same name: text, text"),
    "latin.csv": ("text,label\na,1\ncafé,2\n".encode("latin-1"), "line 3: not UTF-8"),
    "latin.jsonl": ('{"text": "a"}\n{"text": "café"}\n'.encode("latin-1"), "line 2: not UTF-8"),
    "cut.jsonl": (b'{"text": "a"}\n{"text": "b\n', "line 2: invalid JSON"),
    "list.jsonl": (b'{"text": "a"}\n["b"]\n', "line 2: expected a JSON object"),
    "array.json": (b'[{"text": "a"}]\n', "a JSON array; expected one object per line"),
    "half.jsonl": (b'{"text": "\\ud83d\\ude00"}\n{"text": "cut \\ud83d"}\n', "line 2: contains a lone surrogate"),
    "gap.jsonl": (b'{"text": "a"}\n{"label": "b"}\n', "line 2: no column 'text'; the columns are label"),
    "column.csv": (b"body,label\na,1\n", "no column 'text'; the columns are body, label"),
    "empty.csv": (b"", "the file is empty"),
    "not.parquet": (b"text,label\n", "invalid Parquet file"),
    "not.csv.gz": (b"text,label\n", "invalid gzip file"),
    "not.parquet.gz": (b"text,label\n", "invalid or incomplete gzip file"),
    "rows.xlsx": (b"", "unknown format '.xlsx'; expected .csv"),
    "return.csv": (b"text,label\na\rb,1\n", "line 2: a carriage return"),
}


@pytest.mark.parametrize("name", INVALID_FILES)
def test_invalid_files_raise_errors_with_file_and_line(tmp_path: Path, name: str) -> None:
    content, message = INVALID_FILES[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError) as raised:
        read_texts(path)
    assert str(raised.value).startswith(str(path))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_incomplete_gzip_file_raises_an_error(tmp_path: Path) -> None:
    content = write_file(tmp_path / "complete.csv.gz", sample_columns(5000)).read_bytes()
    path = tmp_path / "cut.csv.gz"
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"cut\.csv\.gz: the gzip file ends after line \d\d+"):
        read_texts(path)


def test_a_parquet_file_with_equal_column_names_raises_an_error(tmp_path: Path) -> None:
    path = tmp_path / "twice.parquet"
    pq.write_table(pa.table([["a"], ["b"]], names=["text", "text"]), path)
    with pytest.raises(UserError, match=r"twice\.parquet: two columns have the same name: text, text"):
        read_head(path)


def test_a_missing_file_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_batches(tmp_path / "none.csv")
    with pytest.raises(UserError, match="is a directory, expected a file"):
        read_batches(tmp_path)


def test_an_unclosed_quote_does_not_read_the_rest_of_a_large_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "MAX_FIELD_LENGTH", 1000)
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b'text,label\na,1\n"b,2\n' + b"more,1\n" * 10_000))
    with pytest.raises(UserError, match="line 3: a quote is never closed"):
        read_texts(path)
