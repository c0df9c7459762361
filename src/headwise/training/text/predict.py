"""Predictions for the rows of files."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headwise.csv_cells import is_safe_csv
from headwise.errors import UserError
from headwise.files import LineReader, check_regular
from headwise.tasks.columns import Columns
from headwise.tasks.conll import SENTENCE_HINT, is_word
from headwise.tasks.formats import EXTENSIONS, Batch, chunk_rows, file_extension, parse_delimiter
from headwise.tasks.formats.parts import divide_lines, use_copy
from headwise.training.core import run_dir
from headwise.training.core.distributed import main_process_only
from headwise.training.core.table_writer import standard_output
from headwise.training.jobs import PART_ROWS, JobDir, JobOptions, Progress, Result, open_job
from headwise.training.jobs.files import TableTask, TextPart, output_paths, plan_tables, predict_parts, prediction_plan
from headwise.training.text.config import TextConfig
from headwise.training.text.decision import HAS_CONFIDENCE, DecisionRule
from headwise.training.text.inference import TextModel, choose_text_columns, read_text_metrics
from headwise.training.text.rank import rank_documents

logger = logging.getLogger(__name__)

#: Confidences are counted in so many steps from 0 to 1.
CONFIDENCE_STEPS = 1000
DEFAULT_OPTIONS = JobOptions()

#: A line of a CoNLL file, and whether it is a word.
Line = tuple[str, bool]


def predict(
    run: Path,
    data: Path | Sequence[Path],
    out: Path,
    *,
    text: str | None = None,
    pair: str | None = None,
    delimiter: str | None = None,
    documents: Path | str | Sequence[Path | str] | None = None,
    options: JobOptions = DEFAULT_OPTIONS,
) -> int:
    """Write the rows of files, in their order, with the model's label, confidence and probabilities as new columns.

    Memory does not depend on the size of the files. Rows without a text get no label. No output is written if an error
    occurs. With `documents`, the data are queries, and the output is a ranking of documents for each of them.

    Args:
        run: the directory of a finished run.
        data: CSV, TSV, JSONL, Parquet or Excel files, optionally gzipped, or directories of them; for tagging also
            CoNLL, with one word per line.
        out: the output file; for several input files a directory, in which each has an output of the same name; `-`
            for standard output, as CSV, TSV or JSON Lines (see `stream_extension`).
        text: the text column; by default the run's, or detected.
        pair: the second text column.
        delimiter: the delimiter of the columns, for CSV and TSV; detected by default.
        documents: files of documents, for a ranking model; see `rank_documents`.
        options: the processes or the cluster, and whether an unfinished job is resumed.

    Returns:
        The number of rows without a text.

    Raises:
        UserError: there is no such run or file, a column is missing, or a line is invalid.
    """
    if str(out) == "-":
        with standard_output(stream_extension(data, options)) as path:
            return predict(
                run, data, path, text=text, pair=pair, delimiter=delimiter, documents=documents, options=options
            )
    if documents is not None:
        if pair is not None:
            raise UserError("--pair cannot be combined with --documents, which contain the second texts")
        if not isinstance(data, Path) or data.is_dir():
            raise UserError("--documents: name one file of queries")
        paths = [Path(path) for path in ([documents] if isinstance(documents, Path | str) else documents)]
        return rank_documents(run, data, paths, out, text=text, delimiter=delimiter, options=options)
    metrics, config = read_text_metrics(run), TextConfig.load(run / run_dir.CONFIG)
    rule, has_pair = DecisionRule.from_metrics(metrics), metrics["inputs"]["pair"] is not None
    delimiter = None if delimiter is None else parse_delimiter(delimiter)
    outputs = output_paths(data, out, replace=options.replaces(out))
    settings = {"text": text, "pair": pair, "delimiter": delimiter, "safe_csv": is_safe_csv()}
    is_tagging = rule.label_type == "tokens"
    parts: list[Any]
    with open_job(out, prediction_plan(run, outputs, options, settings), options) as job_dir:
        assert job_dir is not None
        if is_tagging and not any(file_extension(file) in EXTENSIONS for file in outputs):
            plan = partial(plan_sentences, outputs, job_dir, options.part_rows or PART_ROWS)
            predict_parts(TaggedLines(run), main_process_only(plan, share=True), options, job_dir, unit="sentences")
            return 0
        plan_rows = partial(
            plan_tables,
            outputs,
            job_dir,
            new_column_types(rule),
            partial(choose_text_columns, config, has_pair, text=text, pair=pair),
            options,
            delimiter=delimiter,
        )
        parts = main_process_only(plan_rows, share=True)
        total = predict_parts(TableTask(TextPredictor(run)), parts, options, job_dir, unit="rows")
    if total["confidence"].any():
        logger.info("%s", describe_confidence(total["confidence"], rule))
    return int(total["empty"])


def stream_extension(data: Path | Sequence[Path], options: JobOptions) -> str:
    """Return the format of predictions on standard output: that of the input, CSV for Excel, JSON Lines for Parquet.

    >>> stream_extension(Path("new.tsv.gz"), DEFAULT_OPTIONS), stream_extension(Path("new.parquet"), DEFAULT_OPTIONS)
    ('.tsv', '.jsonl')

    Raises:
        UserError: there are several input files, or an option needs an output file.
    """
    if not isinstance(data, Path) or data.is_dir():
        raise UserError(
            "--out -: standard output takes the predictions of one file; for several files, name a directory"
        )
    if options.resume or options.cluster is not None:
        raise UserError("--out -: --resume and --cluster need an output file; name one")
    extension = file_extension(data)
    return {".xlsx": ".csv", ".parquet": ".jsonl"}.get(extension, extension)


@dataclass(frozen=True)
class TextPredictor:
    """Labels the rows of tables with the model of a run."""

    run: Path

    def load(self) -> TextModel:
        return TextModel.load(self.run)

    def predict(self, model: TextModel, batch: Batch, columns: Columns) -> tuple[dict[str, Sequence[Any]], Result]:
        names = [columns.text] if columns.pair is None else [columns.text, columns.pair]
        is_tagging = model.encoder.label_type == "tokens"
        rows = get_words(batch, columns.text) if is_tagging else get_texts(batch, names)
        filled = [index for index, row in enumerate(rows) if all(row)]
        rule = DecisionRule.from_metrics(model.metrics)
        new_columns = prediction_columns(batch, filled, score_rows(model, [rows[index] for index in filled]), rule)
        confidence = np.array([x for x in new_columns.get("confidence", ()) if x is not None], dtype=np.float64)
        counts = np.bincount(np.round(confidence * CONFIDENCE_STEPS).astype(int), minlength=CONFIDENCE_STEPS + 1)
        return new_columns, {"empty": np.array(len(rows) - len(filled)), "confidence": counts}


def describe_confidence(counts: Any, rule: DecisionRule) -> str:
    """Return a sentence on the confidence of predictions, compared with the rows of dev.

    Args:
        counts: (CONFIDENCE_STEPS + 1,), the number of predictions with each confidence, from 0 to 1.
        rule: the decision rule, which contains the quantiles of dev.

    >>> rule = DecisionRule("classification", ("a", "b"), confidence_quantiles=(0.5, 0.8, 1.0))
    >>> describe_confidence(np.bincount([500, 600, 700], minlength=1001), rule)
    'confidence of the predictions: median 0.60, lowest tenth below 0.50 (dev: median 0.80, lowest tenth below 0.56)'
    """

    def describe(low: float, median: float) -> str:
        return f"median {median:.2f}, lowest tenth below {low:.2f}"

    ranks = np.cumsum(counts) / counts.sum()
    dev = ""
    if rule.confidence_quantiles:
        dev = f" (dev: {describe(*np.quantile(rule.confidence_quantiles, [0.1, 0.5]))})"
    quantiles = np.searchsorted(ranks, [0.1, 0.5]) / CONFIDENCE_STEPS
    return f"confidence of the predictions: {describe(*quantiles)}{dev}"


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


def new_column_types(rule: DecisionRule) -> dict[str, pa.DataType]:
    """Return the new columns: `predicted`, and for classes the confidence and the probability of each label."""
    predicted = {"regression": pa.float64(), "tokens": pa.list_(pa.string())}.get(rule.label_type, pa.string())
    names = []
    if rule.label_type in HAS_CONFIDENCE:
        names += ["confidence", *(["confidence_quantile"] if rule.confidence_quantiles else [])]
    if rule.label_type not in ("regression", "tokens"):
        names += [f"probability_{label}" for label in rule.labels]
    return {"predicted": predicted} | dict.fromkeys(names, pa.float64())


def prediction_columns(
    batch: Batch, filled: Sequence[int], scores: Sequence[Any], rule: DecisionRule
) -> dict[str, Sequence[Any]]:
    """Return the values of the new columns.

    Args:
        batch: the rows.
        filled: the indices of the rows that have a text.
        scores: their scores.
        rule: the model's decision rule.
    """
    columns: dict[str, list[Any]] = {name: [None] * len(batch.rows) for name in new_column_types(rule)}
    for index, row_scores in zip(filled, scores, strict=True):
        values = predict_row(rule, np.asarray(row_scores, dtype=np.float64))
        for name, column in columns.items():
            column[index] = values[name]
    return dict(columns)


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


def plan_sentences(outputs: Mapping[Path, Path], job_dir: JobDir, part_rows: int) -> list[TextPart]:
    """Divide CoNLL files into parts of whole sentences."""
    parts = []
    for index, (file, out) in enumerate(outputs.items()):
        if out.exists() and file.exists() and out.samefile(file):
            raise UserError(f"--out {out}: the output is the input file")
        lines = LineReader(file, SENTENCE_HINT)
        file_parts = divide_lines(lines, read_sentences(lines), part_rows)
        parts += [TextPart(part, out) for part in use_copy(file_parts, job_dir.path / f"input-{index:06d}")]
    return parts


@dataclass(frozen=True)
class TaggedLines:
    """Writes the lines of a part of a CoNLL file with the predicted tag after each word."""

    run_dir: Path

    def load(self) -> TextModel:
        return TextModel.load(self.run_dir)

    def run(self, model: TextModel, part: TextPart, out: Path | None, progress: Progress) -> Result:
        assert out is not None
        labels, rows, num_rows = model.metrics["labels"], part.file_part, 0
        lines = LineReader(rows.path, SENTENCE_HINT, copy=rows.copy)
        if rows.offset:
            lines.seek(rows.offset, rows.line)
        with out.open("w", encoding="utf-8") as file:
            for sentences in chunk_rows(islice(read_sentences(lines), rows.num_rows), lambda: lines.num_bytes):
                words = [[line.split()[0] for line, is_word_line in sentence if is_word_line] for sentence in sentences]
                filled = [sentence for sentence in words if sentence]
                scores = iter(model.scores({"words": filled}) if filled else [])
                for sentence, sentence_words in zip(sentences, words, strict=True):
                    tags = iter(predict_tags(labels, next(scores)) if sentence_words else [])
                    for line, is_word_line in sentence:
                        file.write(f"{line} {next(tags)}\n" if is_word_line else f"{line}\n")
                num_rows += len(sentences)
                progress(len(sentences))
        return {"rows": np.array(num_rows)}


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
