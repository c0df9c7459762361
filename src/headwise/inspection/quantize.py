"""Maps in little room: a byte a weight, and of long texts groups of tokens and each query's strongest keys.

The rule. A text of N tokens has groups of s = ⌈N / 256⌉ tokens. A cell is what the queries of one group give to the
keys of another, on average over these queries; with s = 1 it is the weight itself. A cell x is kept as
round(255 · √(x / largest of its head)), so that it is true to ± √(x · largest) / 255: weak cells more closely than
strong ones. With s > 1 each query's 8 strongest keys are kept as well, in the same way. Weights below 0, which late
adjustments can give, count as 0.
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
from headwise.inspection.measures import distances, entropies, row_blocks
from headwise.integrations import AttentionRows

CELLS = 256  # along a map's side, at most
STRONGEST = 8  # keys of each query


@dataclass(frozen=True)
class Layer:
    """One layer's heads on one passage.

    Args:
        cells: (H, cells, cells).
        largest: what 255 stands for, of each head (H,).
        keys, weights: of each query its strongest keys and their weights (H, N, 8), strongest first; None if each cell
            is one weight.
        strongest: what 255 stands for in `weights`, (H,).
        distance, entropy: each head's, on average over queries (H,).
        w: what distance-aware heads learned (H,); None for others.
    """

    cells: NDArray[np.uint8]
    largest: NDArray[np.float32]
    distance: NDArray[np.float32]
    entropy: NDArray[np.float32]
    w: NDArray[np.float32] | None = None
    keys: NDArray[np.uint16] | None = None
    weights: NDArray[np.uint8] | None = None
    strongest: NDArray[np.float32] | None = None

    def map(self, head: int) -> NDArray[np.float32]:
        """A head's cells as numbers."""
        found: NDArray[np.float32] = np.square(self.cells[head].astype(np.float32) / 255) * self.largest[head]
        return found


def group_size(tokens: int) -> int:
    """How many tokens make a group.

    Example:
        >>> group_size(128), group_size(300), group_size(4096)
        (1, 2, 16)
    """
    return max(1, -(-tokens // CELLS))


def compact(rows: AttentionRows, lengths: Sequence[int]) -> Layer:
    """A layer's maps in little room. Several sequences, the sentences of a document, stand along the diagonal.

    Args:
        rows: the layer's.
        lengths: how many tokens each sequence has; padding comes behind them.
    """
    device, heads, total = rows.real.device, rows.heads, sum(lengths)
    size = group_size(total)
    side = -(-total // size)
    cells = torch.zeros(heads, side, side, device=device)
    measured = torch.zeros(2, heads, device=device, dtype=torch.float64)
    keys: list[Tensor] = []
    weights: list[Tensor] = []
    blocks = row_blocks(rows.real.shape[1], len(lengths), heads)
    for sequence, (first, length) in enumerate(zip(np.cumsum([0, *lengths]), lengths, strict=False)):
        for start, stop in blocks:
            if start >= length:
                break
            found = (
                rows.weights(start, stop)[sequence : sequence + 1, :, : length - start, :length].float().clamp(min=0)
            )
            around = (int(first), side * size - int(first) - length)
            gathered = F.pad(found[0], around).unflatten(-1, (side, size)).sum(dim=-1)
            groups = (int(first) + torch.arange(start, start + found.shape[2], device=device)) // size
            cells.index_add_(1, groups, gathered)
            measured += torch.stack([x[0].sum(dim=-1).double() for x in (distances(found, start), entropies(found))])
            if size > 1:
                best = found[0].topk(min(STRONGEST, length), dim=-1)
                missing = (0, STRONGEST - best.values.shape[-1])
                keys.append(F.pad(best.indices + int(first), missing).cpu())
                weights.append(F.pad(best.values, missing).cpu())
    queries = torch.full((side,), size, device=device)
    queries[-1] = total - size * (side - 1)
    distance, entropy = (measured / total).cpu().numpy().astype(np.float32)
    learned = rows.scheme.w.detach().float().cpu().numpy() if isinstance(rows.scheme, DistanceAware) else None
    of_cells, largest = quantised((cells / queries[:, None]).cpu())
    found_strongest: dict[str, Any] = {}
    if size > 1:
        of_weights, strongest = quantised(torch.cat(weights, dim=1))
        places = torch.cat(keys, dim=1).numpy().astype(np.uint16)
        found_strongest = {"keys": places, "weights": of_weights, "strongest": strongest}
    return Layer(of_cells, largest, distance, entropy, learned, **found_strongest)


def quantised(x: Tensor) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Numbers of each head (H, …) as bytes, and what 255 stands for."""
    largest = x.flatten(1).amax(dim=1).clamp(min=1e-12)
    bytes_ = (255 * (x / largest.view(-1, *[1] * (x.dim() - 1))).sqrt()).round().to(torch.uint8)
    return bytes_.numpy(), largest.numpy().astype(np.float32)
