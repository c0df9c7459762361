"""One vector from the states of many tokens.

Additive attention, as in NRMS (Wu et al. 2019, EMNLP), whose training the distance-aware paper follows:

    α = softmax_i(qᵀ tanh(W h_i + b)),   the vector is Σ_i α_i h_i

The distance-aware paper itself does not say how states become a vector.
"""

import torch
from torch import Tensor, nn

from headwise.models.configuration import HeadwiseConfig


class AdditivePooling(nn.Module):
    """The states' mean, weighted by a learned look at each.

    Example:
        >>> import torch
        >>> from headwise.models import AdditivePooling
        >>> states, real = torch.randn(2, 5, 8), torch.arange(5) < torch.tensor([[5], [3]])
        >>> AdditivePooling(8)(states, real).shape
        torch.Size([2, 8])
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.projection = nn.Linear(dim, dim)
        self.query = nn.Linear(dim, 1, bias=False)

    def scores(self, states: Tensor, real: Tensor) -> Tensor:
        """How much each state (B, N, dim) draws the look, (B, N)."""
        drawn: Tensor = self.query(self.projection(states).tanh()).squeeze(-1)
        return drawn

    def weights(self, states: Tensor, real: Tensor) -> Tensor:
        """α (B, N) of states (B, N, dim): 0 where a token is not real, and everywhere in a text without any."""
        scores = self.scores(states, real)
        lowest = torch.finfo(scores.dtype).min
        return scores.masked_fill(~real, lowest).softmax(dim=-1) * real

    def forward(self, states: Tensor, real: Tensor) -> Tensor:
        weights = self.weights(states, real).to(states.dtype)
        return (weights[:, None] @ states).squeeze(1)


class FirstPooling(nn.Module):
    """The first token's state: [CLS], where the tokeniser puts it."""

    def forward(self, states: Tensor, real: Tensor) -> Tensor:
        return states[:, 0]


def make_pooling(config: HeadwiseConfig) -> AdditivePooling | FirstPooling:
    return AdditivePooling(config.dim) if config.pooling == "additive" else FirstPooling()
