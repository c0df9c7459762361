"""Evaluation on labelled rows: of all splits at the end of a run, and of a finished run."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from datasets import Dataset

from headwise.errors import UserError
from headwise.tasks import Examples, Task
from headwise.tasks.baselines import BM25, Baselines, compute_baselines
from headwise.tasks.build_examples import count_overlap, read_sources, source_from_files
from headwise.tasks.labels import encode_labels
from headwise.tasks.load_ranking import load_ranking_split
from headwise.tasks.metrics.calibration import compute_calibration
from headwise.tasks.metrics.classes import compute_confusion_matrix, compute_per_class
from headwise.tasks.metrics.labels import column_array, label_values
from headwise.tasks.ranking import CLASSES
from headwise.training.core import run_dir
from headwise.training.core.data_check import check_unchanged
from headwise.training.core.distributed import main_process_first
from headwise.training.core.metrics import Evaluation, SplitResult, build_evaluation
from headwise.training.core.pretrained import is_scheme
from headwise.training.jobs import PART_ROWS, JobOptions, Progress, Result, RowRange, open_job, run_job
from headwise.training.jobs.job_dir import describe_inputs
from headwise.training.text.config import TextConfig
from headwise.training.text.data import TextData, fingerprint, load_data
from headwise.training.text.decision import DecisionRule
from headwise.training.text.inference import TextModel, choose_text_columns, read_text_metrics
from headwise.training.text.predictions import build_predictions

#: Number of rows in memory at a time.
BATCH_ROWS = 1000
DEFAULT_OPTIONS = JobOptions()


def evaluate(
    run: Path,
    data: Path | None = None,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    delimiter: str | None = None,
    skip_bad_rows: bool = False,
    out: Path | None = None,
    options: JobOptions = DEFAULT_OPTIONS,
) -> dict[str, Any]:
    """Evaluate a run's model on its test split (dev if there is none), or on another labelled file.

    Args:
        run: the directory of a finished run.
        data: a labelled file; for a ranking model, a directory in the layout of BEIR.
        text: its text column; by default the run's, or detected.
        pair: its second text column.
        label: its label column.
        delimiter: the delimiter of its columns, for CSV and TSV; detected by default.
        skip_bad_rows: skip rows without a text or with an invalid label; by default they are an error.
        out: the file of the metrics. The scores of finished parts are stored next to it.
        options: the processes or the cluster, and whether an unfinished evaluation is resumed.

    Returns:
        The data, the number of rows, the metrics, the standard error of the primary metric, the baselines and a
        verdict; for classifiers also the results of each class, the confusion matrix and the calibration.

    Raises:
        UserError: there is no such run, its data has changed, or the file does not fit the run.
    """
    metrics, config = read_text_metrics(run), TextConfig.load(run / run_dir.CONFIG)
    rows_of_run = EvaluatedRows(run, data, delimiter, skip_bad_rows, text=text, pair=pair, label=label)
    if data is None:
        own = main_process_first(partial(load_data, config))
        task, split = own.task, evaluated_split(own)
        rows = own.examples.splits[split]
        paths = (*config.data, *config.train, *config.dev, *config.test, *config.queries, *config.documents)
        check_unchanged(run, split, fingerprint(rows), paths)
        dataset = f"{task.name}, {split}: {own.description}"
        baselines = compute_baselines(task, own.examples)
    else:
        task = Task(name=metrics["task"], label_type=metrics["label_type"], about="")
        columns = [f"--{name}" for name, value in (("text", text), ("pair", pair), ("label", label)) if value]
        if task.label_type == "ranking" and columns:
            raise UserError(f"{columns[0]} is not for rankings; {data} is a directory of queries and documents")
        rows = main_process_first(rows_of_run.load_rows)
        dataset, split = data.name, "data"
        if task.label_type == "ranking":
            ranked = Examples({"train": rows, "data": rows}, CLASSES, "", ordered_by=BM25)
            baselines = compute_baselines(task, ranked, ("data",))
            baselines = replace(baselines, notes=[*baselines.notes, *note_known_queries(config, rows)])
        else:
            baselines = compute_file_baselines(config, metrics, task, rows)
    rule, part_rows = DecisionRule.from_metrics(metrics), options.part_rows or PART_ROWS
    plan = {**describe_inputs(run, []), "rows": fingerprint(rows), "part_rows": part_rows}
    with open_job(out, plan, options) as job_dir:
        parts = RowRange.divide(len(rows), part_rows)
        results = run_job(ScoreTask(rows_of_run), parts, options, job_dir, verb="evaluating", unit="rows")
        scores = join_scores(results)
    decision_scores = rule.decision_scores(scores)
    return build_evaluation(
        dataset=dataset,
        num_rows=len(rows),
        primary_metric=task.primary,
        metrics=task.metrics(decision_scores, rows),
        standard_error=task.standard_error(decision_scores, rows),
        baselines=baselines.metrics.get(split),
        baseline_notes=baselines.notes,
        run=metrics,
        verdict_standard_error=compute_verdict_error(metrics.get("verdict_metric"), task, decision_scores, rows),
        from_scratch=is_scheme(config.model),
        **compute_details(rule, scores, rows),
        labels=metrics["labels"],
    )


def compute_verdict_error(metric: str | None, task: Task, scores: Any, rows: Dataset) -> float | None:
    """Return the standard error of the metric that the verdict compares instead of the primary one, if any."""
    return None if metric is None else task.standard_error(scores, rows, metric=metric)


def evaluate_scores(
    task: Task, examples: Examples, scores: Mapping[str, Any], *, dev_metric: str | None = None
) -> Evaluation:
    """Evaluate a model on all splits, given its scores. The decision rule is fit on dev.

    Args:
        task: the task.
        examples: its examples.
        scores: the model's scores on each split, as the task's metrics expect them.
        dev_metric: the metric that selected the epoch. If it is macro_f1, the verdict compares it, too.
    """
    labels, splits = examples.labels, examples.splits
    rule = DecisionRule(task.label_type, labels)
    if "dev" in scores and task.label_type not in ("tokens", "regression"):
        rule = DecisionRule.fit(task.label_type, labels, scores["dev"], column_array(splits["dev"], "label"))
    baselines = compute_baselines(task, examples, tuple(scores))
    verdict_metric = "macro_f1" if dev_metric == "macro_f1" else None
    results, verdict_errors = {}, {}
    for split, split_scores in scores.items():
        rows, decision_scores = splits[split], rule.decision_scores(split_scores)
        verdict_errors[split] = compute_verdict_error(verdict_metric, task, decision_scores, rows)
        results[split] = SplitResult(
            metrics=task.metrics(decision_scores, rows),
            standard_error=task.standard_error(decision_scores, rows),
            predictions=build_predictions(split, decision_scores, rows),
            fingerprint=fingerprint(rows),
            baselines=baselines.metrics[split],
            details=compute_details(rule, split_scores, rows),
        )
    extras: dict[str, Any] = {
        "labels": list(labels),
        "decision": rule.to_dict(),
        "baseline_notes": baselines.notes,
        "train_fingerprint": fingerprint(splits["train"]),
    }
    if verdict_metric is not None:
        extras |= {"verdict_metric": verdict_metric, "verdict_standard_error": verdict_errors}
    if task.label_type == "classification":
        extras["most_frequent_label"] = labels[int(np.bincount(column_array(splits["train"], "label")).argmax())]
    return Evaluation(results, extras)


def compute_details(rule: DecisionRule, scores: Any, rows: Dataset) -> dict[str, Any]:
    """Compute the results of each class, the confusion matrix and the calibration, those that the label type has.

    Args:
        rule: the decision rule.
        scores: the model's scores.
        rows: the rows, in the order of the scores.
    """
    label_type, labels = rule.label_type, rule.labels
    details: dict[str, Any] = {}
    if label_type in ("classification", "multi-label", "tokens"):
        details["per_class"] = compute_per_class(label_type, rule.decision_scores(scores), rows, labels)
    if label_type == "classification":
        details["confusion_matrix"] = compute_confusion_matrix(scores, rows, len(labels))
    if label_type in ("classification", "multi-label"):
        details["calibration"] = compute_calibration(
            label_type, rule.probabilities(scores), column_array(rows, "label")
        )
    return details


def compute_file_baselines(config: TextConfig, metrics: Mapping[str, Any], task: Task, rows: Dataset) -> Baselines:
    """Compute the baselines of another file. They are fit on the run's training rows, which must still be there."""
    try:
        with without_warnings():
            examples = load_data(config).examples
    except UserError as error:
        return Baselines(notes=[f"no baselines: the training data cannot be read ({error})"])
    if fingerprint(examples.splits["train"]) != metrics.get("train_fingerprint"):
        return Baselines(notes=["no baselines: the training data has changed since training"])
    baselines = compute_baselines(task, replace(examples, splits={**examples.splits, "data": rows}), ("data",))
    if overlap := count_overlap(rows, examples.splits["train"]):
        note = f"the model was trained on {overlap:,} of these {len(rows):,} texts, so its metrics are too high"
        baselines = replace(baselines, notes=[*baselines.notes, note])
    return baselines


