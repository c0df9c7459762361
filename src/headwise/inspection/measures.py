"""Measures of attention weights, computed for a block of rows at a time.

B sequences, H heads, R rows (queries from `start` on), N keys. Rows of padding tokens are 0.
"""

from math import log

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def compute_distances(weights: Tensor, start: int) -> Tensor:
    """Return the mean attention distance of each query, Σ_j W_ij |i−j|, in tokens, (B, H, R).

    Example:
        >>> compute_distances(torch.tensor([[[[0.5, 0.0, 0.5]]]]), start=0).item()
        1.0
    """
    num_rows, num_keys = weights.shape[2:]
    queries = torch.arange(start, start + num_rows, device=weights.device)
    distances = (queries[:, None] - torch.arange(num_keys, device=weights.device)).abs()
    return (weights * distances.to(weights.dtype)).sum(dim=-1)


def compute_entropies(weights: Tensor) -> Tensor:
    """Return the entropy of each query's weights in bits, (B, H, R). Equal weights on 8 tokens have 3 bits.

    Example:
        >>> compute_entropies(torch.tensor([[[[0.5, 0.0, 0.5]]]])).item()
        1.0
    """
    nats: Tensor = torch.special.entr(weights.clamp(min=0)).sum(dim=-1)
    return nats / log(2.0)


def row_blocks(length: int, sequences: int, heads: int, *, max_weights: int = 2**24) -> list[tuple[int, int]]:
    """Split the queries into blocks [start, stop) of at most `max_weights` attention weights.

    Example:
        >>> row_blocks(5, 1, 2, max_weights=20)
        [(0, 2), (2, 4), (4, 5)]
    """
    step = max(1, max_weights // max(1, sequences * heads * length))
    return [(start, min(start + step, length)) for start in range(0, length, step)]


def to_numpy(x: Tensor) -> NDArray[np.float64]:
    """Return a tensor as a float64 array."""
    return np.asarray(x.detach().cpu(), dtype=np.float64)
