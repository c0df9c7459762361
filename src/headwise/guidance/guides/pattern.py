"""Guides towards a given map. Deshpande and Narasimhan 2020; Wang et al. 2022, section 3.5

    L = mean over guided heads and pairs of real tokens of (P − T)²

T is 0 or 1, or, where it comes from knowledge, a row that sums to 1. A row of zeros is no target, and is left out.
"""

from abc import abstractmethod

import torch
from torch import Tensor

from headwise.guidance.guide import Guide, Observed, full


class PatternGuide(Guide):
    """Push heads towards a map T."""

    needs_weights = True

    @abstractmethod
    def target(self, observed: Observed) -> Tensor:
        """T, (B, N, N) or broadcastable to it, for all tokens; padding is left out elsewhere."""

    def term(self, observed: Observed) -> Tensor:
        real = observed.real
        pairs = real[:, :, None] & real[:, None, :]
        target = self.target(observed).to(real.device).expand(pairs.shape).float() * pairs
        pairs = pairs & (target != 0).any(dim=-1, keepdim=True)
        count = pairs.sum(dim=(1, 2)).clamp(min=1)
        terms = []
        for layer in observed.layers:
            assert layer.weights is not None
            error = (full(self.of_heads(layer.weights)) - target[:, None]).square() * pairs[:, None]
            terms.append(error.sum(dim=(2, 3)).mean(dim=1) / count)
        return torch.stack(terms).mean()


def rows_to_one(x: Tensor, real: Tensor) -> Tensor:
    """A real-valued target: clipped at 0, without padding, rows divided by their sum; a row of zeros stays."""
    x = x.clamp(min=0.0) * (real[:, :, None] & real[:, None, :])
    return x / x.sum(dim=-1, keepdim=True).clamp(min=1e-9)


def given_ids(inputs: dict[str, object], who: str) -> Tensor:
    """The tokens' ids, (B, N)."""
    given = inputs.get("input_ids")
    if not isinstance(given, Tensor):
        raise ValueError(f"{who} looks for tokens, so the model must be given input_ids")
    return given


def tokens_among(inputs: dict[str, object], ids: tuple[int, ...], who: str) -> Tensor:
    """Which tokens are among some ids, (B, N)."""
    given = given_ids(inputs, who)
    return torch.isin(given, torch.tensor(ids, device=given.device))
