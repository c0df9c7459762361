"""Readers of word vectors: GloVe or word2vec text files, gzipped or not, and `.npz` archives.

Text files are read line by line, and only words of the vocabulary are kept, so large files need little memory. The
first line of a word2vec file is "count width". An `.npz` archive contains `vectors` (words, width) of a floating type
and `words`: strings, or bytes joined by newlines.
"""

import math
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headwise.errors import UserError
from headwise.files import MAX_COMPRESSION_RATIO, MAX_RATIO_FREE_BYTES, LineReader, open_regular
from headwise.models.initialization import derive_seed
from headwise.models.words import PAD, SPECIAL

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class Coverage:
    """How many words of a vocabulary have a vector, and how many occurrences if counts are known."""

    words: int
    found: int
    occurrences: int | None = None
    occurrences_found: int | None = None

    def __str__(self) -> str:
        line = f"word vectors for {self.found:,} of {self.words:,} words ({_format_percent(self.found, self.words)})"
        if self.occurrences is None or self.occurrences_found is None:
            return line
        return f"{line}, {_format_percent(self.occurrences_found, self.occurrences)} of the texts' words"


def read_vectors(
    path: str | Path,
    vocabulary: Mapping[str, int],
    *,
    counts: Mapping[str, int] | None = None,
    std: float = 0.1,
) -> tuple[Tensor, Coverage]:
    """Read the vectors of a vocabulary.

    Words without a vector get a small random one, which depends only on the word; [PAD] is 0. If a word occurs twice in
    the file, the first vector is used.

    Args:
        path: The file.
        vocabulary: Index of each word, such as `tokenizer.get_vocab()`.
        counts: Word counts of the training texts (`count_words`), for the coverage.
        std: Standard deviation of random vectors.

    Returns:
        The matrix (vocabulary, width) in float32, and the coverage without special tokens.

    Raises:
        UserError: The file does not exist, is incomplete or invalid (the line is named), or contains no word of the
            vocabulary.

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
    vectors: dict[str, Vector] = {}
    for word, vector in _iterate_vectors(path, vocabulary):
        vectors.setdefault(word, vector)
    if not vectors:
        raise UserError(
            f"{path}: contains none of the {len(vocabulary):,} words of the vocabulary; check upper and lower case"
        )
    width = len(next(iter(vectors.values())))
    matrix = np.zeros((max(vocabulary.values()) + 1, width), dtype=np.float32)
    for word, index in vocabulary.items():
        if word in vectors:
            matrix[index] = vectors[word]
        elif word != PAD:
            matrix[index] = std * np.random.default_rng(derive_seed(0, word)).standard_normal(width)
    return torch.from_numpy(matrix), _compute_coverage(vocabulary, vectors, counts)


def _compute_coverage(
    vocabulary: Collection[str], vectors: Collection[str], counts: Mapping[str, int] | None
) -> Coverage:
    words = [word for word in vocabulary if word not in SPECIAL]
    covered = [word for word in words if word in vectors]
    if counts is None:
        return Coverage(len(words), len(covered))
    return Coverage(len(words), len(covered), sum(counts.values()), sum(counts.get(word, 0) for word in covered))


def _iterate_vectors(path: Path, vocabulary: Collection[str]) -> Iterator[tuple[str, Vector]]:
    """Iterate over the words of the vocabulary in a file, with their vectors."""
    try:
        with open_regular(path) as file:
            start = file.read(2)
        yield from (_read_npz if start == b"PK" else _read_text)(path, vocabulary)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None


def _read_text(path: Path, vocabulary: Collection[str]) -> Iterator[tuple[str, Vector]]:
    """Read a text file with a word and its numbers on each line, separated by spaces."""
    width = 0
    for number, line in enumerate(map(bytes.rstrip, LineReader(path).read_bytes()), start=1):
        if number == 1 and (header := _parse_header(line)):
            width = header
        elif line:
            width = width or line.count(b" ")
            word = _parse_word(line, width, f"{path}, line {number:,}")
            if word in vocabulary:
                yield word, _parse_numbers(line, width, f"{path}, line {number:,}")


def _parse_header(line: bytes) -> int:
    """Return the width in the header of a word2vec file, or 0 without a header."""
    parts = line.split()
    is_header = len(parts) == 2 and all(part.isdigit() and len(part) < 10 for part in parts)
    return int(parts[1]) if is_header else 0


def _parse_word(line: bytes, width: int, location: str) -> str:
    """Return the word of a line. Words can contain spaces, as in GloVe 840B."""
    spaces = line.count(b" ")
    first, *more = line.rsplit(b" ", width)[0].split(b" ") if spaces > width else line.split(b" ", 1)[:1]
    if spaces < width or not width or (more and all(map(_is_number, more))):
        raise UserError(f"{location}: expected {width or 'some'} numbers after the word, got {spaces}")
    try:
        return b" ".join([first, *more]).decode()
    except UnicodeDecodeError:
        raise UserError(f"{location}: the word is not UTF-8") from None


def _parse_numbers(line: bytes, width: int, location: str) -> Vector:
    """Return the numbers of a line."""
    parts = line.rsplit(b" ", width)[1:]
    try:
        numbers = np.array(list(map(float, parts)))
        if np.isfinite(numbers).all():
            return numbers.astype(np.float32)
    except ValueError:
        pass
    invalid = next(part for part in parts if not _is_number(part))
    raise UserError(f"{location}: expected numbers, got {invalid.decode(errors='replace')!r}")


def _is_number(part: bytes) -> bool:
    try:
        return math.isfinite(float(part))
    except ValueError:
        return False


def _read_npz(path: Path, vocabulary: Collection[str]) -> Iterator[tuple[str, Vector]]:
    """Read an `.npz` archive."""
    try:
        with zipfile.ZipFile(path) as zip_file:
            for member in zip_file.infolist():
                if member.file_size > max(MAX_RATIO_FREE_BYTES, MAX_COMPRESSION_RATIO * member.compress_size):
                    raise UserError(
                        f"{path}: {member.filename} has {member.file_size:,} bytes, compressed too strongly"
                    )
        with np.load(path, allow_pickle=False) as archive:
            words, vectors = archive["words"], archive["vectors"]
    except KeyError as error:
        raise UserError(f"{path}: expected the arrays words and vectors; {error.args[0]}") from None
    except UserError:
        raise
    except (ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: invalid .npz archive: {error}") from None
    names = _decode_words(path, words)
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or len(vectors) != len(names):
        raise UserError(
            f"{path}: vectors must be floating point of shape ({len(names):,}, width); "
            f"got {vectors.dtype} of shape {vectors.shape}"
        )
    for index, word in enumerate(names):
        if word in vocabulary:
            if not np.isfinite(vectors[index]).all():
                raise UserError(f"{path}, row {index}: expected numbers, got nan or inf for {word!r}")
            yield word, vectors[index].astype(np.float32)


def _decode_words(path: Path, words: NDArray[Any]) -> list[str]:
    """Return the words of an `.npz`: strings, byte strings, or bytes joined by newlines."""
    try:
        if words.dtype == np.uint8:
            return words.tobytes().decode().split("\n")
        if words.dtype.kind == "S":
            return [word.decode() for word in words.tolist()]
    except UnicodeDecodeError:
        raise UserError(f"{path}: the words are not UTF-8") from None
    if words.dtype.kind != "U":
        raise UserError(f"{path}: words must be strings or bytes joined by newlines, got {words.dtype}")
    return [str(word) for word in words.tolist()]


def _format_percent(part: int, whole: int) -> str:
    return f"{part / max(whole, 1):.1%}".replace("%", " %")
