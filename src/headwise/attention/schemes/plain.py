"""Scaled dot-product attention. Vaswani et al. 2017, Attention Is All You Need, https://arxiv.org/abs/1706.03762

    s_ij = q_i·k_j / √d                                                                              (their eq. 1)

The scheme has no position terms. Models that use it add position embeddings to their input
(`headwise.attention.sinusoids`), or ignore positions.
"""

from torch import Tensor

from headwise.attention.schemes.scheme import Scheme
from headwise.attention.types import SchemeTerms


class Plain(Scheme):
    """Scaled dot-product attention without position terms.

    Example:
        >>> import torch, headwise as hw
        >>> x = torch.randn(2, 4, 10, 16)
        >>> hw.attend(x, x, x, scheme=hw.Plain()).shape
        torch.Size([2, 4, 10, 16])
    """

    def forward(self, q: Tensor, k: Tensor, *, offset: int = 0) -> SchemeTerms:
        return SchemeTerms(q=q, k=k)