def note_known_queries(config: TextConfig, rows: Dataset) -> list[str]:
    """Return a note on the queries that the model was trained on, if the training data can be read."""
    try:
        with without_warnings():
            train = load_data(config).examples.splits["train"]
    except UserError:
        return []
    text_of = dict(zip(label_values(rows, "query"), label_values(rows, "text"), strict=True))
    trained = set(label_values(train, "text"))
    known = sum(text in trained for text in text_of.values())
    note = f"the model was trained on {known:,} of these {len(text_of):,} queries, so its metrics are too high"
    return [note] if known else []


def evaluated_split(data: TextData) -> str:
    """Return the split of a run's own data that is evaluated."""
    return "test" if "test" in data.examples.splits else "dev"


class RowsOfRun(Protocol):
    """Rows that the model of a run scores."""

    @property
    def run(self) -> Path: ...

    def load_rows(self) -> Dataset: ...


@dataclass(frozen=True)
class EvaluatedRows:
    """The rows on which a run is evaluated. The arguments are those of `evaluate`."""

    run: Path
    data: Path | None
    delimiter: str | None
    skip_bad_rows: bool
    text: str | None = None
    pair: str | None = None
    label: str | None = None

    def load_rows(self) -> Dataset:
        """Load the rows, with the numbers that their labels have in the run.

        Raises:
            UserError: the data is invalid, or has a label that the model does not know.
        """
        config = TextConfig.load(self.run / run_dir.CONFIG)
        if self.data is None:
            own = load_data(config)
            return own.examples.splits[evaluated_split(own)]
        metrics = read_text_metrics(self.run)
        label_type = metrics["label_type"]
        if label_type == "ranking":
            return load_ranking_split(self.data, delimiter=self.delimiter, skip_bad_rows=self.skip_bad_rows)
        source = source_from_files([self.data], label_type, self.delimiter)
        has_pair = metrics["inputs"]["pair"] is not None
        columns = choose_text_columns(
            config, has_pair, source.head(), labelled=True, text=self.text, pair=self.pair, label=self.label
        )
        rows = read_sources(
            {"all": source},
            label_type,
            text=columns.text,
            pair=columns.pair,
            label=columns.label,
            skip_bad_rows=self.skip_bad_rows,
        )["all"]
        if label_type == "regression":
            return rows.data
        return encode_labels("all", rows, metrics["labels"], skip_unknown=self.skip_bad_rows)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Load data again, without the warnings of the first time."""
    task_logger = logging.getLogger("headwise.tasks")
    level = task_logger.level
    task_logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        task_logger.setLevel(level)


@dataclass(frozen=True)
class ScoreTask:
    """Computes the scores of a run's model."""

    evaluated: RowsOfRun

    def load(self) -> tuple[TextModel, Dataset]:
        with without_warnings():
            rows = self.evaluated.load_rows()
        return TextModel.load(self.evaluated.run), rows

    def run(self, loaded: tuple[TextModel, Dataset], part: RowRange, out: Path | None, progress: Progress) -> Result:
        model, rows = loaded
        scores: list[Any] = []
        for batch in rows.select(range(part.start, part.stop)).iter(BATCH_ROWS):
            batch_scores = model.scores({name: x for name, x in batch.items() if name != "label"})
            scores += batch_scores
            progress(len(batch_scores))
        if model.encoder.label_type != "tokens":
            return {"scores": np.stack(scores).astype(np.float64)}
        return {"word_scores": np.concatenate(scores), "num_words": np.array([len(row) for row in scores])}


def join_scores(results: Iterable[Result]) -> Any:
    """Return the scores of all parts as the task's metrics expect them."""
    arrays, words = [], []
    for result in results:
        if "scores" in result:
            arrays.append(result["scores"])
        else:
            words += np.split(result["word_scores"], np.cumsum(result["num_words"])[:-1])
    return np.concatenate(arrays) if arrays else words
