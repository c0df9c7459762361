"""Inputs that nobody meant well with, and everything of ours that reads files."""

import atexit
import gzip
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from headwise.errors import UserError
from headwise.inspection import Page
from headwise.models import read_vectors
from headwise.simulation import titles
from headwise.tasks import load_files, mind
from headwise.tasks.translation import read_pairs
from headwise.training import TextConfig, TextModel, train
from headwise.training.core import run_dir
from headwise.training.registry import load_config
from tests.training.conftest import rows, write

#: What breaks readers.
NASTY = [
    *"\0\t\n\r\v\f\x1a\x1c\x85\u2028\ufeff\ufffd \"',;|[]{}<>&\\/:=#-_.0123456789eE+ab",
    "\r\n", '""', "nan", "inf", "-1", "1e999", "9" * 400, "null", "true", "N1-1", "N1", "U1", "label", "text", "O",
    "B-X", "-DOCSTART-", "é", "漢", "𝔘", "\u202e", "{}", "[]", '{"text": "a", "label": 1}',
    "!!python/object/apply:os.system [id]",
    "<script>alert(1)</script>", "&#x3c;", "]]>", "-->", "../../etc/passwd", "model: plain", "data: [a]", "a,b\n1,2\n",
]  # fmt: skip
PIECES = [piece.encode("utf-8", "surrogatepass") for piece in NASTY] + [
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"PK\x03\x04",
]


@st.composite
def mutated(draw: st.DrawFn, valid: bytes) -> bytes:
    """A sound file with some of it cut out, repeated, overwritten or put in."""
    found = bytearray(valid)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(found)))
        end = min(len(found), start + draw(st.sampled_from([0, 1, 1, 2, 8, 64, 10**6])))
        piece = draw(st.sampled_from(PIECES) | st.binary(max_size=8))
        match draw(st.integers(0, 3)):
            case 0:
                del found[start:end]
            case 1:
                found[start:end] = piece
            case 2:
                found[start:start] = piece
            case 3:
                found[start:start] = found[start:end]
    return bytes(found[:100_000])


def inputs(valid: bytes) -> st.SearchStrategy[bytes]:
    return mutated(valid) | st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join) | st.binary(max_size=200)


def table(ending: str) -> Callable[[bytes, Path], None]:
    def read(data: bytes, place: Path) -> None:
        path = place / f"data{ending}"
        path.write_bytes(data)
        load_files(path, label_type="regression" if len(data) % 3 == 0 else "classification", cache=place / "cache")

    return read


def sentences(data: bytes, place: Path) -> None:
    (place / "data.conll").write_bytes(data)
    load_files(place / "data.conll", label_type="tokens", cache=place / "cache")


def news(data: bytes, place: Path) -> None:
    """A click log: its news, up to an empty line, and what was clicked."""
    (place / "train").mkdir(exist_ok=True)
    first, _, second = data.partition(b"\n\n")
    (place / "train" / "news.tsv").write_bytes(first)
    (place / "train" / "behaviors.tsv").write_bytes(second)
    log = mind.read(place, cache=place / "cache")
    _ = log.splits["train"].counts


def headlines(data: bytes, place: Path) -> None:
    (place / "titles.csv").write_bytes(data)
    titles.read_titles(place / "titles.csv")


def parallel(data: bytes, place: Path) -> None:
    first, _, second = data.partition(b"\n\n")
    (place / "train.en").write_bytes(first)
    (place / "train.de").write_bytes(second)
    read_pairs(place, "en", "de", cache=place / "cache")


def vectors(ending: str) -> Callable[[bytes, Path], None]:
    def read(data: bytes, place: Path) -> None:
        (place / f"vectors{ending}").write_bytes(data)
        read_vectors(place / f"vectors{ending}", {"[PAD]": 0, "a": 1, "the": 2})

    return read


def settings(data: bytes, place: Path) -> None:
    (place / "run.yaml").write_bytes(data)
    found = load_config(place / "run.yaml")
    (place / "run.yaml").write_text(found.to_yaml(), encoding="utf-8")
    assert load_config(place / "run.yaml") == found, "what is written is what is read"


def figures(data: bytes, place: Path) -> None:
    """A run whose metrics.json is anything."""
    (place / "run.yaml").write_text("data: [a.csv]\n")
    (place / "metrics.json").write_bytes(data)
    TextModel.load(place)


def checkpoints(data: bytes, place: Path) -> None:
    kept = place / "checkpoints" / "checkpoint-3"
    kept.mkdir(parents=True, exist_ok=True)
    (kept / "manifest.json").write_bytes(data)
    found = run_dir.last_checkpoint(place)
    assert found is None or all((kept / name).exists() for name in json.loads(data))


def part_of_a_run(name: str) -> Callable[[bytes, Path], None]:
    """A finished run of which one file is anything."""

    def load(data: bytes, place: Path) -> None:
        if not (place / "run.yaml").exists():
            shutil.copytree(a_run(), place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("checkpoints"))
        (place / name).write_bytes(data)
        TextModel.load(place)

    return load


