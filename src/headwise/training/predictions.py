"""What a model said about each row, as metrics take it and as a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset

from headwise.tasks import Examples, Task


def scores_of(task: Task, prediction: Any, rows: Dataset, labels: tuple[str, ...]) -> Any:
    """A Trainer's prediction as the task's metrics take it: (rows, classes), or for tokens (words, classes) a row."""
    scores = prediction.predictions
    if task.kind != "tokens":
        return np.asarray(scores, dtype=np.float64)
    return [
        for_words(row[known != -100], len(words), labels)
        for row, known, words in zip(scores, prediction.label_ids, rows["words"], strict=True)
    ]


def for_words(scores: Any, words: int, labels: tuple[str, ...]) -> Any:
    """The scores of all words of a sentence; those that were cut off count as O."""
    missing = np.zeros((words - len(scores), scores.shape[1]))
    missing[:, labels.index("O") if "O" in labels else 0] = 1.0
    return np.concatenate([scores, missing])


def probabilities(kind: str, scores: Any) -> Any:
    """Scores as probabilities: of the classes together, of each label by itself, or, of ratings, as they are."""
    if kind == "regression":
        return scores
    if kind == "multi-label":
        return 1.0 / (1.0 + np.exp(-scores))
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def write_predictions(path: Path, task: Task, scores: Mapping[str, Any], examples: Examples) -> None:
    """`predictions.parquet`: for each row of dev and test its split, number, label and the model's scores."""
    tables = []
    for split, found in scores.items():
        rows = examples.splits[split]
        columns: dict[str, Any] = {"split": [split] * len(rows), "row": rows["row"], "label": list(rows["label"])}
        for name in ("query", "document"):
            if name in rows.column_names:
                columns[name] = rows[name]
        columns["scores"] = [np.asarray(row).tolist() for row in found]
        tables.append(pa.table(columns))
    if tables:
        pq.write_table(pa.concat_tables(tables), path)
