"""Any number of classes a row; a class is guessed where its score is above 0 (a probability above one half)."""

from typing import Any

import numpy as np
from datasets import Dataset
from sklearn.metrics import accuracy_score, f1_score

from headwise.tasks.metrics.rows import column

PRIMARY = "micro_f1"


def figures(scores: Any, rows: Dataset) -> dict[str, float]:
    truth, guess = column(rows, "label"), np.asarray(scores) > 0
    return {
        "micro_f1": float(f1_score(truth, guess, average="micro", zero_division=0)),
        "macro_f1": float(f1_score(truth, guess, average="macro", zero_division=0)),
        "exact_match": float(accuracy_score(truth, guess)),
    }


def parts(scores: Any, rows: Dataset) -> Any:
    """For each row: classes guessed rightly, guessed, and true."""
    truth, guess = column(rows, "label").astype(bool), np.asarray(scores) > 0
    return np.stack([(truth & guess).sum(axis=1), guess.sum(axis=1), truth.sum(axis=1)], axis=1)


def primary(sums: Any) -> Any:
    right, guessed, true = np.moveaxis(np.asarray(sums, dtype=np.float64), -1, 0)
    return 2 * right / np.maximum(guessed + true, 1)
