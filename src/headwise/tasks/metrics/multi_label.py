"""Any number of classes a row; a class is guessed where its score is above 0 (a probability above one half)."""

from typing import Any

import numpy as np
from datasets import Dataset
from sklearn.metrics import accuracy_score, f1_score

from headwise.tasks.metrics.rows import column_array

PRIMARY = "micro_f1"


def compute(scores: Any, rows: Dataset) -> dict[str, float]:
    truth, guess = column_array(rows, "label"), np.asarray(scores) > 0
    return {
        "micro_f1": float(f1_score(truth, guess, average="micro", zero_division=0)),
        "macro_f1": float(f1_score(truth, guess, average="macro", zero_division=0)),
        "exact_match": float(accuracy_score(truth, guess)),
    }


def row_statistics(scores: Any, rows: Dataset) -> Any:
    """For each row: classes guessed rightly, guessed, and true."""
    truth, guess = column_array(rows, "label").astype(bool), np.asarray(scores) > 0
    return np.stack([(truth & guess).sum(axis=1), guess.sum(axis=1), truth.sum(axis=1)], axis=1)


def from_sums(sums: Any) -> Any:
    right, guessed, true = np.moveaxis(np.asarray(sums, dtype=np.float64), -1, 0)
    return 2 * right / np.maximum(guessed + true, 1)
