"""SDPA backend: `torch.nn.functional.scaled_dot_product_attention`, for schemes that it can express."""

import torch.nn.functional as F

from headwise.attention.types import AttentionInputs, AttentionOutput


def why_unsupported(inputs: AttentionInputs) -> str | None:
    """Return why SDPA cannot compute these inputs, or None if it can."""
    terms = inputs.terms
    tables = (terms.key_table, terms.query_table, terms.value_table, terms.relative_bias)
    if any(x is not None for x in (*tables, terms.coefficients)):
        return "SDPA cannot add the scheme's position terms"
    if inputs.want_received or inputs.want_weight_norms or inputs.want_lse or inputs.want_weights:
        return "SDPA returns no received attention, weight norms, log-sum-exps or weights"
    if inputs.window is not None or inputs.softcap is not None or inputs.sinks is not None:
        return "SDPA has no window, softcap or sinks"
    if inputs.mask is not None or inputs.bias is not None:
        return "a mask or bias may leave rows without any key"
    if inputs.causal and (inputs.offset or inputs.key_padding is not None):
        return "SDPA supports causal attention only without offset and padding"
    return None


def attend(inputs: AttentionInputs) -> AttentionOutput:
    """Compute attention with torch's fused kernels."""
    dtype = inputs.out_dtype
    padding_BM = inputs.key_padding
    output_BHND = F.scaled_dot_product_attention(
        inputs.terms.q.to(dtype),
        inputs.terms.k.to(dtype),
        inputs.v.to(dtype),
        attn_mask=None if padding_BM is None else padding_BM[:, None, None, :],
        dropout_p=inputs.dropout,
        is_causal=inputs.causal,
        scale=inputs.scale,
        enable_gqa=inputs.terms.k.shape[1] != inputs.terms.q.shape[1],
    )
    if padding_BM is not None:
        output_BHND = output_BHND.masked_fill(~padding_BM.any(dim=1)[:, None, None, None], 0.0)
    if inputs.query_padding is not None:
        output_BHND = output_BHND.masked_fill(~inputs.query_padding[:, None, :, None], 0.0)
    return AttentionOutput(output_BHND)
