"""Precision, recall and F1 of each class, and the confusion matrix."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import Dataset
from seqeval.metrics.sequence_labeling import get_entities
from sklearn.metrics import confusion_matrix

from headwise.tasks.metrics.labels import column_array, predict_tags

#: Precision, recall, F1 and the number of rows (`support`) of each class.
PerClass = dict[str, dict[str, float]]


def compute_per_class(label_type: str, scores: Any, rows: Dataset, labels: Sequence[str]) -> PerClass:
    """Compute precision, recall, F1 and support of each class; for tags, of each type of entity.

    Args:
        label_type: The type of the labels; regression and ranking have no classes.
        scores: The scores, as the metrics of the label type expect them.
        rows: The rows, in the order of the scores.
        labels: The class names.

    Example:
        >>> rows = Dataset.from_dict({"label": [0, 0, 1]})
        >>> compute_per_class("classification", [[1, 0], [0, 1], [0, 1]], rows, ["bad", "good"])["bad"]
        {'precision': 1.0, 'recall': 0.5, 'f1': 0.6666666666666666, 'support': 2}
    """
    if label_type == "tokens":
        return count_entities(scores, rows)
    if label_type == "classification":
        one_hot = np.eye(len(labels), dtype=bool)
        true = one_hot[column_array(rows, "label")]
        predicted = one_hot[np.asarray(scores).argmax(axis=-1)]
    elif label_type == "multi-label":
        true, predicted = column_array(rows, "label").astype(bool), np.asarray(scores) > 0
    else:
        return {}
    counts = np.stack([(true & predicted).sum(axis=0), predicted.sum(axis=0), true.sum(axis=0)], axis=1)
    return {label: from_counts(*count) for label, count in zip(labels, counts.tolist(), strict=True)}


def count_entities(scores: Any, rows: Dataset) -> PerClass:
    """Compute precision, recall, F1 and support of each type of entity."""
    counts: dict[str, list[int]] = {}
    for tags, predictions in predict_tags(scores, rows):
        true, predicted = set(get_entities(tags)), set(get_entities(predictions))
        for column, entities in enumerate((true & predicted, predicted, true)):
            for entity_type, *_ in entities:
                counts.setdefault(entity_type, [0, 0, 0])[column] += 1
    return {entity_type: from_counts(*counts[entity_type]) for entity_type in sorted(counts)}


def from_counts(correct: int, predicted: int, true: int) -> dict[str, float]:
    """Return precision, recall, F1 and support, given numbers of correct, predicted and true items."""
    return {
        "precision": correct / max(predicted, 1),
        "recall": correct / max(true, 1),
        "f1": 2 * correct / max(predicted + true, 1),
        "support": true,
    }


def compute_confusion_matrix(scores: Any, rows: Dataset, num_classes: int) -> list[list[int]]:
    """Return the numbers of rows by true class (rows of the matrix) and predicted class (columns).

    >>> compute_confusion_matrix([[1, 0], [0, 1], [0, 1]], Dataset.from_dict({"label": [0, 0, 1]}), 2)
    [[1, 1], [0, 1]]
    """
    predictions = np.asarray(scores).argmax(axis=-1)
    matrix = confusion_matrix(column_array(rows, "label"), predictions, labels=range(num_classes))
    counts: list[list[int]] = matrix.tolist()
    return counts
