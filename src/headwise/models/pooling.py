"""Pooling of token states to one vector.

Additive attention as in NRMS (Wu et al. 2019, EMNLP), whose training the distance-aware paper follows:

    α = softmax_i(qᵀ tanh(W h_i + b)),   vector = Σ_i α_i h_i

The distance-aware paper does not specify its pooling.
"""

import torch
from torch import Tensor, nn

from headwise.models.configuration import HeadwiseConfig


class AdditivePooling(nn.Module):
    """The mean of the states, weighted by additive attention.

    Example:
        >>> import torch
        >>> from headwise.models import AdditivePooling
        >>> states, mask = torch.randn(2, 5, 8), torch.arange(5) < torch.tensor([[5], [3]])
        >>> AdditivePooling(8)(states, mask).shape
        torch.Size([2, 8])
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.projection = nn.Linear(dim, dim)
        self.query = nn.Linear(dim, 1, bias=False)

    def scores(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return the score (B, N) of each state (B, N, D)."""
        scores: Tensor = self.query(self.projection(states).tanh()).squeeze(-1)
        return scores

    def weights(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return the weights α (B, N): 0 for padding, and for all tokens of an empty text."""
        scores = self.scores(states, mask)
        lowest = torch.finfo(scores.dtype).min
        return scores.masked_fill(~mask, lowest).softmax(dim=-1) * mask

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        weights = self.weights(states, mask).to(states.dtype)
        return (weights[:, None] @ states).squeeze(1)


class FirstPooling(nn.Module):
    """The state of the first token, [CLS]."""

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        return states[:, 0]


def build_pooling(config: HeadwiseConfig) -> AdditivePooling | FirstPooling:
    """Build the pooling of a configuration."""
    return AdditivePooling(config.dim) if config.pooling == "additive" else FirstPooling()
