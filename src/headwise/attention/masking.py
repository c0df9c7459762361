"""Which key may be attended from where, for a block of rows, and the softmax that survives a row with no key."""

import math

import torch
from torch import Tensor


def allowed(
    n: int,
    m: int,
    *,
    first: int,
    causal: bool,
    key_padding: Tensor | None,
    query_padding: Tensor | None,
    mask: Tensor | None,
    device: torch.device,
) -> Tensor | None:
    """The pairs that may attend, broadcastable to (B, H, n, m), or None if all may.

    `first` is the position of the block's first query; the masks are already cut to the block.
    """
    parts = []
    if causal:
        positions = torch.arange(first, first + n, device=device)
        parts.append(torch.arange(m, device=device) <= positions[:, None])
    if key_padding is not None:
        parts.append(key_padding[:, None, None, :])
    if query_padding is not None:
        parts.append(query_padding[:, None, :, None])
    if mask is not None:
        parts.append(mask)
    if not parts:
        return None
    together = parts[0]
    for part in parts[1:]:
        together = together & part
    return together


def softmax_of_rows(scores: Tensor, *, can_be_empty: bool) -> Tensor:
    """Softmax over keys; a row whose scores are all −∞ gives zeros, and zero gradient."""
    if not can_be_empty:
        return torch.softmax(scores, dim=-1)
    empty = (scores == -torch.inf).all(dim=-1, keepdim=True)
    return torch.softmax(scores.masked_fill(empty, 0.0), dim=-1).masked_fill(empty, 0.0)


def lse_of_rows(scores: Tensor) -> Tensor:
    """log Σ exp over keys; a row whose scores are all −∞ gives −∞, and zero gradient."""
    empty = (scores == -torch.inf).all(dim=-1)
    return scores.masked_fill(empty[..., None], 0.0).logsumexp(dim=-1).masked_fill(empty, -torch.inf)


def natural(lse: Tensor) -> Tensor:
    """Log-sums in units of log 2, where a row without a key has +∞, as natural ones, where it has −∞."""
    return torch.where(lse == torch.inf, -torch.inf, lse * math.log(2))
