"""All formats give the same rows; invalid files raise errors that name file and line."""

import gzip
import os
import sys
from pathlib import Path

import numpy as np
import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwise.errors import UserError
from headwise.tasks.formats import excel, read_batches, read_head
from tests.tasks.files import sample_columns, write_file

FORMATS = ("csv", "tsv", "jsonl", "json", "parquet")


def read_texts(path: Path) -> list[str]:
    return [str(text) for batch in read_batches(path, ["text"]) for text in batch.columns["text"]]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("extension", FORMATS)
def test_every_format_gives_the_same_rows(
    tmp_path: Path, extension: str, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwise.tasks.formats.batch.BATCH_ROWS", 7)
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
    "utf16.csv": ("text,label\na,1\n".encode("utf-16"), "line 1: not UTF-8"),
    "utf16-be.csv": ("text,label\na,1\n".encode("utf-16-be"), "line 1: not UTF-8 but probably UTF-16; save the file"),
    "utf16-le.jsonl": ('{"text": "a"}\n'.encode("utf-16-le"), "line 1: not UTF-8 but probably UTF-16; save the file"),
    "latin.jsonl": ('{"text": "a"}\n{"text": "café"}\n'.encode("latin-1"), "line 2: not UTF-8"),
    "cut.jsonl": (b'{"text": "a"}\n{"text": "b\n', "line 2: invalid JSON"),
    "list.jsonl": (b'{"text": "a"}\n["b"]\n', "line 2: expected a JSON object"),
    "array.json": (b'[{"text": "a"}]\n', "a JSON array; expected one object per line"),
    "half.jsonl": (b'{"text": "\\ud83d\\ude00"}\n{"text": "cut \\ud83d"}\n', "line 2: contains a lone surrogate"),
    "gap.jsonl": (b'{"label": "a"}\n{"label": "b"}\n', "no column 'text'; the columns are label"),
    "deep.jsonl": (b'{"text": "a"}\n{"text": ' + b"[" * 100_000 + b"\n", "line 2: invalid JSON: nested more than 100"),
    "deep101.jsonl": (b'{"text": ' + b"[" * 101 + b"]" * 101 + b"}\n", "line 1: invalid JSON: nested more than 100"),
    "digits.jsonl": (b'{"text": ' + b"1" * 5000 + b"}\n", "line 1: invalid JSON: a number has too many digits"),
    "columns.csv": (b",".join(b"c%d" % i for i in range(5000)) + b"\n", "c18, c19 and 4,980 others"),
    "column.csv": (b"body,label\na,1\n", "no column 'text'; the columns are body, label"),
    "empty.csv": (b"", "the file is empty"),
    "not.parquet": (b"text,label\n", "invalid Parquet file"),
    "damaged.csv.gz": (gzip.compress(b"text,label\n")[:10] + b"\xff" * 20, "invalid gzip file after line 0"),
    "not.parquet.gz": (b"text,label\n", "invalid Parquet file"),
    "damaged.parquet.gz": (gzip.compress(b"text,label\n")[:14], "invalid or incomplete gzip file"),
    "not.xlsx": (b"text,label\n", "invalid Excel file (File is not a zip file)"),
    "rows.xls": (b"", "unknown format '.xls'; expected .csv"),
    "tags.conll": (b"good O\n", ".gz; a file with a word and its tag per line needs --label-type tokens"),
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


def test_parquet_columns_whose_names_are_no_utf8_raise_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": ["a"], "label": ["b"]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"label", b"l\xb9bel"))
    with pytest.raises(UserError, match="invalid Parquet file"):
        read_texts(path)


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
    monkeypatch.setenv("HEADWISE_MAX_LINE_BYTES", "1000")
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b'text,label\na,1\n"b,2\n' + b"more,1\n" * 10_000))
    with pytest.raises(
        UserError, match=r"line 3: the 144 lines from here have 1,006 bytes without an end, .*a quote may not be closed"
    ):
        read_texts(path)


def test_gzip_is_recognized_by_content(tmp_path: Path) -> None:
    for extension in FORMATS:
        gzipped = write_file(tmp_path / f"rows.{extension}.gz", sample_columns(20))
        unnamed = gzipped.rename(tmp_path / f"gzipped.{extension}")
        assert read_texts(unnamed) == sample_columns(20)["text"]
        plain = write_file(tmp_path / f"plain.{extension}", sample_columns(20))
        assert read_texts(plain.rename(tmp_path / f"plain.{extension}.gz")) == sample_columns(20)["text"]


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_delimiters_are_recognized_in_the_header(tmp_path: Path, delimiter: str) -> None:
    path = tmp_path / "a.csv"
    rows = [("id", "text", "label"), ("1", "a, b", "x"), ("2", f'"c{delimiter}d"', "y")]
    path.write_text("".join(delimiter.join(row) + "\n" for row in rows))
    assert read_texts(path) == ["a, b", f"c{delimiter}d"]


