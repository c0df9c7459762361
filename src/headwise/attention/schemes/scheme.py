"""Base class of the position schemes, and checks of their arguments."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from headwise import _compat
from headwise.attention.types import SchemeTerms


class Scheme(nn.Module):
    """Base class of position schemes: the parameters and position terms of one attention layer.

    Subclasses implement `forward`, and set `heads` and `head_dim` if their parameters depend on them. Each layer needs
    its own instance unless layers should share parameters.
    """

    #: False if queries are compared with the layer's input itself (TENER). `MultiheadAttention` then has no key
    #: projection.
    projects_keys: bool = True

    heads: int | None = None
    head_dim: int | None = None

    def scale(self, head_dim: int) -> float:
        """Return the default factor of the scores."""
        return 1.0 / math.sqrt(head_dim)

    def reset_parameters(self) -> None:
        """Initialize the parameters, if any."""

    def forward(self, q: Tensor, k: Tensor, *, offset: int = 0) -> SchemeTerms:
        """Return the terms for queries (B, H, N, d) at offset … offset+N−1 and keys (B, G, M, d) at 0 … M−1."""
        raise NotImplementedError(
            f"{type(self).__name__} must define forward(q, k, *, offset=0), which returns SchemeTerms"
        )


def check_positive(name: str, value: int) -> int:
    """Return the value if it is an int of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """Return the value if it is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}")
    return value


def project(projection: nn.Linear, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Apply a linear layer in this precision.

    A layer that PEFT wraps, or that has hooks, such as accelerate's, which load its weights, computes in its own one.
    """
    if type(projection) is not nn.Linear or _compat.has_hooks(projection):
        projected: Tensor = projection(x.to(projection.weight.dtype))
        return projected.to(dtype)
    bias = None if projection.bias is None else projection.bias.to(dtype)
    return linear(x.to(dtype), projection.weight.to(dtype), bias)
