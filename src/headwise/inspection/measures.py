"""Measures of attention weights, computed for a block of rows at a time.

B sequences, H heads, R rows (queries from `start` on), N keys, D distance bins. Rows of padding tokens are 0.
"""

from math import log

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headwise.attention.diagonals import relative_positions, unskew


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
    positive = weights.clamp(min=torch.finfo(weights.dtype).tiny)
    nats: Tensor = -(positive * positive.log()).sum(dim=-1)
    return nats / log(2.0)


def num_distance_bins(num_tokens: int) -> int:
    """Return the number of distance bins before a token, and after it: 1, 2, 3–4, 5–8, … up to the length of the text.

    Example:
        >>> num_distance_bins(1), num_distance_bins(5), num_distance_bins(4096)
        (0, 3, 13)
    """
    return (num_tokens - 2).bit_length() + 1 if num_tokens > 1 else 0


def distance_bin_names(num_bins: int) -> list[str]:
    """Return the names of all 2 · num_bins + 1 bins, from the most distant tokens before to the most distant after.

    Example:
        >>> distance_bin_names(3)
        ['before_3-4', 'before_2', 'before_1', 'self', 'after_1', 'after_2', 'after_3-4']
    """
    ranges = ["1", "2", *(f"{2 ** (number - 1) + 1}-{2**number}" for number in range(2, num_bins))][:num_bins]
    return [f"before_{x}" for x in reversed(ranges)] + ["self"] + [f"after_{x}" for x in ranges]


def sum_by_distance(weights: Tensor, start: int, num_bins: int) -> Tensor:
    """Return the weights of each head, summed by the signed distance j − i of query i and key j, (H, D), in float64.

    The D = 2 · num_bins + 1 bins are those of `distance_bin_names`.

    Example:
        >>> sum_by_distance(torch.tensor([[[[0.1, 0.2, 0.3, 0.4]]]]), start=1, num_bins=2)
        tensor([[0.0000, 0.1000, 0.2000, 0.3000, 0.4000]], dtype=torch.float64)
    """
    num_rows, num_keys = weights.shape[2:]
    by_offset = unskew(weights).sum(dim=(0, 2)).double()
    offsets = relative_positions(num_rows, num_keys, start, weights.device)
    sums = by_offset.new_zeros(weights.shape[1], 2 * num_bins + 1)
    return sums.index_add_(1, bin_offsets(offsets, num_bins), by_offset)


def bin_offsets(offsets: Tensor, num_bins: int) -> Tensor:
    """Return the bin of each signed distance. Distances beyond the last bin count in it."""
    upper = 2 ** torch.arange(num_bins, device=offsets.device)
    bins = torch.bucketize(offsets.abs(), upper).clamp(max=num_bins - 1) + 1
    return num_bins + offsets.sign() * bins


def uniform_shares(num_tokens: int, *, causal: bool) -> NDArray[np.float64]:
    """Return the shares of all distance bins for equal weights on all tokens, or on all earlier ones if causal, (D,).

    Example:
        >>> uniform_shares(2, causal=False), uniform_shares(2, causal=True)
        (array([0.25, 0.5 , 0.25]), array([0.25, 0.75, 0.  ]))
    """
    num_bins = num_distance_bins(num_tokens)
    offsets = torch.arange(1 - num_tokens, num_tokens)
    if causal:
        inverse = 1 / torch.arange(num_tokens, 0, -1, dtype=torch.float64)  # of the last query, …, the first query
        weights = torch.cat([inverse.cumsum(dim=0), torch.zeros(num_tokens - 1, dtype=torch.float64)])
    else:
        weights = (num_tokens - offsets.abs()).double() / num_tokens
    shares = torch.zeros(2 * num_bins + 1, dtype=torch.float64)
    return to_numpy(shares.index_add_(0, bin_offsets(offsets, num_bins), weights / num_tokens))


def row_blocks(
    length: int, sequences: int, heads: int, *, num_keys: int | None = None, max_weights: int = 2**20
) -> list[tuple[int, int]]:
    """Split the queries into blocks [start, stop) of at most `max_weights` attention weights.

    The number of keys is that of the queries, unless it is given.

    Example:
        >>> row_blocks(5, 1, 2, max_weights=20)
        [(0, 2), (2, 4), (4, 5)]
    """
    step = max(1, max_weights // max(1, sequences * heads * (num_keys or length)))
    return [(start, min(start + step, length)) for start in range(0, length, step)]


def to_numpy(x: Tensor) -> NDArray[np.float64]:
    """Return a tensor as a float64 array."""
    return np.asarray(x.detach().cpu(), dtype=np.float64)
