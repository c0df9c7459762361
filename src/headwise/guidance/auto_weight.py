"""`weight="auto"`: guides whose gradient is a share of the task's.

Task and guide meet at the queries of the guided layers. Every so often both gradients are taken there, and the weight
is set so that the guide's is `share` times as long as the task's, or that share divided by the number of guides that
ask for it; between, the weight stays.
"""

import math

import torch
from torch import Tensor, distributed

from headwise.guides import Guide

#: Measured in the first steps, where gradients change fast, and then every so many.
EVERY, FIRST = 25, 4
#: How much of the last measurement stays, so that one odd batch weighs little.
MEMORY = 0.5


class AutoWeight:
    """Keeps the weights of `auto` guides."""

    def __init__(self) -> None:
        self.step = 0

    def due(self) -> bool:
        return self.step < FIRST or self.step % EVERY == 0

    def update(self, task: Tensor, terms: dict[Guide, Tensor], queries: list[Tensor]) -> None:
        """Set the weights from what the gradients are now."""
        lengths = torch.stack([gradient_length(loss, queries) for loss in (task, *terms.values())])
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(lengths)  # every process has the same weights
        length, *others = lengths.tolist()
        for guide, other in zip(terms, others, strict=True):
            weight = guide.share / len(terms) * length / other if other > 0 else 0.0
            if math.isfinite(weight):  # a batch that overflowed says nothing
                guide.weight = weight if self.step == 0 else MEMORY * guide.weight + (1 - MEMORY) * weight


def gradient_length(loss: Tensor, at: list[Tensor]) -> Tensor:
    gradients = torch.autograd.grad(loss, at, retain_graph=True, allow_unused=True) if at else ()
    weight_norms = [gradient.float().square().sum() for gradient in gradients if gradient is not None]
    return torch.stack(weight_norms).sum().sqrt() if weight_norms else loss.new_zeros((), dtype=torch.float32)
