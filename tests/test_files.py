"""Limits of files: memory depends on the limits, not on the file."""

import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwise.errors import UserError
from headwise.files import parse_json, read_lines
from tests.fresh_python import run_fresh_python
from tests.short_form import choose_size

MEGABYTE = 10**6
LONG_LINE = choose_size(short=60, long=120) * MEGABYTE

#: Reads files of a directory in one process, and prints the error of each reader with the growth of the peak memory in
#: megabytes until its end.
READ = """
import json, resource, sys
from pathlib import Path
from headwise.errors import UserError
from headwise.models.vectors import read_vectors
from headwise.tasks import conll, formats, mind
from headwise.tasks.translation import read_pairs

directory = Path(sys.argv[1])
readers = {
    "conll": lambda: list(conll.read_conll(directory / "a.conll")),
    "mind": lambda: mind.read(directory / "log", cache=directory / "cache"),
    "pairs": lambda: read_pairs(directory, "en", "de", cache=directory / "cache"),
    "vectors": lambda: read_vectors(directory / "a.vectors", {"a": 0}),
}
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before, results = peak(), []
for name in sys.argv[2:]:
    try:
        readers.get(name, lambda: [0 for _ in formats.read_batches(directory / name)])()
        error = ""
    except UserError as caught:
        error = str(caught)
    results.append([error, peak() - before])
print(json.dumps(results))
"""

#: The file that each reader reads, and its content before the long line.
LONG_LINES = {
    "a.csv": ("a.csv", b"text,label\n"),
    "a.tsv": ("a.tsv", b"text\tlabel\n"),
    "a.jsonl": ("a.jsonl", b'{"text": "a"}\n'),
    "conll": ("a.conll", b"EU B-ORG\n"),
    "mind": ("log/train/news.tsv", b"N1\tnews\tnews\ttitle\t\t\t[]\t[]\n"),
    "pairs": ("train.en", b"a cat\n"),
    "vectors": ("a.vectors", b"a 0.1 0.2\n"),
}


def write_long_lines(tmp_path: Path) -> None:
    long_line = gzip.compress(b"a" * LONG_LINE + b"\nmore\n", compresslevel=1)
    (tmp_path / "log" / "train").mkdir(parents=True)
    for name, start in LONG_LINES.values():
        (tmp_path / name).write_bytes(gzip.compress(start) + long_line)
    (tmp_path / "log" / "train" / "behaviors.tsv").write_text("")
    (tmp_path / "train.de").write_text("eine Katze\n" * 3)


def write_long_rows(tmp_path: Path) -> None:
    once = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int32()), pa.array(["a" * 4 * MEGABYTE]))
    pq.write_table(pa.table({"text": once}), tmp_path / "once.parquet", dictionary_pagesize_limit=10 * MEGABYTE)
    pq.write_table(pa.table({"text": ["b", "a" * 20 * MEGABYTE]}), tmp_path / "long.parquet")
    pq.write_table(pa.table({"text": ["a" * 300 * MEGABYTE]}), tmp_path / "bomb.parquet", compression="zstd")
    line = json.dumps({"text": "a" * 4 * MEGABYTE}).encode() + b"\n"
    (tmp_path / "long.jsonl").write_bytes(gzip.compress(line, compresslevel=1) * 100)


def read_files(directory: Path, *readers: str) -> tuple[list[str], list[int]]:
    """Return the error of each reader, and the growth of the memory in megabytes until its end."""
    output = run_fresh_python(f"import sys\nsys.argv = {['', str(directory), *readers]}\n{READ}")
    results = json.loads(output.splitlines()[-1])
    return [error for error, _ in results], [growth for _, growth in results]


@pytest.mark.long
def test_long_lines_do_not_fill_the_memory(tmp_path: Path) -> None:
    write_long_lines(tmp_path)
    errors, growths = read_files(tmp_path, *LONG_LINES)
    for (name, _), error in zip(LONG_LINES.values(), errors, strict=False):
        reason = f"the line has {LONG_LINE + 1:,} bytes, at most 16,777,216 are allowed; check"
        assert error.startswith(f"{tmp_path / name}, line 2: {reason}")
    assert growths[-1] < 90


@pytest.mark.long
def test_long_rows_do_not_fill_the_memory(tmp_path: Path) -> None:
    write_long_rows(tmp_path)
    errors, growths = read_files(tmp_path, "once.parquet", "long.parquet", "bomb.parquet", "long.jsonl")
    assert errors[0] == ""
    expected = f"{tmp_path / 'long.parquet'}, row 2: column 'text' has 20,000,000 bytes, at most 16,777,216 are allowed"
    assert errors[1].startswith(expected)
    assert errors[2].startswith(f"{tmp_path / 'bomb.parquet'}: row group 1 has 300,0")
    assert "times; at most 100 times are allowed" in errors[2]
    assert errors[3] == ""
    assert growths[-1] < 200


def test_the_limit_of_a_line_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a" * 99 + "\n" + "b" * 100 + "\nc\n")
    monkeypatch.setenv("HEADWISE_MAX_LINE_BYTES", "101")
    assert [len(line) for line in read_lines(path)] == [100, 101, 2]
    monkeypatch.setenv("HEADWISE_MAX_LINE_BYTES", "100")
    with pytest.raises(UserError, match=r"a\.txt, line 2: the line has 101 bytes, at most 100 are allowed"):
        list(read_lines(path))
    monkeypatch.setenv("HEADWISE_MAX_LINE_BYTES", "16M")
    with pytest.raises(UserError, match="HEADWISE_MAX_LINE_BYTES: expected a positive number of bytes, got '16M'"):
        list(read_lines(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 100_000, "nested more than 100 levels deep"),
        ('{"a": ' * 101 + "1" + "}" * 101, "nested more than 100 levels deep"),
        ("1" * 5000, "a number has too many digits"),
        ("{", "Expecting property name"),
    ],
)
def test_invalid_json_raises_one_line(content: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^rows, line 2: invalid JSON: .*{message}"):
        parse_json(content, "rows, line 2")


def test_json_may_be_nested_100_levels() -> None:
    assert isinstance(parse_json('{"a": ' * 100 + "1" + "}" * 100, "rows"), dict)


def test_pipes_devices_and_directories_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UserError, match="is a pipe, socket or device, expected a regular file"):
            list(read_lines(path))
    with pytest.raises(UserError, match="is a directory, expected a file"):
        list(read_lines(tmp_path))
    with pytest.raises(UserError, match="no such file"):
        list(read_lines(tmp_path / "none"))
