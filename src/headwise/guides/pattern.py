"""Guides towards a given map. Deshpande and Narasimhan 2020; Wang et al. 2022, section 3.5

    L = mean over guided heads and pairs of real tokens of (P − T)²

T is 0 or 1, or, where it comes from knowledge, a row that sums to 1. A row of zeros is no target, and is left out.
Most targets need no map, since

    Σ (P − T)² = Σ P² − 2 Σ P∘T + Σ T²

and the squares of a row come with the attention: if T is the same for all queries, Σ P∘T is what its tokens receive; if
each query has one token, it is one weight a query.
"""

from abc import abstractmethod

import torch
from torch import Tensor

from headwise.guides.guide import ForwardRecord, Guide, full


class PatternGuide(Guide):
    """Push heads towards a map T, whatever it is: this needs whole maps."""

    needs = frozenset({"weights"})

    @abstractmethod
    def target(self, observed: ForwardRecord) -> Tensor:
        """T, (B, N, N) or broadcastable to it, for all tokens; padding is left out elsewhere."""

    def term(self, observed: ForwardRecord) -> Tensor:
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


class TokenGuide(Guide):
    """Push heads towards some tokens, the same for all queries."""

    needs = frozenset({"weight_norms"})

    @abstractmethod
    def target(self, observed: ForwardRecord) -> Tensor:
        """Which tokens, (B, N) boolean; padding is left out elsewhere. A text without any has no target."""

    def term(self, observed: ForwardRecord) -> Tensor:
        real = observed.real
        target = self.target(observed).to(real.device) & real
        length, chosen = real.sum(dim=1), target.sum(dim=1)
        terms = []
        for layer in observed.layers:
            assert layer.weight_norms is not None
            weight_norms, received = (full(self.of_heads(x)) for x in (layer.weight_norms, layer.received))
            error = weight_norms.sum(dim=2) - 2 * (received * target[:, None]).sum(dim=2) + (length * chosen)[:, None]
            terms.append(error.mean(dim=1) * (chosen > 0) / length.square().clamp(min=1))
        return torch.stack(terms).mean()


class NeighbourGuide(Guide):
    """Push heads towards the token so many places after each; one that has or sees none there has no target."""

    needs = frozenset({"weight_norms", "neighbours"})

    places: int

    def term(self, observed: ForwardRecord) -> Tensor:
        length = observed.real.sum(dim=1)[:, None]
        terms = []
        for layer in observed.layers:
            assert layer.weight_norms is not None
            weight_norms, given = (full(self.of_heads(x)) for x in (layer.weight_norms, layer.given(self.places)))
            seen = self.of_heads(layer.sees(self.places).expand_as(layer.weight_norms))
            error = (weight_norms - 2 * given + 1) * seen
            terms.append((error.sum(dim=2) / (seen.sum(dim=2) * length).clamp(min=1)).mean(dim=1))
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
