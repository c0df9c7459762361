"""Metrics of labeled rows: one class for each label type."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from datasets import Dataset
from seqeval.metrics.sequence_labeling import get_entities
from sklearn.metrics import (
    accuracy_score,
    f1_score,
    mean_absolute_error,
    precision_recall_fscore_support,
    root_mean_squared_error,
)

RECALL_CUTOFFS = (1, 3, 5, 20)


class Metrics(Protocol):
    """The metrics of a label type.

    The primary metric is a function of sums over rows, so that it can be bootstrapped without computing it from
    predictions again: `from_sums(row_statistics(scores, rows).sum(axis=0))` equals `compute(scores, rows)[PRIMARY]`.
    """

    PRIMARY: str

    def compute(self, scores: Any, rows: Dataset) -> dict[str, float]:
        """Return all metrics."""

    def row_statistics(self, scores: Any, rows: Dataset) -> Any:
        """Return the statistics (rows, statistics) whose sums determine the primary metric."""

    def from_sums(self, sums: Any) -> Any:
        """Return the primary metric, given sums (…, statistics)."""


class ClassificationMetrics:
    """Accuracy, and macro averages of precision, recall and F1."""

    PRIMARY = "accuracy"

    def compute(self, scores: Any, rows: Dataset) -> dict[str, float]:
        labels, predictions = column_array(rows, "label"), np.asarray(scores).argmax(axis=-1)
        precision, recall, f1, _ = precision_recall_fscore_support(
            labels, predictions, average="macro", zero_division=0
        )
        return {
            "accuracy": float(accuracy_score(labels, predictions)),
            "macro_f1": float(f1),
            "precision": float(precision),
            "recall": float(recall),
        }

    def row_statistics(self, scores: Any, rows: Dataset) -> Any:
        """Return whether each row is correct, and 1."""
        is_correct = column_array(rows, "label") == np.asarray(scores).argmax(axis=-1)
        return np.stack([is_correct, np.ones(len(is_correct))], axis=1)

    def from_sums(self, sums: Any) -> Any:
        return sums[..., 0] / sums[..., 1]

    def class_counts(self, scores: Any, rows: Dataset) -> Any:
        """Return the numbers (rows, 3 · classes) of correct, predicted and true items, see `macro_f1_from_sums`."""
        classes = np.arange(np.shape(scores)[-1])
        is_label = column_array(rows, "label")[:, None] == classes
        is_predicted = np.asarray(scores).argmax(axis=-1)[:, None] == classes
        return np.concatenate([is_label & is_predicted, is_predicted, is_label], axis=1)

    def macro_f1_from_sums(self, sums: Any) -> Any:
        """Return macro F1, given the sums (…, 3 · classes) of `class_counts`: the mean of classes that occur."""
        counts = split_class_counts(sums)
        is_present = counts[..., 1:].sum(axis=-1) > 0
        return (f1_from_counts(counts) * is_present).sum(axis=-1) / np.maximum(is_present.sum(axis=-1), 1)


class MultiLabelMetrics:
    """Micro and macro F1, and exact match. A class is predicted if its score is above 0 (probability above 0.5)."""

    PRIMARY = "micro_f1"

    def compute(self, scores: Any, rows: Dataset) -> dict[str, float]:
        labels, predictions = column_array(rows, "label"), np.asarray(scores) > 0
        return {
            "micro_f1": float(f1_score(labels, predictions, average="micro", zero_division=0)),
            "macro_f1": float(f1_score(labels, predictions, average="macro", zero_division=0)),
            "exact_match": float(accuracy_score(labels, predictions)),
        }

    def row_statistics(self, scores: Any, rows: Dataset) -> Any:
        """Return the numbers of correct, predicted and true classes of each row."""
        labels, predictions = column_array(rows, "label").astype(bool), np.asarray(scores) > 0
        return np.stack([(labels & predictions).sum(axis=1), predictions.sum(axis=1), labels.sum(axis=1)], axis=1)

    def from_sums(self, sums: Any) -> Any:
        return f1_from_counts(sums)

    def class_counts(self, scores: Any, rows: Dataset) -> Any:
        """Return the numbers (rows, 3 · classes) of correct, predicted and true items, see `macro_f1_from_sums`."""
        labels, predictions = column_array(rows, "label").astype(bool), np.asarray(scores) > 0
        return np.concatenate([labels & predictions, predictions, labels], axis=1)

    def macro_f1_from_sums(self, sums: Any) -> Any:
        """Return macro F1, given the sums (…, 3 · classes) of `class_counts`: the mean of all classes."""
        return f1_from_counts(split_class_counts(sums)).mean(axis=-1)


class RegressionMetrics:
    """Root mean squared error, mean absolute error and Pearson's correlation."""

    PRIMARY = "rmse"

    def compute(self, scores: Any, rows: Dataset) -> dict[str, float]:
        """Return all metrics. Pearson's correlation is 0 if labels or predictions are constant."""
        labels, predictions = column_array(rows, "label"), np.asarray(scores, dtype=np.float64).reshape(-1)
        is_defined = labels.std() > 0 and predictions.std() > 0
        return {
            "rmse": float(root_mean_squared_error(labels, predictions)),
            "mae": float(mean_absolute_error(labels, predictions)),
            "pearson": float(np.corrcoef(labels, predictions)[0, 1]) if is_defined else 0.0,
        }

    def row_statistics(self, scores: Any, rows: Dataset) -> Any:
        """Return the squared error of each row, and 1."""
        error = np.asarray(scores, dtype=np.float64).reshape(-1) - column_array(rows, "label")
        return np.stack([error**2, np.ones(len(error))], axis=1)

    def from_sums(self, sums: Any) -> Any:
        return np.sqrt(sums[..., 0] / sums[..., 1])


