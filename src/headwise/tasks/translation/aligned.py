"""Line-aligned files: line n of `train.en` is translated by line n of `train.de`, each gzipped or not."""

from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path

from headwise.errors import UserError
from headwise.tasks.formats import BATCH_ROWS, Batch, read_lines


def language_of(path: Path) -> str:
    """What a file's name ends with, before `.gz`.

    >>> language_of(Path("test_2016.de.gz")), language_of(Path("train.en")), language_of(Path("notes"))
    ('de', 'en', '')
    """
    return Path(path.stem if path.suffix == ".gz" else path.name).suffix[1:]


def stem_of(path: Path) -> str:
    """A file's name without its language.

    >>> stem_of(Path("data/test_2016.de.gz"))
    'test_2016'
    """
    return Path(path.stem if path.suffix == ".gz" else path.name).stem


def beside(path: Path, language: str) -> Path:
    """The file with the same lines in another language.

    Raises:
        UserError: there is none.
    """
    plain = path.with_name(f"{stem_of(path)}.{language}")
    for candidate in (plain, plain.with_name(f"{plain.name}.gz")):
        if candidate.is_file():
            return candidate
    raise UserError(f"{path}: there is no {plain.name} (or .gz) beside it, with the same lines in {language}")


def batches(path: Path, columns: Sequence[str] | None = None, *, language: str) -> Iterator[Batch]:
    """The lines of a file as `source`, those of the file beside it as `target`.

    Raises:
        UserError: one has more lines than the other.
    """
    other = beside(path, language)
    numbered = enumerate(zip_longest(read_lines(path), read_lines(other)))
    while chunk := list(islice(numbered, BATCH_ROWS)):
        rows, pairs = zip(*chunk, strict=True)
        for row, pair in chunk:
            if None in pair:
                longer, shorter = (path, other) if pair[1] is None else (other, path)
                total = row + 1 + sum(1 for _ in numbered) + len(chunk) - (row - rows[0] + 1)
                raise UserError(
                    f"{longer} has {total:,} lines, {shorter} has {row:,}: line-aligned files have the same number"
                )
        source, target = zip(*pairs, strict=True)
        texts = {"source": [strip_newline(line) for line in source], "target": [strip_newline(line) for line in target]}
        yield Batch(path, rows, [row + 1 for row in rows], texts)


def strip_newline(line: str) -> str:
    """A line without its end."""
    return line.rstrip("\r\n")
