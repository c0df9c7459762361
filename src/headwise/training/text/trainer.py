"""The Trainer of the text pipeline: guides, class weights and label smoothing."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset
from torch import Tensor, nn
from transformers import Trainer

from headwise.guidance import GuidedTrainer
from headwise.tasks.metrics.labels import column_array, label_values
from headwise.training.core.trainer import LengthGroupedTrainer, count_targets
from headwise.training.text.encoding import IGNORED_LABEL


class WeightedLossTrainer(Trainer):
    """A Trainer whose training loss has class weights and label smoothing. The loss on dev has neither.

    Args:
        class_weights: (classes,), the weight of each class; for multi-label tasks the weight of rows with the label.
        label_smoothing: the probability that is distributed over all classes.
        args, kwargs: as for `Trainer`.
    """

    def __init__(
        self, *args: Any, class_weights: Tensor | None = None, label_smoothing: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.class_weights, self.label_smoothing = class_weights, label_smoothing

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if model.training and (self.class_weights is not None or self.label_smoothing):
            loss = self.weighted_loss(outputs["logits"], inputs["labels"])
        return (loss, outputs) if return_outputs else loss

    def weighted_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean over all targets of the weighted loss."""
        weights = None if self.class_weights is None else self.class_weights.to(logits)
        if labels.is_floating_point():
            return F.binary_cross_entropy_with_logits(logits, labels, pos_weight=weights)
        losses = F.cross_entropy(
            logits.flatten(0, -2),
            labels.flatten(),
            weight=weights,
            ignore_index=IGNORED_LABEL,
            reduction="sum",
            label_smoothing=self.label_smoothing,
        )
        return losses / count_targets(labels)


class TextTrainer(LengthGroupedTrainer, GuidedTrainer, WeightedLossTrainer):
    """A `LengthGroupedTrainer` with guides, class weights and label smoothing."""


def balanced_weights(rows: Dataset, label_type: str, num_labels: int) -> Tensor:
    """Return weights with which all classes count the same, as scikit-learn's "balanced"; classes without rows get 1.

    For multi-label tasks, the weight of a label is the ratio of rows without it to rows with it.

    Example:
        >>> balanced_weights(Dataset.from_dict({"label": [0, 0, 0, 1]}), "classification", 2)
        tensor([0.6667, 2.0000])
    """
    if label_type == "multi-label":
        counts = column_array(rows, "label").sum(axis=0)
        weights = (len(rows) - counts) / np.maximum(counts, 1)
    else:
        values = label_values(rows, "label")
        labels = np.concatenate(values) if label_type == "tokens" else np.asarray(values)
        counts = np.bincount(labels, minlength=num_labels)
        weights = len(labels) / (num_labels * np.maximum(counts, 1))
    return torch.tensor(np.where(counts > 0, weights, 1.0), dtype=torch.float32)


def describe_class_weights(weights: Tensor, labels: Sequence[str]) -> str:
    """Return a line about the weights of the classes.

    Example:
        >>> describe_class_weights(torch.tensor([0.6667, 2.0]), ["ham", "spam"])
        'weights of the classes in the loss, from 0.667 (ham) to 2 (spam)'
    """
    low, high = int(weights.argmin()), int(weights.argmax())
    return (
        f"weights of the classes in the loss, from {weights[low]:.3g} ({labels[low]}) to "
        f"{weights[high]:.3g} ({labels[high]})"
    )
