"""Reference backend: the equations of `types.py` in plain differentiable PyTorch.

It stores whole N × M maps. All other backends are tested against it. It is tested against implementations of the
papers' equations as loops over pairs.

Axes: B batch, H query heads, G key heads, N queries, M keys, E width of q and k, D width of v, R table rows,
L = N+M diagonals.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.attention.diagonals import (
    clip_to_rows,
    gather_rows,
    relative_positions,
    scatter_add_rows,
    skew,
    toeplitz,
)
from headwise.attention.masking import allowed_pairs, masked_logsumexp, masked_softmax
from headwise.attention.types import AttentionInputs, AttentionOutput


def attend(inputs: AttentionInputs) -> AttentionOutput:
    """Compute attention with whole maps."""
    terms, dtype = inputs.terms, inputs.compute_dtype
    _, heads, n, m = inputs.shape
    q_BHNE, relative_q_BHNE = terms.content_q.to(dtype), terms.relative_q.to(dtype)
    k_BHME, v_BHMD = (repeat_key_heads(x.to(dtype), heads) for x in (terms.k, inputs.v))
    positions_L = relative_positions(n, m, inputs.offset, inputs.v.device)

    # x: content and relative scores
    scores_BHNM = q_BHNE @ k_BHME.mT
    if terms.key_table is not None:
        table_HRE = terms.key_table.to(dtype)
        rows_L = clip_to_rows(positions_L, terms.table_start, table_HRE.shape[1])
        if terms.is_full_table:
            scores_BHNM = scores_BHNM + skew(relative_q_BHNE @ table_HRE[:, rows_L].mT)
        else:
            scores_BHNM = scores_BHNM + gather_rows(relative_q_BHNE @ table_HRE.mT, toeplitz(rows_L, n))
    if terms.query_table is not None:
        table_HRE = terms.query_table.to(dtype)
        transposed_L = relative_positions(m, n, -inputs.offset, inputs.v.device)  # i − j of the transposed map
        rows_L = clip_to_rows(-transposed_L, terms.table_start, table_HRE.shape[1])
        scores_BHNM = scores_BHNM + skew(k_BHME @ table_HRE[:, rows_L].mT).mT
    scores_BHNM = scores_BHNM * inputs.scale

    # s: scores adjusted by distance and bias, and masked
    f_HNM = distance_coefficients(inputs, positions_L)
    if f_HNM is not None and terms.adjust == "early-multiply":
        scores_BHNM = (scores_BHNM.relu() if terms.rectify else scores_BHNM) * f_HNM
    elif f_HNM is not None and terms.adjust == "early-add":
        scores_BHNM = scores_BHNM + f_HNM
    if terms.relative_bias is not None:
        bias_HR = terms.relative_bias.to(dtype)
        rows_L = clip_to_rows(positions_L, terms.table_start, bias_HR.shape[1])
        scores_BHNM = scores_BHNM + toeplitz(bias_HR[:, rows_L], n)
    if inputs.softcap is not None:
        scores_BHNM = inputs.softcap * torch.tanh(scores_BHNM / inputs.softcap)
    if inputs.bias is not None:
        scores_BHNM = scores_BHNM + inputs.bias.to(dtype)
    allowed_BHNM = allowed_pairs(
        n,
        m,
        query_position=inputs.offset,
        causal=inputs.causal,
        window=inputs.window,
        key_padding=inputs.key_padding,
        query_padding=inputs.query_padding,
        mask=inputs.mask,
        device=inputs.v.device,
    )
    if allowed_BHNM is not None:
        scores_BHNM = scores_BHNM.masked_fill(~allowed_BHNM, -torch.inf)

    # W: weights
    if inputs.sinks is None:
        logits = scores_BHNM
        weights_BHNM = masked_softmax(scores_BHNM, may_have_empty_rows=inputs.may_have_empty_rows)
    else:
        logits = torch.cat([scores_BHNM, sink_scores(inputs)], dim=-1)
        weights_BHNM = masked_softmax(logits, may_have_empty_rows=inputs.may_have_empty_rows)[..., :-1]
    if f_HNM is not None and terms.adjust.startswith("late"):
        f_BHNM = torch.where(scores_BHNM == -torch.inf, 0.0, f_HNM)
        weights_BHNM = weights_BHNM * f_BHNM if terms.adjust == "late-multiply" else weights_BHNM + f_BHNM

    # o: output
    dropped_BHNM = F.dropout(weights_BHNM, inputs.dropout)
    output_BHND = dropped_BHNM @ v_BHMD
    if terms.value_table is not None:
        num_rows = terms.value_table.shape[1]
        rows_NM = toeplitz(clip_to_rows(positions_L, terms.table_start, num_rows), n)
        dropped_BHNR = scatter_add_rows(dropped_BHNM, rows_NM, num_rows)
        output_BHND = output_BHND + dropped_BHNR @ terms.value_table.to(dtype)
    return AttentionOutput(
        output_BHND.to(inputs.out_dtype),
        received=weights_BHNM.sum(dim=-2) if inputs.want_received else None,
        weight_norms=weights_BHNM.square().sum(dim=-1) if inputs.want_weight_norms else None,
        lse=masked_logsumexp(logits) if inputs.want_lse else None,
        weights=weights_BHNM if inputs.want_weights else None,
    )


def distance_coefficients(inputs: AttentionInputs, positions_L: Tensor) -> Tensor | None:
    """Compute the distance coefficient f of each pair, (H or 1, N, M). Return None for schemes without f."""
    coefficients = inputs.distance_coefficients()
    if coefficients is None:
        return None
    distances_L = positions_L.abs().clamp(max=coefficients.shape[-1] - 1)
    return toeplitz(coefficients.to(inputs.compute_dtype)[:, distances_L], inputs.shape[2])


def sink_scores(inputs: AttentionInputs) -> Tensor:
    """Return the score of each query's sink, (B, H, N, 1); −∞ for padding queries."""
    assert inputs.sinks is not None
    batch, heads, n, _ = inputs.shape
    scores_BHN1 = inputs.sinks.to(inputs.compute_dtype)[:, None, None].expand(batch, heads, n, 1)
    if inputs.query_padding is not None:
        scores_BHN1 = scores_BHN1.masked_fill(~inputs.query_padding[:, None, :, None], -torch.inf)
    return scores_BHN1


def repeat_key_heads(x: Tensor, heads: int) -> Tensor:
    """Repeat (B, G, …) to (B, H, …): each key head is shared by H/G query heads (grouped-query attention)."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)
