"""Baselines that do not read the text: the majority label, the mean rating, and the order of candidates."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from datasets import Dataset

from headwise.tasks.metrics.labels import column_array
from headwise.tasks.task import Examples, Task


def compute_baselines(task: Task, examples: Examples, split: str) -> dict[str, dict[str, float]]:
    """Compute the metrics of each baseline on a split.

    Example:
        >>> from datasets import Dataset
        >>> rows = Dataset.from_dict({"label": [1, 1, 0]})
        >>> task = Task(name="reviews", label_type="classification", about="")
        >>> examples = Examples({"train": rows, "test": rows}, ("bad", "good"), "")
        >>> baselines = compute_baselines(task, examples, "test")
        >>> {name: round(metrics["accuracy"], 2) for name, metrics in baselines.items()}
        {'most frequent label': 0.67}
    """
    rows = examples.splits[split]
    return {name: task.metrics(scores, rows) for name, scores in iterate_scores(task, examples, rows)}


def iterate_scores(task: Task, examples: Examples, rows: Dataset) -> Iterator[tuple[str, Any]]:
    """Iterate over the names and scores of the baselines; token tasks have none."""
    num_rows, train = len(rows), examples.splits["train"]
    if task.label_type == "classification":
        counts = np.bincount(column_array(train, "label"), minlength=len(examples.labels))
        yield "most frequent label", np.broadcast_to(counts, (num_rows, len(counts)))
    elif task.label_type == "multi-label":
        scores = column_array(train, "label").mean(axis=0) - 0.5
        yield "labels of most rows", np.broadcast_to(scores, (num_rows, len(scores)))
    elif task.label_type == "regression":
        yield "mean", np.full(num_rows, column_array(train, "label").mean())
    elif task.label_type == "ranking" and examples.ordered_by:
        yield examples.ordered_by, -np.arange(num_rows)
