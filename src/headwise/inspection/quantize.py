"""Quantization of attention maps to one byte per cell.

A text of N tokens is split into groups of ⌈N / 256⌉ tokens. A cell is the weight that the queries of one group give
to the keys of another, averaged over the queries; with groups of one token it is the attention weight. A cell x is
stored as round(255 · √(x / m)), where m is the largest cell of the head, so the error is at most √(x · m) / 255. For
groups of several tokens, the 8 largest weights of each query are stored likewise, with their keys. Negative
weights, which some schemes can produce, are stored as 0.

H heads, G groups of queries, M groups of keys, N queries, K top keys, D distance bins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from headwise.attention import DistanceAware
from headwise.inspection.measures import (
    compute_distances,
    compute_entropies,
    num_distance_bins,
    row_blocks,
    sum_by_distance,
)
from headwise.integrations import AttentionRows

#: Largest number of groups.
MAX_GROUPS = 256
#: Number of keys stored for each query of a long text.
NUM_TOP_KEYS = 8


@dataclass(frozen=True, kw_only=True)
class QuantizedLayer:
    """The heads of one layer on one passage.

    Args:
        cells: the quantized maps, (H, G, M).
        cell_max: the value of byte 255 in `cells`, (H,).
        entropy: the mean over queries, (H,).
        distance: the mean over queries, (H,); None for cross-attention.
        distance_shares: the shares of attention by distance, (H, D), in the bins of `distance_bin_names`; None for
            cross-attention.
        w: the learned w of distance-aware heads, (H,); None for other schemes.
        top_keys, top_weights: the keys with the largest weights of each query, in descending order, (H, N, K); None
            if groups have one token.
        top_weight_max: the value of byte 255 in `top_weights`, (H,).
    """

    cells: NDArray[np.uint8]
    cell_max: NDArray[np.float32]
    entropy: NDArray[np.float32]
    distance: NDArray[np.float32] | None = None
    distance_shares: NDArray[np.float32] | None = None
    w: NDArray[np.float32] | None = None
    top_keys: NDArray[np.uint16] | None = None
    top_weights: NDArray[np.uint8] | None = None
    top_weight_max: NDArray[np.float32] | None = None

    def dequantize(self, head: int) -> NDArray[np.float32]:
        """Return the cells of a head as floats, (G, M)."""
        cells: NDArray[np.float32] = np.square(self.cells[head].astype(np.float32) / 255) * self.cell_max[head]
        return cells


def group_size(num_tokens: int) -> int:
    """Return the number of tokens in a group.

    Example:
        >>> group_size(128), group_size(300), group_size(4096)
        (1, 2, 16)
    """
    return max(1, -(-num_tokens // MAX_GROUPS))


def quantize_layer(
    rows: AttentionRows, lengths: Sequence[int], key_lengths: Sequence[int] | None = None
) -> QuantizedLayer:
    """Quantize the maps of a layer. The maps of several sequences are placed along the diagonal.

    Args:
        rows: the layer's attention.
        lengths: the number of tokens of each sequence; several sequences are padded on the right.
        key_lengths: the number of keys of each sequence, for cross-attention. It has no distances.
    """
    device, heads, is_cross = rows.real.device, rows.heads, key_lengths is not None
    key_lengths = lengths if key_lengths is None else key_lengths
    num_tokens, num_keys = sum(lengths), sum(key_lengths)
    size, key_size = group_size(num_tokens), group_size(num_keys)
    num_groups, num_key_groups = -(-num_tokens // size), -(-num_keys // key_size)
    has_top_keys = max(size, key_size) > 1
    cells = torch.zeros(heads, num_groups, num_key_groups, device=device)
    num_bins = num_distance_bins(max(lengths))
    distance_sums = torch.zeros(heads, device=device, dtype=torch.float64)
    entropy_sums, bin_sums = distance_sums.clone(), distance_sums.new_zeros(heads, 2 * num_bins + 1)
    top_keys: list[Tensor] = []
    top_weights: list[Tensor] = []
    blocks = row_blocks(rows.real.shape[1], len(lengths), heads, num_keys=max(key_lengths))
    offset = key_offset = 0
    for sequence, (length, key_length) in enumerate(zip(lengths, key_lengths, strict=True)):
        for start, stop in blocks:
            if start >= length:
                break
            block = rows.weights(start, stop)[sequence : sequence + 1, :, : length - start, :key_length]
            weights = block.float().clamp(min=0)
            padding = (key_offset, num_key_groups * key_size - key_offset - key_length)
            group_weights = F.pad(weights[0], padding).unflatten(-1, (num_key_groups, key_size)).sum(dim=-1)
            query_groups = (offset + torch.arange(start, start + weights.shape[2], device=device)) // size
            cells.index_add_(1, query_groups, group_weights)
            entropy_sums += compute_entropies(weights)[0].sum(dim=-1).double()
            if not is_cross:
                distance_sums += compute_distances(weights, start)[0].sum(dim=-1).double()
                bin_sums += sum_by_distance(weights, start, num_bins)
            if has_top_keys:
                top = weights[0].topk(min(NUM_TOP_KEYS, key_length), dim=-1)
                padding = (0, NUM_TOP_KEYS - top.values.shape[-1])
                top_keys.append(F.pad(top.indices + key_offset, padding).cpu())
                top_weights.append(F.pad(top.values, padding).cpu())
        offset, key_offset = offset + length, key_offset + key_length
    group_sizes = torch.full((num_groups,), size, device=device)
    group_sizes[-1] = num_tokens - size * (num_groups - 1)
    distance, entropy, shares = (to_float32(x / num_tokens) for x in (distance_sums, entropy_sums, bin_sums))
    w = to_float32(rows.scheme.w) if isinstance(rows.scheme, DistanceAware) else None
    cell_bytes, cell_max = quantize((cells / group_sizes[:, None]).cpu())
    arrays: dict[str, Any] = {} if is_cross else {"distance": distance, "distance_shares": shares}
    if has_top_keys:
        weight_bytes, weight_max = quantize(torch.cat(top_weights, dim=1))
        keys = torch.cat(top_keys, dim=1).numpy().astype(np.uint16)
        arrays |= {"top_keys": keys, "top_weights": weight_bytes, "top_weight_max": weight_max}
    return QuantizedLayer(cells=cell_bytes, cell_max=cell_max, entropy=entropy, w=w, **arrays)


def to_float32(x: Tensor) -> NDArray[np.float32]:
    """Return a tensor as a float32 array."""
    return np.asarray(x.detach().cpu(), dtype=np.float32)


def quantize(x: Tensor) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return the values of each head (H, …) as bytes, and the values of byte 255 (H,)."""
    maxima = x.flatten(1).amax(dim=1).clamp(min=1e-12)
    quantized = (255 * (x / maxima.view(-1, *[1] * (x.dim() - 1))).sqrt()).round().to(torch.uint8)
    return quantized.numpy(), maxima.numpy().astype(np.float32)
