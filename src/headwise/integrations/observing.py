"""A layer's maps, of which rows are computed when they are asked for: the whole is never held."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from headwise.attention import Scheme


@dataclass(frozen=True)
class AttentionRows:
    """What one layer looked at.

    Args:
        heads: how many there are.
        real: which tokens are no padding, (B, N).
        scheme: by which positions entered; None where the model knows them in its own way.
        weights: of the queries from one to another (not included), before dropout, (B, heads, queries, N); those of
            padding are 0.
    """

    heads: int
    real: Tensor
    scheme: Scheme | None
    weights: Callable[[int, int], Tensor]


#: Called with each layer of a model as it runs. Weights are there to be asked for until it returns.
AttentionObserver = Callable[[nn.Module, AttentionRows], None]
