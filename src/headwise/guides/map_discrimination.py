"""Map discrimination (MDG)."""

from typing import Unpack

import torch
from torch import Tensor

from headwise.guides.guide import ForwardRecord, Guide, GuideOptions, Reduction, Weight, check_reduction


class MapDiscrimination(Guide):
    """Make every head distinguishable from all others by the attention that tokens receive from it (MDG).

        L = Σ_i [ log Σ_j exp(m_i·m_j / τ) − m_i·m_i / τ ]

    where m_i is the attention that each token receives from head i, scaled to length 1, and i and j run over all heads
    of all guided layers.

    Reference:
        Wang et al. 2022, Paying More Attention to Self-attention, section 2.3.1, eq. 10 and 11. As printed, the formula
        sums over the other axis, which gives a constant. This class implements what the text of the paper describes.

    Args:
        weight, share, layers, heads, schedule, name: see `Guide`.
        reduction: `mean` over heads; `paper`, the sum over heads, with τ = 1; `released`, the mean over heads with
            τ = 2, as in the authors' code.
        temperature: τ; by default that of the reduction.

    Advice:
        Use `weight="auto"`: a suitable fixed weight depends on the model, the reduction and the number of heads.

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
        **options: Unpack[GuideOptions],
    ) -> None:
        super().__init__(weight, **options)
        self.reduction = check_reduction(reduction)
        self.temperature = (2.0 if reduction == "released" else 1.0) if temperature is None else temperature
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")

    def term(self, record: ForwardRecord) -> Tensor:
        similarity = record.head_similarity(self.heads)
        if self.temperature != 1.0:
            similarity = similarity / self.temperature
        mean = -torch.log_softmax(similarity, dim=-1).diagonal(dim1=-2, dim2=-1).mean()
        return mean * similarity.shape[1] if self.reduction == "paper" else mean
