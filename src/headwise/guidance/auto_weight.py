"""Automatic weights of guides (`weight="auto"`).

The gradients of task and guides are compared at the queries of the guided layers. At regular intervals, the weight is
set so that the norm of the guide's gradient is `share` times that of the task; several automatic guides divide the
share equally.
"""

import math

import torch
from torch import Tensor, distributed

from headwise.guides import Guide

#: Weights are updated in each of the first steps, when gradients change fast, and at this interval afterwards.
INITIAL_UPDATES, UPDATE_INTERVAL = 4, 25

#: The fraction of the previous weight that an update keeps.
SMOOTHING = 0.5


class AutoWeight:
    """Updates the weights of automatic guides."""

    def __init__(self) -> None:
        self.step = 0

    def is_due(self) -> bool:
        """Return whether the weights are updated in this step."""
        return self.step < INITIAL_UPDATES or self.step % UPDATE_INTERVAL == 0

    def update(self, task_loss: Tensor, terms: dict[Guide, Tensor], queries: list[Tensor]) -> None:
        """Set the weights of guides from the gradients of the task's loss and of their terms."""
        norms = torch.stack([gradient_norm(loss, queries) for loss in (task_loss, *terms.values())])
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(norms)  # all processes need the same weights
        task_norm, *term_norms = norms.tolist()
        for guide, term_norm in zip(terms, term_norms, strict=True):
            weight = guide.share / len(terms) * task_norm / term_norm if term_norm > 0 else 0.0
            if math.isfinite(weight):  # skip batches that overflowed
                guide.weight = weight if self.step == 0 else SMOOTHING * guide.weight + (1 - SMOOTHING) * weight


def gradient_norm(loss: Tensor, tensors: list[Tensor]) -> Tensor:
    """Return the norm of a loss's gradient at some tensors, in float32."""
    gradients = torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True) if tensors else ()
    squares = [gradient.float().square().sum() for gradient in gradients if gradient is not None]
    return torch.stack(squares).sum().sqrt() if squares else loss.new_zeros((), dtype=torch.float32)
