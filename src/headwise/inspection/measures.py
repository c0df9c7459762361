"""What can be said of a head in numbers, from rows of its map.

B sequences, H heads, R rows (queries from `start` on), N keys. Rows of padding are 0 and count for nothing.
"""

from math import log

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def distances(weights: Tensor, start: int) -> Tensor:
    """How far each query looks, in tokens: the mean of |i−j| by its weights, (B, H, R).

    Example:
        >>> distances(torch.tensor([[[[0.5, 0.0, 0.5]]]]), start=0).item()
        1.0
    """
    rows, keys = weights.shape[2:]
    query = torch.arange(start, start + rows, device=weights.device)
    apart = (query[:, None] - torch.arange(keys, device=weights.device)).abs()
    return (weights * apart.to(weights.dtype)).sum(dim=-1)


def entropies(weights: Tensor) -> Tensor:
    """How widely each query looks, in bits: 3 bits are as wide as 8 tokens looked at evenly, (B, H, R).

    Example:
        >>> entropies(torch.tensor([[[[0.5, 0.0, 0.5]]]])).item()
        1.0
    """
    nats: Tensor = torch.special.entr(weights.clamp(min=0)).sum(dim=-1)
    return nats / log(2.0)


def row_blocks(length: int, sequences: int, heads: int, *, most: int = 2**24) -> list[tuple[int, int]]:
    """From where to where queries are taken together, so that no more than so many weights are held at once.

    Example:
        >>> row_blocks(5, 1, 2, most=20)
        [(0, 2), (2, 4), (4, 5)]
    """
    step = max(1, most // max(1, sequences * heads * length))
    return [(start, min(start + step, length)) for start in range(0, length, step)]


def to_numpy(x: Tensor) -> NDArray[np.float64]:
    """Return a tensor as a float64 array."""
    return np.asarray(x.detach().cpu(), dtype=np.float64)
