"""Pattern decorrelation (PDG)."""

from typing import Unpack

from torch import Tensor

from headwise.guides.guide import ForwardRecord, Guide, GuideOptions, Reduction, Weight, check_reduction


class PatternDecorrelation(Guide):
    """Decorrelate the attention that tokens receive from different heads (PDG).

        L = ‖MᵀM − I‖²_F = ‖M Mᵀ‖²_F − 2 ‖M‖²_F + N

    where M has a row for every head of all guided layers, the attention that each token receives, scaled to length 1,
    and N is the number of real tokens. The right-hand side needs no N × N matrix.

    Reference:
        Wang et al. 2022, Paying More Attention to Self-attention, section 2.3.2, eq. 12.

    Args:
        weight, share, layers, heads, schedule, name: see `Guide`.
        reduction: `mean`, divided by the squared number of heads; `paper`, as printed; `released`, divided by N, as in
            the authors' code.

    Advice:
        Use `weight="auto"`: a suitable fixed weight depends on the model, the reduction and the number of heads.

    Example:
        >>> import headwise as hw
        >>> hw.guides.PatternDecorrelation(0.001, reduction="paper")
        PatternDecorrelation(weight=0.001, schedule='constant')
    """

    def __init__(self, weight: Weight = 1.0, *, reduction: Reduction = "mean", **options: Unpack[GuideOptions]) -> None:
        super().__init__(weight, **options)
        self.reduction = check_reduction(reduction)

    def term(self, record: ForwardRecord) -> Tensor:
        similarity = record.head_similarity(self.heads)
        length = record.real.sum(dim=1)
        # ‖M‖² has no gradient, because each row has length 1 or 0.
        row_norms = similarity.detach().diagonal(dim1=1, dim2=2).sum(dim=1)
        norms = similarity.square().sum(dim=(1, 2)) - 2 * row_norms + length
        if self.reduction == "mean":
            norms = norms / similarity.shape[1] ** 2
        elif self.reduction == "released":
            norms = norms / length.clamp(min=1)
        return norms.mean()
