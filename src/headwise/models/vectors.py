"""Word vectors from a file: GloVe's text, word2vec's text (a first line "count width"), either gzipped, or `.npz`.

A text file is read line by line and only the vocabulary's words are kept, so a file of gigabytes needs none of them.
An `.npz` holds `vectors` (words, width) of any floating type and `words`: strings, or bytes joined by newlines.
"""

import gzip
import math
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headwise.errors import UserError
from headwise.models.initialisation import seed_of
from headwise.models.words import PAD, SPECIAL

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class Coverage:
    """How much of a vocabulary a file of word vectors knows; occurrences where counts were given."""

    words: int
    found: int
    occurrences: int | None = None
    occurrences_found: int | None = None

    def __str__(self) -> str:
        line = f"word vectors for {self.found:,} of {self.words:,} words ({_percent(self.found, self.words)})"
        if self.occurrences is None or self.occurrences_found is None:
            return line
        return f"{line}, {_percent(self.occurrences_found, self.occurrences)} of the texts' words"


def read_vectors(
    path: str | Path,
    vocabulary: Mapping[str, int],
    *,
    counts: Mapping[str, int] | None = None,
    spread: float = 0.1,
) -> tuple[Tensor, Coverage]:
    """A vocabulary's word vectors, a row for each word at its number.

    Words that the file does not have start as small random vectors, drawn from the word itself; [PAD] is 0. A word that
    stands in the file twice has its first vector.

    Args:
        path: the file.
        vocabulary: each word's number, such as `tokenizer.get_vocab()`.
        counts: how often each word occurs in the training texts (`count_words`), for the coverage.
        spread: standard deviation of the random vectors.

    Returns:
        The matrix (vocabulary, width) in float32, and the coverage; special tokens do not count in it.

    Raises:
        UserError: a file that is missing or cut off, a line (by number) of another width, without numbers or not in
            UTF-8, or no word of the vocabulary.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from headwise.models import read_vectors
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "vectors.txt")
        ...     _ = path.write_text("the 0.1 0.2\\ncat 0.3 0.4\\n")
        ...     matrix, coverage = read_vectors(path, {"[PAD]": 0, "cat": 1, "dog": 2})
        >>> print(coverage, matrix[1])
        word vectors for 1 of 2 words (50.0 %) tensor([0.3000, 0.4000])
    """
    path = Path(path)
    found: dict[str, Vector] = {}
    for word, vector in _entries(path, vocabulary):
        found.setdefault(word, vector)
    if not found:
        raise UserError(f"{path}: none of the vocabulary's {len(vocabulary):,} words is in it; is it in another case?")
    width = len(next(iter(found.values())))
    matrix = np.zeros((max(vocabulary.values()) + 1, width), dtype=np.float32)
    for word, number in vocabulary.items():
        if word in found:
            matrix[number] = found[word]
        elif word != PAD:
            matrix[number] = spread * np.random.default_rng(seed_of(0, word)).standard_normal(width)
    return torch.from_numpy(matrix), _coverage(vocabulary, found, counts)


def _coverage(vocabulary: Collection[str], found: Collection[str], counts: Mapping[str, int] | None) -> Coverage:
    words = [word for word in vocabulary if word not in SPECIAL]
    known = [word for word in words if word in found]
    if counts is None:
        return Coverage(len(words), len(known))
    return Coverage(len(words), len(known), sum(counts.values()), sum(counts.get(word, 0) for word in known))


def _entries(path: Path, wanted: Collection[str]) -> Iterator[tuple[str, Vector]]:
    """The wanted words of a file, with their vectors."""
    try:
        with path.open("rb") as file:
            start = file.read(4)
            file.seek(0)
            if start.startswith(b"PK"):
                yield from _archived(path, wanted)
            elif start.startswith(b"\x1f\x8b"):
                yield from _written(path, gzip.GzipFile(fileobj=file), wanted)
            else:
                yield from _written(path, file, wanted)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file of word vectors") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None


def _written(path: Path, lines: Iterable[bytes], wanted: Collection[str]) -> Iterator[tuple[str, Vector]]:
    """The words of a text file: on each line a word and its numbers, with spaces between."""
    width, at = 0, 0
    try:
        for at, ended in enumerate(lines, start=1):
            line = ended.rstrip()
            if at == 1 and (header := _header(line)):
                width = header
            elif line:
                width = width or line.count(b" ")
                word = _word(line, width, f"{path}, line {at:,}")
                if word in wanted:
                    yield word, _numbers(line, width, f"{path}, line {at:,}")
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise UserError(f"{path}: cut off or damaged after line {at:,}") from None


def _header(line: bytes) -> int:
    """The width that word2vec's first line states, or 0."""
    parts = line.split()
    return int(parts[1]) if len(parts) == 2 and parts[0].isdigit() and parts[1].isdigit() else 0


def _word(line: bytes, width: int, where: str) -> str:
    """A line's word. Some have spaces themselves, as in GloVe 840B."""
    spaces = line.count(b" ")
    first, *more = line.rsplit(b" ", width)[0].split(b" ") if spaces > width else line.split(b" ", 1)[:1]
    if spaces < width or not width or (more and all(map(_is_number, more))):
        raise UserError(f"{where}: {width or 'some'} numbers are expected after the word, got {spaces}")
    try:
        return b" ".join([first, *more]).decode()
    except UnicodeDecodeError:
        raise UserError(f"{where}: the word is not in UTF-8") from None


def _numbers(line: bytes, width: int, where: str) -> Vector:
    parts = line.rsplit(b" ", width)[1:]
    try:
        numbers = np.array(list(map(float, parts)))
        if np.isfinite(numbers).all():
            return numbers.astype(np.float32)
    except ValueError:
        pass
    wrong = next(part for part in parts if not _is_number(part))
    raise UserError(f"{where}: numbers are expected, got {wrong.decode(errors='replace')!r}")


def _is_number(part: bytes) -> bool:
    try:
        return math.isfinite(float(part))
    except ValueError:
        return False


def _archived(path: Path, wanted: Collection[str]) -> Iterator[tuple[str, Vector]]:
    """The words of an `.npz`."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            words, vectors = archive["words"], archive["vectors"]
    except KeyError as error:
        raise UserError(f"{path}: arrays called words and vectors are expected; {error.args[0]}") from None
    except (ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: not readable as .npz: {error}") from None
    names = _names(path, words)
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or len(vectors) != len(names):
        raise UserError(
            f"{path}: vectors must be floating point, ({len(names):,} words, width); "
            f"got {vectors.dtype} of shape {vectors.shape}"
        )
    for at, word in enumerate(names):
        if word in wanted:
            if not np.isfinite(vectors[at]).all():
                raise UserError(f"{path}, row {at}: numbers are expected, got nan or inf for {word!r}")
            yield word, vectors[at].astype(np.float32)


def _names(path: Path, words: NDArray[Any]) -> list[str]:
    """The words of an `.npz`: strings, byte strings, or bytes joined by newlines."""
    try:
        if words.dtype == np.uint8:
            return words.tobytes().decode().split("\n")
        if words.dtype.kind == "S":
            return [word.decode() for word in words.tolist()]
    except UnicodeDecodeError:
        raise UserError(f"{path}: the words are not in UTF-8") from None
    if words.dtype.kind != "U":
        raise UserError(f"{path}: words must be strings or bytes joined by newlines, got {words.dtype}")
    return [str(word) for word in words.tolist()]


def _percent(part: int, whole: int) -> str:
    return f"{part / max(whole, 1):.1%}".replace("%", " %")
