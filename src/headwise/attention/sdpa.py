"""Plain attention by torch's own fused kernels, where these say the same thing."""

import torch.nn.functional as F

from headwise.attention.types import AttentionInputs, AttentionOutput


def why_unsupported(problem: AttentionInputs) -> str | None:
    """Why torch's kernels cannot solve this problem, or None if they can."""
    terms = problem.terms
    if any(x is not None for x in (terms.key_table, terms.value_table, terms.distance)):
        return "the scheme adds terms of its own to scores or values"
    if problem.want_received or problem.want_squares or problem.want_log_sums or problem.want_weights:
        return "they return neither received attention nor weights, nor weight_norms or log-sums of these"
    if problem.mask is not None or problem.bias is not None:
        return "an arbitrary mask or bias may leave a row without a key"
    if problem.causal and (problem.offset or problem.key_padding is not None):
        return "they know causal only from the top left and without padding"
    return None


def attend(problem: AttentionInputs) -> AttentionOutput:
    dtype = problem.out_dtype
    padding = problem.key_padding
    output = F.scaled_dot_product_attention(
        problem.terms.q.to(dtype),
        problem.terms.k.to(dtype),
        problem.v.to(dtype),
        attn_mask=None if padding is None else padding[:, None, None, :],
        dropout_p=problem.dropout,
        is_causal=problem.causal,
        scale=problem.scale,
        enable_gqa=problem.terms.k.shape[1] != problem.terms.q.shape[1],
    )
    if padding is not None:
        output = output.masked_fill(~padding.any(dim=1)[:, None, None, None], 0.0)
    if problem.query_padding is not None:
        output = output.masked_fill(~problem.query_padding[:, None, :, None], 0.0)
    return AttentionOutput(output)