@cache
def a_run() -> Path:
    place = Path(tempfile.mkdtemp())
    data = write(place / "reviews.csv", ("text", "label"), list(rows(40)))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return train(TextConfig(data=(str(data),), heads=2, head_dim=4, word_dim=8, epochs=1), place / "run").run_dir


def valid(name: str) -> bytes:
    """A sound input."""
    found = TARGETS[name][0]
    return (a_run() / name).read_bytes() if found is None else found


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        assert not any(name.startswith("on") for name, _ in attrs)


def page(data: bytes, place: Path) -> None:
    """Text is text, wherever it stands on a page."""
    text = data.decode("utf-8", "replace")
    made = Page(text)
    made.section(text)
    made.text(text)
    made.code(text)
    made.table([text], [[text]])
    expected = Page("a")
    for fill in (expected.section, expected.text, expected.code):
        fill("a")
    expected.table(["a"], [["a"]])
    assert Tags(made.html()).tags == Tags(expected.html()).tags, "no tag of its own"


def parquet(rows: int = 30) -> bytes:
    file = io.BytesIO()
    columns = {"text": [f"text {i}" for i in range(rows)], "label": [i % 2 for i in range(rows)]}
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def archive() -> bytes:
    file = io.BytesIO()
    np.savez(file, words=np.array(["a", "the"]), vectors=np.ones((2, 3), np.float32))
    return file.getvalue()


CSV = b"text,label\n" + b"".join(b'"text, %d",%d\n' % (i, i % 2) for i in range(30))
JSONL = b"".join(b'{"text": "text %d", "label": %d}\n' % (i, i % 2) for i in range(30))
CONLL = b"".join(b"the O\ncity B-LOC\nno%d O\n\n" % i for i in range(20))
NEWS = b"".join(b"N%d\tnews\tnews\ttitle %d\t\t\t[]\t[]\n" % (i, i) for i in range(5)).rstrip()
CLICKS = b"".join(b"%d\tU1\t11/9/2019 9:00:00 AM\tN1 N2\tN3-1 N4-0\n" % i for i in range(5))
GLOVE = b"a 0.1 0.2 0.3\nthe 1 2 3\nother 1e-3 2 -3\n"
YAML = b"data: [a.csv]\nmodel: plain\nepochs: 3\nseed: 1\nheads: 4\nguides: [mdg]\nhierarchy: [3, 4]\n"
METRICS = json.dumps(
    {"label_type": "classification", "task": "a", "labels": ["x", "y"], "primary": "accuracy", "figures": {},
     "inputs": {"pair": None, "max_length": 8, "hierarchy": None}}
).encode()  # fmt: skip

#: Of everything that reads: a sound input, what reads it.
TARGETS: dict[str, tuple[bytes | None, Callable[[bytes, Path], None]]] = {
    "csv": (CSV, table(".csv")),
    "tsv": (CSV.replace(b",", b"\t"), table(".tsv")),
    "jsonl": (JSONL, table(".jsonl")),
    "parquet": (parquet(), table(".parquet")),
    "csv.gz": (gzip.compress(CSV), table(".csv.gz")),
    "parquet.gz": (gzip.compress(parquet()), table(".parquet.gz")),
    "conll": (CONLL, sentences),
    "clicks": (NEWS + b"\n\n" + CLICKS, news),
    "titles": (CSV, headlines),
    "parallel": (b"a cat\na dog\n" * 20 + b"\n" + b"eine Katze\nein Hund\n" * 20, parallel),
    "vectors": (GLOVE, vectors(".txt")),
    "vectors.gz": (gzip.compress(GLOVE), vectors(".gz")),
    "vectors.npz": (archive(), vectors(".npz")),
    "run.yaml": (YAML, settings),
    "metrics.json": (METRICS, figures),
    "checkpoint": (b'{"model.safetensors": 10, "trainer_state.json": 3}', checkpoints),
    "config.json": (None, part_of_a_run("config.json")),
    "tokenizer.json": (None, part_of_a_run("tokenizer.json")),
    "model.safetensors": (None, part_of_a_run("model.safetensors")),
    "page": (b"<b>bold</b> text", page),
}

#: What no input may lead to.
FORBIDDEN = {"pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect"}

_watching: list[str] = []


def _hook(event: str, args: Any) -> None:
    if _watching and event in FORBIDDEN:
        _watching.append(f"{event} {args}")


sys.addaudithook(_hook)


@contextmanager
def nothing_run() -> Iterator[None]:
    """Fails where code that came from outside was run, or something else was started."""
    _watching[:] = ["watching"]
    try:
        yield
    finally:
        done, _watching[:] = _watching[1:], []
        assert not done, done


def try_out(name: str, data: bytes, place: Path) -> None:
    """Our own mistakes are the only errors."""
    with nothing_run(), suppress(UserError):
        TARGETS[name][1](data, place)
    shutil.rmtree(place / "cache", ignore_errors=True)
