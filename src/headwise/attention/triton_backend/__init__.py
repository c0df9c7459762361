"""Fused Triton kernels for attention with position schemes, with the speed and memory of flash attention.

The kernels cover all schemes, except the other mappings and adjustments of distance-aware attention, and all options of
`attend`, except returning the attention weights. They are imported on first use, because a CPU does not need them.
"""

import torch

from headwise.attention.types import AttentionInputs, AttentionOutput

__all__ = ["attend", "why_unsupported"]

if torch.version.cuda or torch.version.hip:  # exported programs need the operators, which are registered on import
    import headwise.attention.triton_backend.operator  # noqa: F401


def attend(inputs: AttentionInputs) -> AttentionOutput:
    """Compute attention with the Triton kernels."""
    from headwise.attention.triton_backend import operator

    return operator.attend(inputs)


def why_unsupported(inputs: AttentionInputs) -> str | None:
    """Return why the kernels cannot compute this, or None if they can."""
    from headwise.attention.triton_backend import operator

    return operator.why_unsupported(inputs)