class TokenMetrics:
    """Precision, recall and F1 of entities as in seqeval and conlleval, and the accuracy of tags."""

    PRIMARY = "f1"

    def compute(self, scores: Any, rows: Dataset) -> dict[str, float]:
        correct, predicted, true = self.row_statistics(scores, rows).sum(axis=0)
        sentences = predict_tags(scores, rows)
        num_correct_tags = sum(
            a == b for tags, predictions in sentences for a, b in zip(tags, predictions, strict=True)
        )
        return {
            "f1": float(self.from_sums(np.array([correct, predicted, true]))),
            "precision": float(correct / max(predicted, 1)),
            "recall": float(correct / max(true, 1)),
            "word_accuracy": num_correct_tags / sum(len(tags) for tags, _ in sentences),
        }

    def row_statistics(self, scores: Any, rows: Dataset) -> Any:
        """Return the numbers of correct, predicted and true entities of each sentence."""
        entities = [
            (set(get_entities(tags)), set(get_entities(predictions)))
            for tags, predictions in predict_tags(scores, rows)
        ]
        counts = [(len(true & predicted), len(predicted), len(true)) for true, predicted in entities]
        return np.array(counts).reshape(-1, 3)

    def from_sums(self, sums: Any) -> Any:
        return f1_from_counts(sums)


