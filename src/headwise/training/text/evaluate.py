"""Evaluation on labelled rows: of all splits at the end of a run, and of a finished run."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from tqdm.auto import tqdm

from headwise.errors import UserError
from headwise.tasks import Examples, Task
from headwise.tasks.baselines import BM25, Baselines, compute_baselines
from headwise.tasks.build_examples import read_sources, source_from_files
from headwise.tasks.labels import encode_labels
from headwise.tasks.load_ranking import load_ranking_split
from headwise.tasks.metrics.calibration import compute_calibration
from headwise.tasks.metrics.classes import compute_confusion_matrix, compute_per_class
from headwise.tasks.metrics.labels import column_array
from headwise.tasks.ranking import CLASSES
from headwise.training.core.data_check import check_unchanged
from headwise.training.core.metrics import Evaluation, SplitResult, build_evaluation
from headwise.training.text.data import fingerprint, load_data
from headwise.training.text.decision import DecisionRule
from headwise.training.text.inference import TextModel
from headwise.training.text.predictions import build_predictions

#: Number of rows in memory at a time.
BATCH_ROWS = 1000


def evaluate(
    run: Path,
    data: Path | None = None,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    delimiter: str | None = None,
    skip_bad_rows: bool = False,
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

    Returns:
        The data, the number of rows, the metrics, the standard error of the primary metric, the baselines and a
        verdict; for classifiers also the results of each class, the confusion matrix and the calibration.

    Raises:
        UserError: there is no such run, its data has changed, or the file does not fit the run.
    """
    trained = TextModel.load(run)
    if data is None:
        own = load_data(trained.config)
        task, split = own.task, "test" if "test" in own.examples.splits else "dev"
        rows = own.examples.splits[split]
        config = trained.config
        paths = (*config.data, *config.train, *config.dev, *config.test, *config.queries, *config.documents)
        check_unchanged(run, split, fingerprint(rows), paths)
        dataset = f"{task.name}, {split}: {own.description}"
        baselines = compute_baselines(task, own.examples)
    else:
        task = Task(name=trained.metrics["task"], label_type=trained.metrics["label_type"], about="")
        dataset, split = data.name, "data"
        if task.label_type == "ranking":
            if columns := [f"--{name}" for name, value in (("text", text), ("pair", pair), ("label", label)) if value]:
                raise UserError(f"{columns[0]} is not for rankings; {data} is a directory of queries and documents")
            given, rows = load_ranking_split(data, delimiter=delimiter, skip_bad_rows=skip_bad_rows)
            dataset += "" if given == "all" else f", {given}"
            ranked = Examples({"train": rows, "data": rows}, CLASSES, "", ordered_by=BM25)
            baselines = compute_baselines(task, ranked, ("data",))
        else:
            rows = load_labelled_file(trained, data, delimiter, skip_bad_rows, text=text, pair=pair, label=label)
            baselines = compute_file_baselines(trained, task, rows)
    rule = DecisionRule.from_metrics(trained.metrics)
    scores = score_rows(trained, rows)
    decision_scores = rule.decision_scores(scores)
    return build_evaluation(
        dataset=dataset,
        num_rows=len(rows),
        primary_metric=task.primary,
        metrics=task.metrics(decision_scores, rows),
        standard_error=task.standard_error(decision_scores, rows),
        baselines=baselines.metrics.get(split),
        baseline_notes=baselines.notes,
        most_frequent_label=trained.metrics.get("most_frequent_label"),
        **compute_details(rule, scores, rows),
        labels=trained.metrics["labels"],
    )


def evaluate_scores(task: Task, examples: Examples, scores: Mapping[str, Any]) -> Evaluation:
    """Evaluate a model on all splits, given its scores. The decision rule is fit on dev.

    Args:
        task: the task.
        examples: its examples.
        scores: the model's scores on each split, as the task's metrics expect them.
    """
    labels, splits = examples.labels, examples.splits
    rule = DecisionRule(task.label_type, labels)
    if "dev" in scores and task.label_type not in ("tokens", "regression"):
        rule = DecisionRule.fit(task.label_type, labels, scores["dev"], column_array(splits["dev"], "label"))
    baselines = compute_baselines(task, examples, tuple(scores))
    results = {}
    for split, split_scores in scores.items():
        rows, decision_scores = splits[split], rule.decision_scores(split_scores)
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


def compute_file_baselines(trained: TextModel, task: Task, rows: Dataset) -> Baselines:
    """Compute the baselines of another file. They are fit on the run's training rows, which must still be there."""
    try:
        examples = load_data(trained.config).examples
    except UserError as error:
        return Baselines(notes=[f"no baselines: the training data cannot be read ({error})"])
    if fingerprint(examples.splits["train"]) != trained.metrics.get("train_fingerprint"):
        return Baselines(notes=["no baselines: the training data has changed since training"])
    return compute_baselines(task, replace(examples, splits={**examples.splits, "data": rows}), ("data",))


def score_rows(trained: TextModel, rows: Dataset) -> Any:
    """Compute the scores of a split as the task's metrics expect them."""
    scores: list[Any] = []
    batches = tqdm(
        rows.iter(BATCH_ROWS),
        total=-(-len(rows) // BATCH_ROWS),
        desc="evaluating",
        unit="thousand",
        leave=False,
        delay=1,
    )
    for batch in batches:
        scores += trained.scores({name: x for name, x in batch.items() if name != "label"})
    return scores if trained.encoder.label_type == "tokens" else np.stack(scores).astype(np.float64)


def load_labelled_file(
    trained: TextModel, data: Path, delimiter: str | None, skip_bad_rows: bool, **names: str | None
) -> Dataset:
    """Load a labelled file, with the numbers that its labels have in the run.

    Raises:
        UserError: the file is invalid, or has a label that the model does not know.
    """
    label_type = trained.metrics["label_type"]
    source = source_from_files([data], label_type, delimiter)
    columns = trained.choose_columns(source.head(), labelled=True, **names)
    rows = read_sources(
        {"all": source},
        label_type,
        text=columns.text,
        pair=columns.pair,
        label=columns.label,
        skip_bad_rows=skip_bad_rows,
    )["all"]
    return rows.data if label_type == "regression" else encode_labels("all", rows, trained.metrics["labels"])
