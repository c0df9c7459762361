"""Line-aligned files: line n of `train.de` translates line n of `train.en`; each file may be gzipped."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from headwise.errors import UserError
from headwise.files import LineReader
from headwise.tasks.formats import Batch, chunk_rows


def language_of(path: Path) -> str:
    """Return the extension of a file without `.gz`.

    >>> language_of(Path("test_2016.de.gz")), language_of(Path("train.en")), language_of(Path("notes"))
    ('de', 'en', '')
    """
    return Path(path.stem if path.suffix == ".gz" else path.name).suffix[1:]


def stem_of(path: Path) -> str:
    """Return the name of a file without its language.

    >>> stem_of(Path("data/test_2016.de.gz"))
    'test_2016'
    """
    return Path(path.stem if path.suffix == ".gz" else path.name).stem


def find_translation(path: Path, language: str) -> Path:
    """Return the aligned file in another language.

    Raises:
        UserError: It does not exist.
    """
    uncompressed = path.with_name(f"{stem_of(path)}.{language}")
    for candidate in (uncompressed, uncompressed.with_name(f"{uncompressed.name}.gz")):
        if candidate.is_file():
            return candidate
    raise UserError(f"{path}: {uncompressed.name} (or .gz) with the same lines in {language} is missing")


def read_aligned(path: Path, columns: Sequence[str] | None = None, *, language: str) -> Iterator[Batch]:
    """Read the lines of a file as `source`, and those of the aligned file as `target`.

    Raises:
        UserError: The numbers of lines differ.
    """
    translation = find_translation(path, language)
    readers = LineReader(path), LineReader(translation)
    numbered_pairs = enumerate(zip_longest(*readers))
    for chunk in chunk_rows(numbered_pairs, lambda: sum(reader.num_bytes for reader in readers)):
        rows, pairs = zip(*chunk, strict=True)
        for row, pair in chunk:
            if None in pair:
                longer, shorter = (path, translation) if pair[1] is None else (translation, path)
                num_lines = rows[0] + len(chunk) + sum(1 for _ in numbered_pairs)
                raise UserError(
                    f"{longer} has {num_lines:,} lines, {shorter} has {row:,}; "
                    "line-aligned files must have the same number of lines"
                )
        source, target = zip(*pairs, strict=True)
        texts = {"source": [strip_newline(line) for line in source], "target": [strip_newline(line) for line in target]}
        yield Batch(path, rows, [row + 1 for row in rows], texts)


def strip_newline(line: str) -> str:
    """Remove the line break at the end of a line."""
    return line.rstrip("\r\n")
