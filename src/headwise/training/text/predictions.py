"""Scores of models as metrics expect them, and as the rows of `predictions.parquet`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset

from headwise.tasks import Task
from headwise.tasks.metrics.labels import label_values
from headwise.training.text.encoding import IGNORED_LABEL


def get_scores(task: Task, output: Any, rows: Dataset, encoded: Dataset, labels: Sequence[str]) -> Any:
    """Convert the output of `Trainer.predict` to the scores that the task's metrics expect.

    Args:
        task: the task.
        output: the Trainer's output for all rows, in order.
        rows: the split.
        encoded: the tokenized split.
        labels: the names of the classes.

    Returns:
        An array of shape (rows, classes); for tagging a list with an array of shape (words, classes) per row.
    """
    scores = output.predictions
    if task.label_type != "tokens":
        return np.asarray(scores, dtype=np.float64)
    return [
        fill_word_scores(row_scores[row_labels != IGNORED_LABEL], word_indices, len(words), labels)
        for row_scores, row_labels, word_indices, words in zip(
            scores, output.label_ids, label_values(encoded, "word_indices"), label_values(rows, "label"), strict=True
        )
    ]


def fill_word_scores(scores: Any, word_indices: Sequence[int], num_words: int, labels: Sequence[str]) -> Any:
    """Return the scores of all words of a sentence. Words without a token get the tag O.

    Args:
        scores: (words with a token, classes).
        word_indices: the indices of these words.
        num_words: the number of words in the sentence.
        labels: the names of the classes.
    """
    filled = np.zeros((num_words, scores.shape[1]))
    filled[:, labels.index("O") if "O" in labels else 0] = 1.0
    filled[list(word_indices)] = scores
    return filled


def build_predictions(split: str, scores: Any, rows: Dataset) -> pa.Table:
    """Return a table with the split, row number, label and scores of each row; for rankings also query and document."""
    columns: dict[str, Any] = {
        "split": [split] * len(rows),
        "row": label_values(rows, "row"),
        "label": label_values(rows, "label"),
    }
    for name in ("query", "document"):
        if name in rows.column_names:
            columns[name] = label_values(rows, name)
    columns["scores"] = [np.asarray(row_scores).tolist() for row_scores in scores]
    return pa.table(columns)
