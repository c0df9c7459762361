"""Pattern decorrelation (PDG). Wang et al. 2022, Paying More Attention to Self-attention, section 3.3

    L = ‖MᵀM − I‖²_F = ‖M Mᵀ‖²_F − 2 ‖M‖²_F + L                                                       (eq. 12)

M has a row for every head of every layer: what each token receives, scaled to length 1, so ‖M‖² is the number of rows.
The right-hand side needs no matrix of tokens by tokens; L counts real tokens.
"""

from typing import Unpack

from torch import Tensor

from headwise.guidance.guide import Guide, Observed, Options, Reduction, Weight, check_reduction


class PatternDecorrelation(Guide):
    """Make what tokens receive uncorrelated over heads.

    Args:
        weight, share, layers, heads, schedule, name: see `Guide`.
        reduction: `mean`, divided by the square of the number of heads, so that it does not depend on that; `paper`, as
            printed; `released`, as the authors' code, divided by the length.

    Example:
        >>> import headwise as hw
        >>> hw.PatternDecorrelation(0.001, reduction="paper")
        PatternDecorrelation(weight=0.001, schedule='constant')
    """

    def __init__(self, weight: Weight = 1.0, *, reduction: Reduction = "mean", **options: Unpack[Options]) -> None:
        super().__init__(weight, **options)
        self.reduction = check_reduction(reduction)

    def term(self, observed: Observed) -> Tensor:
        similar = observed.similarity(self.heads)[1]
        rows, length = similar.shape[1], observed.lengths
        squares = similar.square().sum(dim=(1, 2)) - 2 * rows * (length > 0) + length
        if self.reduction == "mean":
            squares = squares / rows**2
        elif self.reduction == "released":
            squares = squares / (length + (length == 0))
        return squares.mean()
