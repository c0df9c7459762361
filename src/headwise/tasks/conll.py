"""CoNLL-style files: a word a line, its tag in the last column, an empty line between sentences."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from headwise.errors import UserError
from headwise.tasks.formats import BATCH_ROWS, Batch, read_lines

Sentence = tuple[int, list[str], list[str]]  # the line it begins at, its words, their tags


def batches(path: Path, columns: Sequence[str] | None = None) -> Iterator[Batch]:
    """The sentences of a file, in order, as columns `words` and `tags`.

    Columns stand apart by spaces or tabs: the word is the first, its tag the last. `-DOCSTART-` lines, which tell
    documents apart, and comments that begin with `# ` are left out.

    Raises:
        UserError: there is no such file, or a line that differs from the first in its number of columns.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    found = sentences(path)
    first = 0
    while chunk := list(islice(found, BATCH_ROWS)):
        starts, words, tags = zip(*chunk, strict=True)
        yield Batch(path, range(first, first + len(chunk)), starts, {"words": words, "tags": tags})
        first += len(chunk)


def sentences(path: Path) -> Iterator[Sentence]:
    start = width = 0
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate(read_lines(path), 1):
        if not is_word(line, begun=bool(words)):
            if words:
                yield start, words, tags
                words, tags = [], []
            continue
        columns = line.split()
        width = width or len(columns)
        if len(columns) != width or width < 2:
            expected = f"{width} as in the lines before" if width > 1 else "a word and its tag"
            raise UserError(f"{path}, line {number}: {len(columns)} columns, expected {expected}")
        if not words:
            start = number
        words.append(columns[0])
        tags.append(columns[-1])
    if words:
        yield start, words, tags


def is_word(line: str, *, begun: bool) -> bool:
    """Whether a line is a word, and not what stands between sentences.

    Args:
        line: of the file.
        begun: whether there were words of the same sentence before; else it may be a comment.
    """
    columns = line.split()
    return bool(columns) and columns[0] != "-DOCSTART-" and (begun or not line.startswith("# "))
