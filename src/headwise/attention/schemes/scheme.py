"""What every position scheme offers the operator."""

import math

from torch import Tensor, nn

from headwise.attention.types import SchemeTerms


class Scheme(nn.Module):
    """How one attention layer's queries meet its keys: parameters, and the terms they contribute to the scores.

    A subclass sets `heads` and `head_dim` where its parameters fix them, and implements `forward`. A scheme is a
    layer's own: two layers that should learn apart need two schemes.
    """

    #: False where the paper compares queries with the layer's input itself (TENER): `MultiheadAttention` has no key
    #: projection then.
    projects_keys: bool = True

    heads: int | None = None
    head_dim: int | None = None

    def scale(self, head_dim: int) -> float:
        """What scores are multiplied by unless the caller says otherwise."""
        return 1.0 / math.sqrt(head_dim)

    def reset_parameters(self) -> None:
        """Give the parameters, where there are any, their initial values."""

    def forward(self, q: Tensor, k: Tensor, *, offset: int = 0) -> SchemeTerms:
        """The terms for queries (B, H, N, d) at positions offset … offset+N−1 and keys (B, G, M, d) at 0 … M−1."""
        raise NotImplementedError


def positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value


def one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}")
    return value
