"""Map discrimination (MDG). Wang et al. 2022, Paying More Attention to Self-attention, section 3.2

    L = Σ_i [ log Σ_j exp(m_i·m_j / τ) − m_i·m_i / τ ]                                             (eq. 10, 11)

m_i is what each token receives from head i, scaled to length 1: every head of every layer is told from all others. The
paper's formula sums over the other axis as printed, which is constant; the text around it says what we take.
"""

from typing import Unpack

import torch
from torch import Tensor

from headwise.guides.guide import ForwardRecord, Guide, Options, Reduction, Weight, check_reduction


class MapDiscrimination(Guide):
    """Push every head away from all others.

    Args:
        weight, share, layers, heads, schedule, name: see `Guide`.
        reduction: `mean` over heads; `paper`, a sum over heads, τ = 1; `released`, as the authors' code, a mean over
            heads, τ = 2.
        temperature: τ; by default the reduction's.

    Example:
        >>> import headwise as hw
        >>> hw.guides.MapDiscrimination(0.01)
        MapDiscrimination(weight=0.01, schedule='constant')
    """

    def __init__(
        self,
        weight: Weight = 1.0,
        *,
        reduction: Reduction = "mean",
        temperature: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(weight, **options)
        self.reduction = check_reduction(reduction)
        self.temperature = (2.0 if reduction == "released" else 1.0) if temperature is None else temperature
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")

    def term(self, observed: ForwardRecord) -> Tensor:
        similar = observed.similarity(self.heads)
        if self.temperature != 1.0:
            similar = similar / self.temperature
        mean = -torch.log_softmax(similar, dim=-1).diagonal(dim1=-2, dim2=-1).mean()
        return mean * similar.shape[1] if self.reduction == "paper" else mean
