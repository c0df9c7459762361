"""Attention with learnable distance as fused Triton kernels: the speed and memory of flash attention.

The kernels cover plain attention (and so TENER, which is plain attention of twice the width), distance-aware attention
with the learnable sigmoid, and received attention.
"""

from headwise.attention.triton.operator import attend, obstacle

__all__ = ["attend", "obstacle"]
