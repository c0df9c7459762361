"""The decision rule of a classifier: how scores become probabilities and labels. It is fit on dev."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logit

from headwise.tasks.metrics.calibration import fit_temperature, to_probabilities
from headwise.tasks.metrics.thresholds import tune_thresholds

#: The label types whose predictions have a confidence, the probability of the predicted label.
HAS_CONFIDENCE = ("classification", "ranking")
NUM_QUANTILES = 21  # from the minimum to the maximum


@dataclass(frozen=True)
class DecisionRule:
    """How scores become probabilities and labels.

    Args:
        label_type: the type of the labels.
        labels: the class names.
        temperature: divides the scores of one class per row before the softmax.
        thresholds: for several classes per row, the probability above which each class is predicted; empty: 0.5.
        confidence_quantiles: quantiles of the confidence on dev, at equal distances from 0 to 1; empty without dev.
    """

    label_type: str
    labels: tuple[str, ...]
    temperature: float = 1.0
    thresholds: tuple[float, ...] = ()
    confidence_quantiles: tuple[float, ...] = ()

    @classmethod
    def fit(cls, label_type: str, labels: Sequence[str], scores: Any, true_labels: Any) -> "DecisionRule":
        """Fit a rule on dev.

        Args:
            label_type: the type of the labels.
            labels: the class names.
            scores: the model's scores (rows, classes).
            true_labels: the labels of the rows, as arrays.
        """
        temperature, thresholds, quantiles = 1.0, np.array([]), np.array([])
        if label_type == "multi-label":
            thresholds = tune_thresholds(to_probabilities(label_type, scores), true_labels)
        elif label_type == "classification":
            temperature = fit_temperature(scores, true_labels)
        if label_type in HAS_CONFIDENCE:
            confidence = to_probabilities(label_type, scores, temperature).max(axis=-1)
            quantiles = np.quantile(confidence, np.linspace(0, 1, NUM_QUANTILES))
        return cls(label_type, tuple(labels), temperature, tuple(thresholds.tolist()), tuple(quantiles.tolist()))

    @classmethod
    def from_metrics(cls, metrics: dict[str, Any]) -> "DecisionRule":
        """Return the rule of a finished run, given the contents of `metrics.json`.

        Raises:
            ValueError: The temperature is not a positive number.
        """
        labels, stored = metrics["labels"], metrics["decision"]
        thresholds = tuple(float(stored["thresholds"][label]) for label in labels if stored["thresholds"])
        quantiles = tuple(map(float, stored["confidence_quantiles"]))
        temperature = float(stored["temperature"])
        if not 0 < temperature < math.inf:
            raise ValueError(f"the temperature is {temperature:g}, expected a positive number")
        return cls(metrics["label_type"], tuple(labels), temperature, thresholds, quantiles)

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of `metrics.json`."""
        return {
            "temperature": self.temperature,
            "thresholds": dict(zip(self.labels, self.thresholds, strict=bool(self.thresholds))),
            "confidence_quantiles": list(self.confidence_quantiles),
        }

    def probabilities(self, scores: Any) -> Any:
        """Return probabilities (…, classes)."""
        return to_probabilities(self.label_type, scores, self.temperature)

    def decision_scores(self, scores: Any) -> Any:
        """Return scores (…, classes) that are above 0 for predicted classes; only multi-label scores change."""
        return np.asarray(scores) - logit(np.asarray(self.thresholds)) if self.thresholds else scores

    def confidence_quantile(self, confidence: float) -> float | None:
        """Return the share of dev rows with at most this confidence; None without dev.

        >>> DecisionRule("classification", ("a", "b"), confidence_quantiles=(0.5, 0.8, 1.0)).confidence_quantile(0.9)
        0.75
        """
        if not self.confidence_quantiles:
            return None
        shares = np.linspace(0, 1, len(self.confidence_quantiles))
        return round(float(np.interp(confidence, self.confidence_quantiles, shares)), 3)
