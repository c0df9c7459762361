"""Masks for a block of queries, and softmax and log-sum-exp that accept fully masked rows."""

import math

import torch
from torch import Tensor


def allowed_pairs(
    n: int,
    m: int,
    *,
    query_position: int,
    causal: bool,
    window: tuple[int, int] | None = None,
    key_padding: Tensor | None,
    query_padding: Tensor | None,
    mask: Tensor | None,
    device: torch.device,
) -> Tensor | None:
    """Return the pairs that may attend, broadcastable to (B, H, n, m), or None if all may.

    Args:
        n: number of queries of the block.
        m: number of keys of the block.
        query_position: position of the block's first query, relative to that of its first key.
        causal: whether queries attend only to keys up to their own position.
        window: how many positions before and after its own a query attends to; −1 means all.
        key_padding: (B, m), True for real keys.
        query_padding: (B, n), True for real queries.
        mask: broadcastable to (B, H, n, m), True where attention is allowed.
        device: device of the result.
    """
    masks = []
    if causal or window is not None:
        left, right = (-1, 0) if window is None else window
        query_positions = torch.arange(query_position, query_position + n, device=device)[:, None]
        key_positions = torch.arange(m, device=device)
        if right >= 0:
            masks.append(key_positions <= query_positions + right)
        if left >= 0:
            masks.append(key_positions >= query_positions - left)
    if key_padding is not None:
        masks.append(key_padding[:, None, None, :])
    if query_padding is not None:
        masks.append(query_padding[:, None, :, None])
    if mask is not None:
        masks.append(mask)
    if not masks:
        return None
    allowed = masks[0]
    for other in masks[1:]:
        allowed = allowed & other
    return allowed


def masked_softmax(scores: Tensor, *, may_have_empty_rows: bool) -> Tensor:
    """Softmax over keys. Rows with only −∞ give zeros and zero gradient."""
    if not may_have_empty_rows:
        return torch.softmax(scores, dim=-1)
    empty = (scores == -torch.inf).all(dim=-1, keepdim=True)
    return torch.softmax(scores.masked_fill(empty, 0.0), dim=-1).masked_fill(empty, 0.0)


def masked_logsumexp(scores: Tensor) -> Tensor:
    """Log-sum-exp over keys. Rows with only −∞ give −∞ and zero gradient."""
    empty = (scores == -torch.inf).all(dim=-1)
    return scores.masked_fill(empty[..., None], 0.0).logsumexp(dim=-1).masked_fill(empty, -torch.inf)


def natural_lse(lse: Tensor) -> Tensor:
    """Convert base-2 log-sum-exps, +∞ for rows without any key, to natural ones, −∞ for such rows."""
    return torch.where(lse == torch.inf, -torch.inf, lse * math.log(2))