def test_a_name_with_a_comma_does_not_hide_the_semicolons(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("Comment (short, if any);Label\nfast, cheap;good\n")
    assert list(read_head(tmp_path / "a.csv").columns) == ["Comment (short, if any)", "Label"]


def test_the_delimiter_line_of_excel_is_not_a_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("sep=;\ntext,as written;label\na,b;1\n")
    batch = read_head(path)
    assert batch.columns == {"text,as written": ("a,b",), "label": ("1",)}
    assert list(batch.lines) == [3]


def test_a_delimiter_can_be_given(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text:label\na, b; c:1\n")
    assert next(read_batches(path, delimiter=":")).columns == {"text": ("a, b; c",), "label": ("1",)}
    with pytest.raises(UserError, match=r"line 2: expected 1 fields .*got 2; if the columns .* set --delimiter"):
        list(read_batches(path))
    with pytest.raises(UserError, match="--delimiter is for CSV and TSV files"):
        read_batches(write_file(tmp_path / "a.jsonl", sample_columns(2)), delimiter=":")


def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe.csv"
    os.mkfifo(fifo)
    with pytest.raises(UserError, match=r"pipe\.csv: is a pipe, socket or device, expected a regular file"):
        read_batches(fifo)
    device = tmp_path / "zero.jsonl"
    device.symlink_to("/dev/zero")
    with pytest.raises(UserError, match=r"zero\.jsonl: is a pipe, socket or device"):
        read_batches(device)


PARQUET_VALUES = {
    "timestamp": (
        pa.array([0, 10**15], pa.timestamp("s")),
        r"row 2: column 'other': the timestamp\[ms\] cannot be read",
    ),
    "bytes": (pa.array([b"a", b"\xff"], pa.binary()), r"row 2: column 'other': not UTF-8 \(byte 1 of the value\)"),
    "string": (
        pa.Array.from_buffers(
            pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"a\xff")]
        ),
        r"row 2: column 'other': not UTF-8 \(byte 1 of the value\)",
    ),
}


@pytest.mark.parametrize("case", PARQUET_VALUES)
def test_values_without_a_python_equivalent_raise_errors(tmp_path: Path, case: str) -> None:
    array, message = PARQUET_VALUES[case]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", "b"], "other": array}), path)
    assert read_texts(path) == ["a", "b"], "columns that are not used do not matter"
    with pytest.raises(UserError, match=message) as raised:
        read_head(path)
    assert "\n" not in str(raised.value)


def test_bytes_of_a_parquet_file_are_text_if_they_are_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": pa.array(["café".encode(), None], pa.binary())}), path)
    assert read_head(path).columns["text"] == ["café", None]


def test_excel_files(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.xlsx", {"text": ["one", None, "three"], "label": ["x", "y", 3], "note": [None] * 3})
    batch = read_head(path)
    assert batch.columns == {"text": ["one", None, "three"], "label": ["x", "y", 3], "note": [None, None, None]}
    assert batch.location(2) == f"{path}, row 4"
    assert list(next(read_batches(path, ["label"])).columns) == ["label"]
    with pytest.raises(UserError, match=r"a\.xlsx: no column 'stars'; the columns are text, label, note"):
        next(read_batches(path, ["stars"]))


def test_columns_without_a_name(tmp_path: Path) -> None:
    """pandas writes its index without a name, and spreadsheets write the empty columns that were formatted."""
    (tmp_path / "a.csv").write_text(",text,label,,\n0,one,x,,\n1,two,y,,\n")
    expected = {"": ["0", "1"], "text": ["one", "two"], "label": ["x", "y"], "column 4": ["", ""], "column 5": ["", ""]}
    columns = read_head(tmp_path / "a.csv").columns
    assert {name: list(values) for name, values in columns.items()} == expected
    workbook = openpyxl.Workbook()
    for row in ((None, "text", None, "label"), (0, "one", None, "x"), (1, "two", None, "y")):
        workbook.active.append(row)
    workbook.save(tmp_path / "a.xlsx")
    assert read_head(tmp_path / "a.xlsx").columns == {
        "": [0, 1],
        "text": ["one", "two"],
        "column 3": [None, None],
        "label": ["x", "y"],
    }


def test_excel_files_need_openpyxl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_file(tmp_path / "a.xlsx", {"text": ["one"], "label": ["x"]})
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(UserError, match=r"needs openpyxl; pip install 'headwise\[excel\]'"):
        read_head(path)


def test_only_the_first_sheet_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    workbook = openpyxl.Workbook()
    workbook.active.append(["text"])
    workbook.active.append(["one"])
    workbook.create_sheet("Other").append(["text"])
    workbook.save(tmp_path / "a.xlsx")
    assert read_head(tmp_path / "a.xlsx").columns == {"text": ["one"]}
    assert read_head(tmp_path / "a.xlsx").columns == {"text": ["one"]}
    assert caplog.text.count("only the first sheet, Sheet, is read, not Other") == 1


def test_large_excel_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(excel, "MAX_EXCEL_BYTES", 1000)
    with pytest.raises(UserError, match=r"bytes when decompressed, at most 1,000 are allowed; save it as CSV"):
        read_head(write_file(tmp_path / "a.xlsx", sample_columns(100)))
