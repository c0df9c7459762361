"""Predictions for the rows of a file."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from headwise.errors import UserError
from headwise.files import LineReader, check_regular
from headwise.tasks.conll import SENTENCE_HINT, is_word
from headwise.tasks.formats import EXTENSIONS, Batch, chunk_rows, file_extension, parse_delimiter, read_batches
from headwise.training.core.table_writer import open_output, open_table
from headwise.training.text.decision import HAS_CONFIDENCE, DecisionRule
from headwise.training.text.inference import TextModel

logger = logging.getLogger(__name__)

#: A line of a CoNLL file, and whether it is a word.
Line = tuple[str, bool]


def predict(
    run: Path,
    data: Path,
    out: Path,
    *,
    text: str | None = None,
    pair: str | None = None,
    delimiter: str | None = None,
) -> int:
    """Write the rows of a file, in their order, with the model's label, confidence and probabilities as new columns.

    One batch of rows is in memory at a time. Rows without a text get no label. No output is written if an error occurs.

    Args:
        run: the directory of a finished run.
        data: CSV, TSV, JSONL, Parquet or Excel, optionally gzipped; for tagging also CoNLL, with one word per line.
        out: the output file, in the same format.
        text: the text column; by default the run's, or detected.
        pair: the second text column.
        delimiter: the delimiter of the columns, for CSV and TSV; detected by default.

    Returns:
        The number of rows without a text.

    Raises:
        UserError: there is no such run or file, a column is missing, or a line is invalid.
    """
    trained = TextModel.load(run)
    is_tagging = trained.encoder.label_type == "tokens"
    if is_tagging and file_extension(data) not in EXTENSIONS:
        tag_lines(trained, data, out)
        return 0
    rule = DecisionRule.from_metrics(trained.metrics)
    num_empty = 0
    columns = None
    confidence: list[float] = []
    with open_table(out, source=data) as write:
        delimiter = None if delimiter is None else parse_delimiter(delimiter)
        for batch in with_progress(read_batches(data, delimiter=delimiter)):
            columns = columns or trained.choose_columns(batch, labelled=False, text=text, pair=pair)
            names = [columns.text] if columns.pair is None else [columns.text, columns.pair]
            rows = get_words(batch, columns.text) if is_tagging else get_texts(batch, names)
            filled = [index for index, row in enumerate(rows) if all(row)]
            num_empty += len(rows) - len(filled)
            scores = score_rows(trained, [rows[index] for index in filled])
            new_columns = prediction_columns(batch, filled, scores, rule)
            confidence += [value for value in new_columns.get("confidence", ()) if value is not None]
            write(dict(batch.columns) | new_columns)
        if columns is None:
            raise UserError(f"{data}: contains no rows")
    if confidence:
        logger.info("%s", describe_confidence(confidence, rule))
    return num_empty


def describe_confidence(confidence: Sequence[float], rule: DecisionRule) -> str:
    """Return a sentence on the confidence of predictions, compared with the rows of dev.

    >>> rule = DecisionRule("classification", ("a", "b"), confidence_quantiles=(0.5, 0.8, 1.0))
    >>> describe_confidence([0.5, 0.6, 0.7], rule)
    'confidence of the predictions: median 0.60, lowest tenth below 0.52 (dev: median 0.80, lowest tenth below 0.56)'
    """

    def describe(values: Sequence[float]) -> str:
        low, median = np.quantile(values, [0.1, 0.5])
        return f"median {median:.2f}, lowest tenth below {low:.2f}"

    dev = f" (dev: {describe(rule.confidence_quantiles)})" if rule.confidence_quantiles else ""
    return f"confidence of the predictions: {describe(confidence)}{dev}"


def get_texts(batch: Batch, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the texts of each row; missing and blank ones are empty."""
    for name in names:
        for index, value in enumerate(get_column(batch, name)):
            if isinstance(value, list | dict):
                raise UserError(
                    f"{batch.location(index)}: column {name!r}: expected a text, got {repr(value)[:40]}; "
                    "name the column of texts with --text"
                )
    return [tuple(map(to_text, row)) for row in zip(*(get_column(batch, name) for name in names), strict=True)]


def get_words(batch: Batch, name: str) -> list[tuple[list[str]]]:
    """Return the words of each row."""
    values = get_column(batch, name)
    for index, value in enumerate(values):
        if value is not None and not isinstance(value, list | tuple):
            raise UserError(
                f"{batch.location(index)}: column {name!r}: expected a list of words, got {str(value)[:40]!r}"
            )
    return [([str(word) for word in value or ()],) for value in values]


def get_column(batch: Batch, name: str) -> Sequence[Any]:
    """Return a column of a batch, which JSON Lines may omit."""
    return batch.columns.get(name, [None] * len(batch.rows))