class RankingMetrics:
    """Mean reciprocal rank of the first relevant candidate (MRR), MAP, nDCG and recall@k, as means over queries.

    Among candidates with equal scores, relevant ones rank last, so that constant scores gain nothing. Queries without a
    relevant candidate are excluded from the means and counted.
    """

    PRIMARY = "mrr"

    def compute(self, scores: Any, rows: Dataset) -> dict[str, float]:
        all_ranks = relevant_ranks(scores, rows)
        query_ranks = [ranks for ranks in all_ranks if len(ranks)]
        values = {
            "mrr": [1 / ranks[0] for ranks in query_ranks],
            "map": [np.mean(np.arange(1, len(ranks) + 1) / ranks) for ranks in query_ranks],
            "ndcg": [discounted_gain(ranks) / discounted_gain(np.arange(1, len(ranks) + 1)) for ranks in query_ranks],
            **{f"r@{cutoff}": [np.mean(ranks <= cutoff) for ranks in query_ranks] for cutoff in RECALL_CUTOFFS},
        }
        means = {name: float(np.mean(numbers)) if numbers else 0.0 for name, numbers in values.items()}
        num_excluded = len(all_ranks) - len(query_ranks)
        return {**means, "queries": float(len(query_ranks)), "queries_without_hit": float(num_excluded)}

    def row_statistics(self, scores: Any, rows: Dataset) -> Any:
        """Return the reciprocal rank and 1 for each query with a relevant candidate."""
        return np.array([(1 / ranks[0], 1) for ranks in relevant_ranks(scores, rows) if len(ranks)]).reshape(-1, 2)

    def from_sums(self, sums: Any) -> Any:
        return sums[..., 0] / np.maximum(sums[..., 1], 1)


METRICS: Mapping[str, Metrics] = {
    "classification": ClassificationMetrics(),
    "multi-label": MultiLabelMetrics(),
    "regression": RegressionMetrics(),
    "tokens": TokenMetrics(),
    "ranking": RankingMetrics(),
}


def column_array(rows: Dataset, name: str) -> Any:
    """Return a column as an array, without reading the others."""
    return np.asarray(rows.with_format("numpy", columns=[name])[:][name])


def label_values(rows: Dataset, name: str) -> list[Any]:
    """Return a column as a list of Python values, without reading the others."""
    values: list[Any] = rows.with_format(None, columns=[name])[:][name]
    return values


def f1_from_counts(counts: Any) -> Any:
    """Return F1, given numbers (…, 3) of correct, predicted and true items."""
    correct, predicted, true = np.moveaxis(np.asarray(counts, dtype=np.float64), -1, 0)
    return 2 * correct / np.maximum(predicted + true, 1)


def split_class_counts(sums: Any) -> Any:
    """Return sums (…, 3 · classes) as numbers (…, classes, 3) of correct, predicted and true items."""
    sums = np.asarray(sums, dtype=np.float64)
    return np.moveaxis(sums.reshape(*sums.shape[:-1], 3, -1), -2, -1)


def predict_tags(scores: Any, rows: Dataset) -> list[tuple[list[str], list[str]]]:
    """Return the true and the predicted tags of each sentence. Words without scores, which were truncated, get O."""
    names = rows.features["label"].feature.names
    sentences = []
    for labels, sentence_scores in zip(label_values(rows, "label"), scores, strict=True):
        predictions = np.asarray(sentence_scores)[: len(labels)].argmax(axis=-1)
        tags = [names[index] for index in predictions] + ["O"] * (len(labels) - len(predictions))
        sentences.append(([names[index] for index in labels], tags))
    return sentences


def relevant_ranks(scores: Any, rows: Dataset) -> list[Any]:
    """Return the ranks of the relevant candidates of each query, from 1; queries are sorted by their names."""
    _, query = np.unique(label_values(rows, "query"), return_inverse=True)
    is_relevant = column_array(rows, "label")
    order = np.lexsort((is_relevant, -relevance(scores), query))
    starts = np.flatnonzero(np.diff(query[order], prepend=-1))
    return [np.flatnonzero(labels) + 1 for labels in np.split(is_relevant[order], starts[1:])]


def relevance(scores: Any) -> Any:
    """Return one score per row: for two classes, the difference between relevant and not relevant."""
    scores = np.asarray(scores, dtype=np.float64)
    return scores[:, 1] - scores[:, 0] if scores.ndim == 2 and scores.shape[1] == 2 else scores.reshape(-1)


def discounted_gain(ranks: Any) -> Any:
    """Return the discounted cumulative gain of relevant candidates at these ranks."""
    return (1 / np.log2(1 + ranks)).sum()
