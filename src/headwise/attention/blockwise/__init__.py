"""The form of `problem.py` a block of rows at a time, forward and backward, without an N × M tensor.

What the reference does in many passes over memory happens here block by block in the processor's cache; the backward
pass computes each block's weights again. Sums run in a fixed order, so two runs on a CPU give the same bits.
"""

from headwise.attention.blockwise.operator import attend

__all__ = ["attend"]
