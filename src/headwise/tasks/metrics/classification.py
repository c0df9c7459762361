"""One class a row: accuracy, and precision, recall and F1, each the mean over classes."""

from typing import Any

import numpy as np
from datasets import Dataset
from sklearn.metrics import accuracy_score, precision_recall_fscore_support

from headwise.tasks.metrics.rows import column_array

PRIMARY = "accuracy"


def compute(scores: Any, rows: Dataset) -> dict[str, float]:
    truth, guess = column_array(rows, "label"), np.asarray(scores).argmax(axis=-1)
    precision, recall, f1, _ = precision_recall_fscore_support(truth, guess, average="macro", zero_division=0)
    return {
        "accuracy": float(accuracy_score(truth, guess)),
        "macro_f1": float(f1),
        "precision": float(precision),
        "recall": float(recall),
    }


def row_statistics(scores: Any, rows: Dataset) -> Any:
    """Right or not, and one, for each row."""
    right = column_array(rows, "label") == np.asarray(scores).argmax(axis=-1)
    return np.stack([right, np.ones(len(right))], axis=1)


def from_sums(sums: Any) -> Any:
    return sums[..., 0] / sums[..., 1]
