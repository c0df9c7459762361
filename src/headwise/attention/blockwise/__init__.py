"""Blockwise backend: the equations of `types.py` for one block of queries at a time, without N × M tensors.

Each block fits into the processor's cache. The backward pass recomputes the weights of each block. Sums run in a fixed
order, so that two runs on a CPU give identical bits.
"""

from headwise.attention.blockwise.operator import attend

__all__ = ["attend"]
