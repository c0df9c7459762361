"""A reader of CoNLL files: one word per line with its tag in the last column, and empty lines between sentences."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from headwise.errors import UserError
from headwise.files import LineReader, check_regular
from headwise.tasks.formats import Batch, chunk_rows

SENTENCE_HINT = "an empty line must end each sentence"


def read_conll(path: Path, columns: Sequence[str] | None = None) -> Iterator[Batch]:
    """Read the sentences of a file in order, as columns `words` and `tags`.

    Columns are separated by spaces or tabs: the word is the first, its tag the last. `-DOCSTART-` lines, which separate
    documents, and comments that start with `# ` are skipped.

    Raises:
        UserError: The file does not exist, or the number of columns varies.
    """
    check_regular(path)
    lines = LineReader(path, SENTENCE_HINT)
    start = 0
    for chunk in chunk_rows(iterate_sentences(lines), lambda: lines.num_bytes):
        first_lines, words, tags = zip(*chunk, strict=True)
        yield Batch(path, range(start, start + len(chunk)), first_lines, {"words": words, "tags": tags})
        start += len(chunk)


def iterate_sentences(lines: LineReader) -> Iterator[tuple[int, list[str], list[str]]]:
    """Iterate over the first line, the words and the tags of each sentence."""
    first_line = num_columns = 0
    words: list[str] = []
    tags: list[str] = []
    lines.start_record()
    for line in lines:
        if not is_word(line, in_sentence=bool(words)):
            if words:
                yield first_line, words, tags
                words, tags = [], []
            lines.start_record()
            continue
        columns = line.split()
        num_columns = num_columns or len(columns)
        if len(columns) != num_columns or num_columns < 2:
            expected = f"{num_columns} columns as before, got {len(columns)}"
            if num_columns == 1:
                expected = "a word and its tag, got only a word (headwise predict needs no tags)"
            raise UserError(f"{lines.path}, line {lines.number}: expected {expected}")
        if not words:
            first_line = lines.number
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
