"""What a model should beat: guesses that read no text, and the order that candidates came in."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from datasets import Dataset

from headwise.tasks.metrics.rows import column_array
from headwise.tasks.task import Examples, Task


def compute_baselines(task: Task, examples: Examples, split: str) -> dict[str, dict[str, float]]:
    """The figures of each rival on a split, by its name.

    Example:
        >>> from datasets import Dataset
        >>> rows = Dataset.from_dict({"label": [1, 1, 0]})
        >>> task = Task(name="mine", label_type="classification", about="")
        >>> found = rivals(task, Examples({"train": rows, "test": rows}, ("bad", "good"), ""), "test")
        >>> {name: round(figures["accuracy"], 2) for name, figures in found.items()}
        {'most frequent label': 0.67}
    """
    rows = examples.splits[split]
    return {name: task.metrics(scores, rows) for name, scores in guesses(task, examples, rows)}


def guesses(task: Task, examples: Examples, rows: Dataset) -> Iterator[tuple[str, Any]]:
    count, train = len(rows), examples.splits["train"]
    if task.label_type == "classification":
        often = np.bincount(column_array(train, "label"), minlength=len(examples.labels))
        yield "most frequent label", np.broadcast_to(often, (count, len(often)))
    elif task.label_type == "multi-label":
        often = column_array(train, "label").mean(axis=0) - 0.5
        yield "labels of most rows", np.broadcast_to(often, (count, len(often)))
    elif task.label_type == "regression":
        yield "mean", np.full(count, column_array(train, "label").mean())
    elif task.label_type == "ranking" and examples.ordered_by:
        yield examples.ordered_by, -np.arange(count)
