"""Fused Triton kernels for attention with position schemes, with the speed and memory of flash attention.

The kernels cover all schemes, except the other mappings and adjustments of distance-aware attention, and all options of
`attend`, except returning the attention weights.
"""

from headwise.attention.triton_backend.operator import attend, why_unsupported

__all__ = ["attend", "why_unsupported"]
