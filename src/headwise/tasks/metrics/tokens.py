"""A tag a word: precision, recall and F1 of spans, as seqeval (and conlleval) finds them, and the words' accuracy."""

from typing import Any

import numpy as np
from datasets import Dataset
from seqeval.metrics.sequence_labeling import get_entities

from headwise.tasks.metrics.rows import label_values

PRIMARY = "f1"


def compute(scores: Any, rows: Dataset) -> dict[str, float]:
    right, guessed, true = row_statistics(scores, rows).sum(axis=0)
    pairs = tagged(scores, rows)
    hits = sum(a == b for truth, guess in pairs for a, b in zip(truth, guess, strict=True))
    return {
        "f1": float(from_sums(np.array([right, guessed, true]))),
        "precision": float(right / max(guessed, 1)),
        "recall": float(right / max(true, 1)),
        "word_accuracy": hits / sum(len(truth) for truth, _ in pairs),
    }


def row_statistics(scores: Any, rows: Dataset) -> Any:
    """For each sentence: spans guessed rightly, guessed, and true."""
    found = [(set(get_entities(truth)), set(get_entities(guess))) for truth, guess in tagged(scores, rows)]
    return np.array([(len(truth & guess), len(guess), len(truth)) for truth, guess in found]).reshape(-1, 3)


def from_sums(sums: Any) -> Any:
    right, guessed, true = np.moveaxis(np.asarray(sums, dtype=np.float64), -1, 0)
    return 2 * right / np.maximum(guessed + true, 1)


def tagged(scores: Any, rows: Dataset) -> list[tuple[list[str], list[str]]]:
    """Each sentence's tags and those guessed. A word without a score, which was cut off, counts as guessed O."""
    names = rows.features["label"].feature.names
    found = []
    for truth, score in zip(label_values(rows, "label"), scores, strict=True):
        guess = np.asarray(score)[: len(truth)].argmax(axis=-1)
        tags = [names[number] for number in guess] + ["O"] * (len(truth) - len(guess))
        found.append(([names[number] for number in truth], tags))
    return found
