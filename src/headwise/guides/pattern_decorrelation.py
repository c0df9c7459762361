"""Pattern decorrelation (PDG). Wang et al. 2022, Paying More Attention to Self-attention, section 3.3

    L = ‖MᵀM − I‖²_F = ‖M Mᵀ‖²_F − 2 ‖M‖²_F + L                                                       (eq. 12)

M has a row for every head of every layer: what each token receives, scaled to length 1. The right-hand side needs no
matrix of tokens by tokens; L counts real tokens.
"""

from typing import Unpack

from torch import Tensor

from headwise.guides.guide import ForwardRecord, Guide, Options, Reduction, Weight, check_reduction


class PatternDecorrelation(Guide):
    """Make what tokens receive uncorrelated over heads.

    Args:
        weight, share, layers, heads, schedule, name: see `Guide`.
        reduction: `mean`, divided by the square of the number of heads, so that it does not depend on that; `paper`, as
            printed; `released`, as the authors' code, divided by the length.

    Example:
        >>> import headwise as hw
        >>> hw.guides.PatternDecorrelation(0.001, reduction="paper")
        PatternDecorrelation(weight=0.001, schedule='constant')
    """

    def __init__(self, weight: Weight = 1.0, *, reduction: Reduction = "mean", **options: Unpack[Options]) -> None:
        super().__init__(weight, **options)
        self.reduction = check_reduction(reduction)

    def term(self, observed: ForwardRecord) -> Tensor:
        similar = observed.similarity(self.heads)
        length = observed.real.sum(dim=1)
        rows = similar.detach().diagonal(dim1=1, dim2=2).sum(dim=1)  # ‖M‖²; it has no gradient, as each is 1, or 0
        weight_norms = similar.square().sum(dim=(1, 2)) - 2 * rows + length
        if self.reduction == "mean":
            weight_norms = weight_norms / similar.shape[1] ** 2
        elif self.reduction == "released":
            weight_norms = weight_norms / length.clamp(min=1)
        return weight_norms.mean()
