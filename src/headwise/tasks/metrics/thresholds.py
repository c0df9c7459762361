"""Decision thresholds of multi-label tasks, chosen on dev."""

from typing import Any

import numpy as np

from headwise.tasks.metrics.labels import f1_from_counts

DEFAULT = 0.5
#: A class with fewer positive rows gets the threshold that all classes share. With fewer positive labels in total, the
#: threshold stays 0.5.
MIN_POSITIVE = 10


def tune_thresholds(probabilities: Any, labels: Any) -> Any:
    """Return the probability above which each class is predicted, such that micro F1 is highest.

    Two choices are compared: one threshold for all classes, with the best micro F1; and for each class with at least
    `MIN_POSITIVE` positive rows the one with its best F1. One threshold is kept unless the others are better.
    Micro F1 on these rows is never below that of a threshold of 0.5.

    Args:
        probabilities: (rows, classes).
        labels: (rows, classes), 0 or 1.

    Returns:
        (classes,).

    Example:
        >>> tune_thresholds(np.array([[0.1], [0.3]] * 10), np.array([[0], [1]] * 10))
        array([0.2])
    """
    probabilities, labels = np.asarray(probabilities, dtype=np.float64), np.asarray(labels).astype(bool)
    if labels.sum() < MIN_POSITIVE:
        return np.full(labels.shape[1], DEFAULT)
    shared = np.full(labels.shape[1], best_threshold(probabilities.ravel(), labels.ravel()))
    own = shared.copy()
    for column in np.flatnonzero(labels.sum(axis=0) >= MIN_POSITIVE):
        own[column] = best_threshold(probabilities[:, column], labels[:, column])
    is_better = micro_f1(probabilities > own, labels) > micro_f1(probabilities > shared, labels)
    return own if is_better else shared


def best_threshold(probabilities: Any, labels: Any) -> float:
    """Return the threshold with the highest F1; of equal ones, the one that is closest to 0.5.

    Args:
        probabilities: (items,).
        labels: (items,), whether each item is positive.
    """
    order = np.argsort(-probabilities, kind="stable")
    sorted_probabilities, num_correct = probabilities[order], np.cumsum(labels[order])
    is_boundary = np.flatnonzero(np.diff(sorted_probabilities) < 0)  # between different probabilities
    thresholds = (sorted_probabilities[is_boundary] + sorted_probabilities[is_boundary + 1]) / 2
    counts = np.stack(
        [num_correct[is_boundary], is_boundary + 1, np.full(len(is_boundary), labels.sum())], axis=1
    )  # correct, predicted and true items
    default = probabilities > DEFAULT
    counts = np.concatenate([counts, [[(default & labels).sum(), default.sum(), labels.sum()]]])
    thresholds = np.append(thresholds, DEFAULT)
    f1 = f1_from_counts(counts)
    best = np.flatnonzero(f1 >= f1.max() - 1e-12)
    return float(thresholds[best[np.abs(thresholds[best] - DEFAULT).argmin()]])


def micro_f1(predictions: Any, labels: Any) -> float:
    """Return micro F1 of predictions (rows, classes)."""
    return float(f1_from_counts([(predictions & labels).sum(), predictions.sum(), labels.sum()]))
