"""Word vectors from every format, and one clear line for every fault."""

import gzip
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headwise.errors import UserError
from headwise.models import Coverage, read_vectors

VOCABULARY = {"[PAD]": 0, "[UNK]": 1, "the": 2, "café": 3, "rare": 4}
LINES = "the 0.5 -1 2e-1\nof 1 2 3\ncafé 7 8 9\n"
KNOWN = torch.tensor([[0.5, -1.0, 0.2], [7.0, 8.0, 9.0]])


def npz(path: Path, words: Any, vectors: Any) -> Path:
    np.savez(path, words=words, vectors=vectors)
    return path


def joined(*words: str) -> Any:
    return np.frombuffer("\n".join(words).encode(), dtype=np.uint8)


FILE = {
    "glove": lambda path: path.write_text(LINES, encoding="utf-8"),
    "word2vec": lambda path: path.write_text("3 3\n" + LINES.replace("\n", " \n"), encoding="utf-8"),
    "glove-gzip": lambda path: path.write_bytes(gzip.compress(LINES.encode(), mtime=0)),
    "word2vec-gzip": lambda path: path.write_bytes(gzip.compress(b"3 3\n" + LINES.encode(), mtime=0)),
    "windows": lambda path: path.write_bytes(LINES.replace("\n", "\r\n").encode()),
    "spaces-in-words": lambda path: path.write_text(LINES + ". . . 4 5 6\nto the 4 5 6\n", encoding="utf-8"),
    "twice": lambda path: path.write_text(LINES + "the 4 5 6\n", encoding="utf-8"),
}
ROWS = np.array([[0.5, -1, 0.2], [1, 2, 3], [7, 8, 9]])
ARRAYS = {
    "joined": (joined("the", "of", "café"), ROWS.astype(np.float16)),
    "strings": (np.array(["the", "of", "café"]), ROWS.astype(np.float32)),
    "byte-strings": (np.array([word.encode() for word in ("the", "of", "café")]), ROWS),
}


def check(path: Path) -> None:
    matrix, coverage = read_vectors(path, VOCABULARY)
    assert matrix.dtype == torch.float32
    assert matrix.shape == (5, 3)
    torch.testing.assert_close(matrix[2:4], KNOWN, rtol=1e-3, atol=1e-3)
    assert not matrix[0].any()
    assert matrix[1].any()
    assert matrix[4].any()
    assert coverage == Coverage(words=3, found=2)


@pytest.mark.parametrize("name", FILE)
def test_text(name: str, tmp_path: Path) -> None:
    FILE[name](tmp_path / "vectors")
    check(tmp_path / "vectors")


@pytest.mark.parametrize("name", ARRAYS)
def test_npz(name: str, tmp_path: Path) -> None:
    check(npz(tmp_path / "vectors.npz", *ARRAYS[name]))


def test_coverage(tmp_path: Path) -> None:
    (tmp_path / "v").write_text(LINES, encoding="utf-8")
    counts = {"the": 7, "café": 2, "rare": 1, "dropped": 10}
    _, coverage = read_vectors(tmp_path / "v", VOCABULARY, counts=counts)
    assert coverage == Coverage(words=3, found=2, occurrences=20, occurrences_found=9)
    assert str(coverage) == "word vectors for 2 of 3 words (66.7 %), 45.0 % of the texts' words"


def test_missing_words_depend_on_the_word_alone(tmp_path: Path) -> None:
    (tmp_path / "v").write_text(LINES, encoding="utf-8")
    one, _ = read_vectors(tmp_path / "v", VOCABULARY)
    other, _ = read_vectors(tmp_path / "v", {"[PAD]": 0, "rare": 1, "the": 2})
    assert torch.equal(one[4], other[1])
    assert not torch.equal(one[1], one[4])
    wide = "the " + " ".join(["1"] * 2000)
    (tmp_path / "wide").write_text(wide)
    assert read_vectors(tmp_path / "wide", VOCABULARY)[0][4].std().item() == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("packed", [False, True])
def test_a_large_file_needs_little_memory(packed: bool, tmp_path: Path) -> None:
    path = tmp_path / "v"
    content = b"".join(b"word%d" % i + b" 0.123456" * 300 + b"\n" for i in range(4000))  # 10 MB
    path.write_bytes(gzip.compress(content, 1, mtime=0) if packed else content)
    tracemalloc.start()
    read_vectors(path, {"[PAD]": 0, "word7": 1})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LINES.encode() + b"cat 1 2\n", "line 4: expected 3 numbers after the word, got 2"),
        (LINES.encode() + b"cat 1 2 3 4\n", "line 4: expected 3 numbers after the word, got 4"),
        (b"3 3\nthe 1 2\n", "line 2: expected 3 numbers after the word, got 2"),
        (b"the\n", "line 1: expected some numbers after the word, got 0"),
        (LINES.encode() + b"rare 1 two 3\n", "line 4: expected numbers, got 'two'"),
        (LINES.encode() + b"rare 1 nan 3\n", "line 4: expected numbers, got 'nan'"),
        (LINES.encode() + b"caf\xe9 1 2 3\n", "line 4: the word is not UTF-8"),
        (
            gzip.compress(LINES.encode() * 10_000, mtime=0)[:-200],
            r"the gzip file ends after line \d+; it is incomplete",
        ),
        (gzip.compress(LINES.encode(), mtime=0)[:12], "the gzip file ends after line 0; it is incomplete"),
        (b"cat 1 2\n", "none of the 5 words of the vocabulary"),
        (b"", "none of the 5 words of the vocabulary"),
        (b"PK\x03\x04 no archive", "invalid .npz archive"),
    ],
)
def test_invalid_a_file(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read_vectors(path, VOCABULARY)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("words", "vectors", "message"),
    [
        (joined("the", "of"), ROWS, "\\(2, width\\)"),
        (joined("the", "of", "in"), ROWS[0], r"float64 of shape \(3,\)"),
        (joined("the", "of", "in"), ROWS.astype(int), "floating point"),
        (np.array([1, 2, 3]), ROWS, "words must be strings"),
        (np.array(["the", "of", "in"], dtype=object), ROWS, "invalid .npz archive"),
        (np.frombuffer(b"caf\xe9\nthe\nof", dtype=np.uint8), ROWS, "not UTF-8"),
        (joined("the", "of", "in"), ROWS * np.nan, "row 0: expected numbers"),
    ],
)
def test_invalid_an_archive(words: Any, vectors: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        read_vectors(npz(tmp_path / "v.npz", words, vectors), VOCABULARY)


def test_an_archive_without_words(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", vectors=ROWS)
    with pytest.raises(UserError, match="expected the arrays words and vectors"):
        read_vectors(tmp_path / "v.npz", VOCABULARY)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_vectors(tmp_path / "v.txt", VOCABULARY)
    with pytest.raises(UserError, match="directory"):
        read_vectors(tmp_path, VOCABULARY)


def test_an_archive_that_is_compressed_too_strongly_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.models.vectors.MAX_RATIO_FREE_BYTES", 10_000)
    np.savez_compressed(tmp_path / "a.npz", words=np.array(["a"]), vectors=np.zeros((1, 10**6), np.float32))
    with pytest.raises(UserError, match=r"a\.npz: vectors\.npy has 4,000,128 bytes, compressed too strongly"):
        read_vectors(tmp_path / "a.npz", {"a": 0})
