"""Calibration: whether predictions with a probability of 0.8 are right in 80% of the cases.

The expected calibration error and temperature scaling follow Guo et al. 2017, On Calibration of Modern Neural Networks
(https://arxiv.org/abs/1706.04599).
"""

from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax, softmax

NUM_BINS = 15
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0


def to_probabilities(label_type: str, scores: Any, temperature: float = 1.0) -> Any:
    """Apply the softmax, for multi-label tasks the sigmoid; scores of regression are returned unchanged."""
    if label_type == "regression":
        return scores
    scores = np.asarray(scores, dtype=np.float64) / temperature
    return expit(scores) if label_type == "multi-label" else softmax(scores, axis=-1)


def compute_calibration(label_type: str, probabilities: Any, labels: Any) -> dict[str, Any]:
    """Compute the expected calibration error and the bins of a reliability plot.

    The confidence of a class prediction is the probability of the predicted class. For multi-label rows, the
    probability of each class is compared with how often the class is right.

    Args:
        label_type: "classification" or "multi-label".
        probabilities: (rows, classes).
        labels: (rows,), or (rows, classes) for multi-label rows.

    Returns:
        `ece`, and `bins`: for each bin that is not empty its bounds, its number of predictions, their mean confidence
        and their accuracy.

    Example:
        >>> calibration = compute_calibration("classification", [[0.9, 0.1], [0.9, 0.1]], [0, 1])
        >>> round(calibration["ece"], 3)  # half of the predictions with a confidence of 0.9 are right
        0.4
    """
    probabilities, labels = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    if label_type == "multi-label":
        confidence, is_correct = probabilities.ravel(), labels.ravel().astype(bool)
    else:
        confidence, is_correct = probabilities.max(axis=-1), probabilities.argmax(axis=-1) == labels
    bin_of = np.minimum((confidence * NUM_BINS).astype(int), NUM_BINS - 1)
    bins = []
    for number in np.unique(bin_of):
        in_bin = bin_of == number
        bins.append(
            {
                "low": number / NUM_BINS,
                "high": (number + 1) / NUM_BINS,
                "count": int(in_bin.sum()),
                "confidence": float(confidence[in_bin].mean()),
                "accuracy": float(is_correct[in_bin].mean()),
            }
        )
    error = sum(b["count"] * abs(b["accuracy"] - b["confidence"]) for b in bins) / max(len(confidence), 1)
    return {"ece": float(error), "bins": bins}


def fit_temperature(scores: Any, labels: Any) -> float:
    """Return the temperature that makes softmax(scores / temperature) most probable.

    The logarithm of the temperature has a standard normal distribution before the labels are seen. Without it, few rows
    would have extreme temperatures, and rows without a mistake none.

    Args:
        scores: (rows, classes).
        labels: (rows,).
    """
    scores, labels = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    rows = np.arange(len(labels))

    def negative_log_probability(log_temperature: float) -> float:
        log_probabilities = log_softmax(scores / np.exp(log_temperature), axis=-1)[rows, labels]
        return float(log_temperature**2 / 2 - log_probabilities.sum())

    bounds = (np.log(MIN_TEMPERATURE), np.log(MAX_TEMPERATURE))
    return float(np.exp(minimize_scalar(negative_log_probability, bounds=bounds, method="bounded").x))
