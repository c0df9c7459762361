"""A rating a row: root mean squared error, mean absolute error and Pearson's correlation."""

from typing import Any

import numpy as np
from datasets import Dataset
from sklearn.metrics import mean_absolute_error, root_mean_squared_error

from headwise.tasks.metrics.rows import column_array

PRIMARY = "rmse"


def compute(scores: Any, rows: Dataset) -> dict[str, float]:
    """Pearson's correlation is 0 where ratings or guesses are all the same."""
    truth, guess = column_array(rows, "label"), np.asarray(scores, dtype=np.float64).reshape(-1)
    varied = truth.std() > 0 and guess.std() > 0
    return {
        "rmse": float(root_mean_squared_error(truth, guess)),
        "mae": float(mean_absolute_error(truth, guess)),
        "pearson": float(np.corrcoef(truth, guess)[0, 1]) if varied else 0.0,
    }


def row_statistics(scores: Any, rows: Dataset) -> Any:
    """The squared error and one, for each row."""
    error = np.asarray(scores, dtype=np.float64).reshape(-1) - column_array(rows, "label")
    return np.stack([error**2, np.ones(len(error))], axis=1)


def from_sums(sums: Any) -> Any:
    return np.sqrt(sums[..., 0] / sums[..., 1])
