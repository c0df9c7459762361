"""One vector of the states of clicked news, the latest last.

Additive attention knows no order. With a preference for the latest, its weights are

    α = softmax_i(qᵀ tanh(W h_i + b) − s · age_i),   age 0 for the latest, s ≥ 0 or below 0 as it is learnt
"""

import torch
from torch import Tensor, nn

from headwise.models.pooling import AdditivePooling
from headwise.models.recommendation.configuration import UserPooling


class RecentPooling(AdditivePooling):
    """Additive attention that prefers the latest, by a learned number that begins at 0: no preference."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.slope = nn.Parameter(torch.zeros(()))

    def scores(self, states: Tensor, real: Tensor) -> Tensor:
        age = real.sum(dim=-1, keepdim=True) - 1 - torch.arange(real.shape[-1], device=real.device)
        return super().scores(states, real) - self.slope * age


class LastPooling(nn.Module):
    """The state of the latest; 0 of no history."""

    def forward(self, states: Tensor, real: Tensor) -> Tensor:
        last = (real.sum(dim=-1) - 1).clamp(min=0)
        chosen = states[torch.arange(len(states), device=states.device), last]
        return chosen * real.any(dim=-1, keepdim=True)


def make_user_pooling(pooling: UserPooling, dim: int) -> nn.Module:
    if pooling == "last":
        return LastPooling()
    return RecentPooling(dim) if pooling == "recent" else AdditivePooling(dim)
