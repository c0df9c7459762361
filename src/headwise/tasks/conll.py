"""A reader of CoNLL files: one word per line with its tag in the last column, and empty lines between sentences."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from headwise.errors import UserError
from headwise.tasks.formats import BATCH_ROWS, Batch, read_lines


def read_conll(path: Path, columns: Sequence[str] | None = None) -> Iterator[Batch]:
    """Read the sentences of a file in order, as columns `words` and `tags`.

    Columns are separated by spaces or tabs: the word is the first, its tag the last. `-DOCSTART-` lines, which separate
    documents, and comments that start with `# ` are skipped.

    Raises:
        UserError: The file does not exist, or the number of columns varies.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    sentences = iterate_sentences(path)
    start = 0
    while chunk := list(islice(sentences, BATCH_ROWS)):
        lines, words, tags = zip(*chunk, strict=True)
        yield Batch(path, range(start, start + len(chunk)), lines, {"words": words, "tags": tags})
        start += len(chunk)


def iterate_sentences(path: Path) -> Iterator[tuple[int, list[str], list[str]]]:
    """Iterate over the first line, the words and the tags of each sentence."""
    first_line = num_columns = 0
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate(read_lines(path), 1):
        if not is_word(line, in_sentence=bool(words)):
            if words:
                yield first_line, words, tags
                words, tags = [], []
            continue
        columns = line.split()
        num_columns = num_columns or len(columns)
        if len(columns) != num_columns or num_columns < 2:
            expected = f"{num_columns} columns as before" if num_columns > 1 else "a word and its tag"
            raise UserError(f"{path}, line {number}: expected {expected}, got {len(columns)}")
        if not words:
            first_line = number
        words.append(columns[0])
        tags.append(columns[-1])
    if words:
        yield first_line, words, tags


def is_word(line: str, *, in_sentence: bool) -> bool:
    """Return whether a line is a word, and not a separator or comment.

    Args:
        line: The line.
        in_sentence: Whether the previous line is a word. Comments are recognized only between sentences.
    """
    columns = line.split()
    return bool(columns) and columns[0] != "-DOCSTART-" and (in_sentence or not line.startswith("# "))