def to_text(value: Any) -> str:
    """Convert a value to a string; blank values are empty."""
    text = "" if value is None else str(value)
    return text if text.strip() else ""


def score_rows(trained: TextModel, rows: Sequence[tuple[Any, ...]]) -> list[Any]:
    if not rows:
        return []
    names = ("words",) if trained.encoder.label_type == "tokens" else ("text", "pair")
    return trained.scores({name: list(values) for name, values in zip(names, zip(*rows, strict=True), strict=False)})


def prediction_columns(
    batch: Batch, filled: Sequence[int], scores: Sequence[Any], rule: DecisionRule
) -> dict[str, list[Any]]:
    """Return the new columns: `predicted`, and for classes the confidence and the probability of each label.

    Args:
        batch: the rows.
        filled: the indices of the rows that have a text.
        scores: their scores.
        rule: the model's decision rule.

    Raises:
        UserError: the file already has a column of that name.
    """
    names = ["predicted"]
    if rule.label_type in HAS_CONFIDENCE:
        names += ["confidence", *(["confidence_quantile"] if rule.confidence_quantiles else [])]
    if rule.label_type not in ("regression", "tokens"):
        names += [f"probability_{label}" for label in rule.labels]
    taken = [name for name in names if name in batch.columns]
    if taken:
        raise UserError(f"{batch.path}: already has a column {taken[0]!r}; rename it to add predictions")
    columns: dict[str, list[Any]] = {name: [None] * len(batch.rows) for name in names}
    for index, row_scores in zip(filled, scores, strict=True):
        values = predict_row(rule, np.asarray(row_scores, dtype=np.float64))
        for name in names:
            columns[name][index] = values[name]
    return columns


def predict_row(rule: DecisionRule, scores: Any) -> dict[str, Any]:
    """Return the values of the new columns of a row."""
    if rule.label_type == "regression":
        return {"predicted": float(scores[0])}
    if rule.label_type == "tokens":
        return {"predicted": predict_tags(rule.labels, scores)}
    probabilities = rule.probabilities(scores)
    values: dict[str, Any] = {
        f"probability_{label}": round(float(probability), 6)
        for label, probability in zip(rule.labels, probabilities, strict=True)
    }
    if rule.label_type == "multi-label":
        is_predicted = rule.decision_scores(scores) > 0
        label_names = [label for label, is_label in zip(rule.labels, is_predicted, strict=True) if is_label]
        return values | {"predicted": "|".join(label_names)}
    confidence = float(probabilities.max())
    return values | {
        "predicted": rule.labels[int(probabilities.argmax())],
        "confidence": round(confidence, 6),
        "confidence_quantile": rule.confidence_quantile(confidence),
    }


def predict_tags(labels: Sequence[str], scores: Any) -> list[str]:
    return [labels[int(word_scores.argmax())] for word_scores in scores]


def tag_lines(trained: TextModel, data: Path, out: Path) -> None:
    """Write the lines of a CoNLL file with the predicted tag after each word."""
    labels = trained.metrics["labels"]
    with open_output(out, source=data) as path, path.open("w", encoding="utf-8") as file:
        lines = LineReader(data, SENTENCE_HINT)
        progress = tqdm(read_sentences(lines), desc="predicting", unit=" sentences", leave=False, delay=1)
        for sentences in chunk_rows(progress, lambda: lines.num_bytes):
            words = [[line.split()[0] for line, is_word_line in sentence if is_word_line] for sentence in sentences]
            filled = [sentence for sentence in words if sentence]
            scores = iter(trained.scores({"words": filled}) if filled else [])
            for sentence, sentence_words in zip(sentences, words, strict=True):
                tags = iter(predict_tags(labels, next(scores)) if sentence_words else [])
                for line, is_word_line in sentence:
                    file.write(f"{line} {next(tags)}\n" if is_word_line else f"{line}\n")


def read_sentences(lines: LineReader) -> Iterator[list[Line]]:
    """Yield the lines of each sentence, up to the blank line that ends it."""
    check_regular(lines.path)
    sentence: list[Line] = []
    lines.start_record()
    for raw in lines:
        line = raw.rstrip("\r\n")
        sentence.append((line, is_word(line, in_sentence=any(is_word_line for _, is_word_line in sentence))))
        if not sentence[-1][1]:
            yield sentence
            sentence = []
            lines.start_record()
    if sentence:
        yield sentence


def with_progress(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Show a progress bar of the rows."""
    with tqdm(desc="predicting", unit=" rows", leave=False, delay=1) as bar:
        for batch in batches:
            yield batch
            bar.update(len(batch.rows))
