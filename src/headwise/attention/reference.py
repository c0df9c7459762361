"""The form of `problem.py` in plain differentiable PyTorch: exact, readable, N × M memory. Every other backend is
tested against it, and it is tested against loops over the papers' equations."""

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.attention.diagonals import collect, relative_positions, skew, spread, toeplitz
from headwise.attention.masking import allowed, lse_of_rows, softmax_of_rows
from headwise.attention.types import AttentionInputs, AttentionOutput


def attend(problem: AttentionInputs) -> AttentionOutput:
    terms, dtype = problem.terms, problem.compute_dtype
    _, heads, n, m = problem.shape
    q, relative_q = terms.content_q.to(dtype), terms.relative_q.to(dtype)
    k, v = (per_query_head(x.to(dtype), heads) for x in (terms.k, problem.v))
    positions = relative_positions(n, m, problem.offset, q.device)

    scores = q @ k.mT
    if terms.key_table is not None:
        rows, table = rows_of(terms.key_table, positions, terms.first), terms.key_table.to(dtype)
        if terms.covers:
            scores = scores + skew(relative_q @ table[:, rows].mT)
        else:
            scores = scores + spread(relative_q @ table.mT, toeplitz(rows, n))
    scores = scores * problem.scale

    f, distance = None, problem.distance()
    if distance is not None:
        f = toeplitz(distance.to(dtype)[:, positions.abs().clamp(max=distance.shape[-1] - 1)], n)
        if terms.adjust == "early-multiply":
            scores = (scores.relu() if terms.rectify else scores) * f
        elif terms.adjust == "early-add":
            scores = scores + f
    if problem.bias is not None:
        scores = scores + problem.bias.to(dtype)

    may_attend = allowed(
        n,
        m,
        first=problem.offset,
        causal=problem.causal,
        key_padding=problem.key_padding,
        query_padding=problem.query_padding,
        mask=problem.mask,
        device=q.device,
    )
    if may_attend is not None:
        scores = scores.masked_fill(~may_attend, -torch.inf)
    weights = softmax_of_rows(scores, can_be_empty=problem.masked)
    if f is not None and terms.adjust.startswith("late"):
        f = torch.where(scores == -torch.inf, 0.0, f)
        weights = weights * f if terms.adjust == "late-multiply" else weights + f

    dropped = F.dropout(weights, problem.dropout)
    output = dropped @ v
    if terms.value_table is not None:
        rows = toeplitz(rows_of(terms.value_table, positions, terms.first), n)
        output = output + collect(dropped, rows, terms.value_table.shape[1]) @ terms.value_table.to(dtype)
    return AttentionOutput(
        output.to(problem.out_dtype),
        received=weights.sum(dim=-2) if problem.want_received else None,
        weight_norms=weights.square().sum(dim=-1) if problem.want_squares else None,
        lse=lse_of_rows(scores) if problem.want_log_sums else None,
        weights=weights if problem.want_weights else None,
    )


def rows_of(table: Tensor, positions: Tensor, first: int) -> Tensor:
    """The table's row for every diagonal, clipped at the table's ends."""
    return (positions - first).clamp(0, table.shape[1] - 1)


def per_query_head(x: Tensor, heads: int) -> Tensor:
    """(B, G, M, d) → (B, H, M, d): each key head serves H/G query heads, as in grouped-query attention."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)
