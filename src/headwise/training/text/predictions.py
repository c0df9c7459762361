"""What a model said about each row, as metrics take it and as a file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset

from headwise.tasks import Examples, Task
from headwise.tasks.metrics.labels import label_values


def scores_of(task: Task, prediction: Any, rows: Dataset, encoded: Dataset, labels: Sequence[str]) -> Any:
    """A Trainer's prediction as the task's metrics take it: (rows, classes), or for tokens (words, classes) a row.

    Args:
        task: what was predicted.
        prediction: the Trainer's, for all rows in order.
        rows: a split.
        encoded: the same rows as the model took them.
        labels: the classes.
    """
    scores = prediction.predictions
    if task.label_type != "tokens":
        return np.asarray(scores, dtype=np.float64)
    return [
        for_words(row[known != -100], places, len(truth), labels)
        for row, known, places, truth in zip(
            scores, prediction.label_ids, label_values(encoded, "places"), label_values(rows, "label"), strict=True
        )
    ]


def for_words(scores: Any, places: Sequence[int], words: int, labels: Sequence[str]) -> Any:
    """The scores of all words of a sentence; those that the model did not see count as O.

    Args:
        scores: (seen words, classes).
        places: which words these are.
        words: how many there are.
        labels: the classes.
    """
    found = np.zeros((words, scores.shape[1]))
    found[:, labels.index("O") if "O" in labels else 0] = 1.0
    found[list(places)] = scores
    return found


def probabilities(label_type: str, scores: Any) -> Any:
    """Scores as probabilities: of the classes together, of each label by itself, or, of ratings, as they are."""
    if label_type == "regression":
        return scores
    if label_type == "multi-label":
        return 1.0 / (1.0 + np.exp(-scores))
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def write_predictions(path: Path, scores: Mapping[str, Any], examples: Examples) -> None:
    """`predictions.parquet`: for each row of dev and test its split, number, label and the model's scores."""
    tables = []
    for split, found in scores.items():
        rows = examples.splits[split]
        columns: dict[str, Any] = {
            "split": [split] * len(rows),
            "row": label_values(rows, "row"),
            "label": label_values(rows, "label"),
        }
        for name in ("query", "document"):
            if name in rows.column_names:
                columns[name] = label_values(rows, name)
        columns["scores"] = [np.asarray(row).tolist() for row in found]
        tables.append(pa.table(columns))
    if tables:
        pq.write_table(pa.concat_tables(tables), path)
