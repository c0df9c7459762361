"""A file written again, with a trained model's answers beside each row."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from headwise.errors import UserError
from headwise.tasks.conll import is_word
from headwise.tasks.formats import BATCH_ROWS, EXTENSIONS, Batch, file_extension, read_batches, read_lines
from headwise.training.core.table_writer import new_file, writer_for
from headwise.training.text.inference import TextModel
from headwise.training.text.predictions import probabilities


def predict(run: Path, data: Path, out: Path, *, text: str | None = None, pair: str | None = None) -> int:
    """Write a file again, with the model's label and probabilities beside each row, in the order of the rows.

    A thousand rows are in memory at a time. Rows without a text get no label. Nothing is left of an output that could
    not be finished.

    Args:
        run: a finished run's folder.
        data: CSV, TSV, JSONL or Parquet, gzipped or not; for tags of words also a word a line.
        out: what to write, in the same format.
        text, pair: the columns of the texts; by default the run's, or found by their names.

    Returns:
        How many rows got no label.

    Raises:
        UserError: no such run or file, a column that is not there, or a line that cannot be read.
    """
    trained = TextModel.load(run)
    if trained.reader.label_type == "tokens" and file_extension(data) not in EXTENSIONS:
        tag_lines(trained, data, out)
        return 0
    empty = 0
    columns = None
    with writer_for(out, like=data) as write:
        for batch in shown(read_batches(data)):
            columns = columns or trained.columns(batch, labelled=False, text=text, pair=pair)
            named = [columns.text] if columns.pair is None else [columns.text, columns.pair]
            rows = words_of(batch, columns.text) if trained.reader.label_type == "tokens" else texts_of(batch, named)
            real = [i for i, row in enumerate(rows) if all(row)]
            empty += len(rows) - len(real)
            write(dict(batch.columns) | added(batch, real, scores(trained, [rows[i] for i in real]), trained))
        if columns is None:
            raise UserError(f"{data}: holds no rows")
    return empty


def texts_of(batch: Batch, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Each row's texts, empty where there is none."""
    return [tuple(map(real_text, row)) for row in zip(*(column(batch, name) for name in names), strict=True)]


def words_of(batch: Batch, name: str) -> list[tuple[list[str]]]:
    """Each row's words."""
    found = column(batch, name)
    for index, value in enumerate(found):
        if value is not None and not isinstance(value, list | tuple):
            raise UserError(
                f"{batch.location(index)}: column {name!r}: expected a list of words, got {str(value)[:40]!r}"
            )
    return [([str(word) for word in value or ()],) for value in found]


def column(batch: Batch, name: str) -> Sequence[Any]:
    """A column of a batch; JSON Lines may leave it out for many rows."""
    return batch.columns.get(name, [None] * len(batch.rows))


def real_text(value: Any) -> str:
    found = "" if value is None else str(value)
    return found if found.strip() else ""


def scores(trained: TextModel, rows: Sequence[tuple[Any, ...]]) -> list[Any]:
    if not rows:
        return []
    names = ("words",) if trained.reader.label_type == "tokens" else ("text", "pair")
    return trained.scores({name: list(texts) for name, texts in zip(names, zip(*rows, strict=True), strict=False)})


def added(batch: Batch, real: Sequence[int], scores: Sequence[Any], trained: TextModel) -> dict[str, list[Any]]:
    """The new columns: `predicted`, and a probability for each label; ratings and tags of words have none."""
    label_type, labels = trained.reader.label_type, trained.metrics["labels"]
    names = ["predicted"] + [f"probability_{label}" for label in labels if label_type not in ("regression", "tokens")]
    taken = [name for name in names if name in batch.columns]
    if taken:
        raise UserError(f"{batch.path}: has a column {taken[0]!r} already; rename it, as the answers are called that")
    columns: dict[str, list[Any]] = {name: [None] * len(batch.rows) for name in names}
    for place, row in zip(real, scores, strict=True):
        columns["predicted"][place], shares = answer(label_type, labels, np.asarray(row, dtype=np.float64))
        for name, share in zip(names[1:], shares, strict=True):
            columns[name][place] = round(float(share), 6)
    return columns


def answer(label_type: str, labels: Sequence[str], scores: Any) -> tuple[Any, Sequence[float]]:
    """A row's label, and the probability of each."""
    if label_type == "regression":
        return float(scores[0]), ()
    if label_type == "tokens":
        return tags(labels, scores), ()
    shares = probabilities(label_type, scores)
    if label_type == "multi-label":
        return "|".join(label for label, share in zip(labels, shares, strict=True) if share > 0.5), shares
    return labels[int(shares.argmax())], shares


def tags(labels: Sequence[str], scores: Any) -> list[str]:
    return [labels[int(row.argmax())] for row in scores]


def tag_lines(trained: TextModel, data: Path, out: Path) -> None:
    """The lines of a CoNLL-style file, the model's tag behind each word."""
    with new_file(out, like=data) as part, part.open("w", encoding="utf-8") as file:
        for sentences in several(shown_lines(sentences_of(data))):
            words = [[line.split()[0] for line, word in sentence if word] for sentence in sentences]
            real = [sentence for sentence in words if sentence]
            found = iter(trained.scores({"words": real}) if real else [])
            for sentence, own in zip(sentences, words, strict=True):
                guessed = iter(tags(trained.metrics["labels"], next(found)) if own else [])
                file.writelines(f"{line} {next(guessed)}\n" if word else f"{line}\n" for line, word in sentence)


def sentences_of(data: Path) -> Iterator[list[tuple[str, bool]]]:
    """Lines up to the end of a sentence, each with whether it is a word."""
    if not data.is_file():
        raise UserError(f"{data}: no such file")
    found: list[tuple[str, bool]] = []
    for raw in read_lines(data):
        line = raw.rstrip("\r\n")
        found.append((line, is_word(line, in_sentence=any(word for _, word in found))))
        if not found[-1][1]:
            yield found
            found = []
    if found:
        yield found


def several(sentences: Iterator[list[tuple[str, bool]]]) -> Iterator[list[list[tuple[str, bool]]]]:
    while chunk := list(islice(sentences, BATCH_ROWS)):
        yield chunk


def shown(parts: Iterator[Batch]) -> Iterator[Batch]:
    """The same, with a bar that counts rows."""
    with tqdm(desc="predicting", unit=" rows", leave=False, delay=1) as bar:
        for part in parts:
            yield part
            bar.update(len(part.rows))


def shown_lines(sentences: Iterator[Any]) -> Iterator[Any]:
    return iter(tqdm(sentences, desc="predicting", unit=" sentences", leave=False, delay=1))
