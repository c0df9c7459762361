"""Attention with learnable distance as fused Triton kernels: the speed and memory of flash attention.

The kernels cover all schemes but other mappings and places of distance-aware attention's f, and every option of
`attend` but whole maps.
"""

from headwise.attention.triton_backend.operator import attend, why_unsupported

__all__ = ["attend", "why_unsupported"]
