"""Attention with linear biases. Press, Smith and Lewis 2022, ALiBi, ICLR, https://arxiv.org/abs/2108.12409

    s_ij = q_i·k_j / √d − m_h · |i−j|,   m_h = 2^(−8h/H) for head h = 1 … H                          (section 3)

Their models are causal. Encoders use the same bias in both directions. For a number of heads that is no power of two,
the slopes are those of the authors' code: the slopes of the next lower power of two, then every other slope of the next
higher one.
"""

import math

import torch
from torch import Tensor, nn

from headwise.attention.schemes.scheme import Scheme, check_positive
from headwise.attention.types import SchemeTerms


class Alibi(Scheme):
    """ALiBi: a bias that falls linearly with the distance, with another slope for each head.

    Args:
        heads: number of query heads.
        learned: train the slopes. In the paper, they are constant.

    Example:
        >>> import torch, headwise as hw
        >>> x = torch.randn(2, 4, 10, 16)
        >>> hw.attend(x, x, x, scheme=hw.Alibi(heads=4), causal=True).shape
        torch.Size([2, 4, 10, 16])

    Raises:
        ValueError: heads < 1.
    """

    heads: int

    def __init__(self, heads: int, *, learned: bool = False) -> None:
        super().__init__()
        self.heads = check_positive("heads", heads)
        self.learned = learned
        self.slopes = nn.Parameter(torch.empty(heads), requires_grad=learned)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.slopes.copy_(-torch.tensor(_slopes(self.heads)))

    def forward(self, q: Tensor, k: Tensor, *, offset: int = 0) -> SchemeTerms:
        return SchemeTerms(q=q, k=k, slopes=self.slopes)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, learned={self.learned}"


def _slopes(heads: int) -> list[float]:
    """Return the paper's slopes m_h."""
    lower = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-8 * (h + 1) / lower) for h in range(lower)]
    return slopes + [2.0 ** (-4 * (2 * h + 1) / lower) for h in range(heads - lower)]
