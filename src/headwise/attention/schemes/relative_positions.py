"""Relative position representations. Shaw, Uszkoreit and Vaswani 2018, NAACL, https://arxiv.org/abs/1803.02155

    s_ij = q_i·(k_j + aᴷ_c) / √d,   o_i = Σ_j P_ij (v_j + aⱽ_c),   c = clip(j−i, −k, k)                (eq. 3, 4)

Two tables of 2k+1 learned vectors. Row r of a table belongs to the relative position r − k. Relative positions beyond
±k use the outermost rows, at any length.
"""

import torch
from torch import Tensor, nn

from headwise.attention.schemes.scheme import Scheme, check_positive
from headwise.attention.types import SchemeTerms


class RelativePositions(Scheme):
    """Learned vectors for clipped relative positions, added to keys and values.

    Args:
        heads: number of query heads.
        head_dim: width of a head.
        k: clipping distance, 0 or more; 16 in the paper's base model, 8 in its big model.
        keys: use a table for keys (aᴷ).
        values: use a table for values (aⱽ).
        per_head: separate vectors for each head (the paper's base model) instead of shared ones (its big model).
        std: standard deviation of the initial vectors, by default 1/√head_dim; the paper gives no initialization.
            With 0, training starts from attention without positions.

    Example:
        >>> import torch, headwise as hw
        >>> x = torch.randn(2, 4, 10, 16)
        >>> hw.attend(x, x, x, scheme=hw.RelativePositions(heads=4, head_dim=16, k=8)).shape
        torch.Size([2, 4, 10, 16])

    Raises:
        ValueError: heads or head_dim < 1, k < 0, or a negative standard deviation.
    """

    heads: int
    head_dim: int

    def __init__(
        self,
        heads: int,
        head_dim: int,
        k: int,
        *,
        keys: bool = True,
        values: bool = True,
        per_head: bool = False,
        std: float | None = None,
    ) -> None:
        super().__init__()
        self.heads = check_positive("heads", heads)
        self.head_dim = check_positive("head_dim", head_dim)
        if isinstance(k, bool) or not isinstance(k, int):
            raise TypeError(f"k must be an int, got {k!r}")
        if k < 0:
            raise ValueError(f"k, the clipping distance, must be 0 or more, got {k}")
        self.k = k
        self.per_head = per_head
        self.std = head_dim**-0.5 if std is None else std
        if self.std < 0:
            raise ValueError(f"std must be 0 or more, got {std}")
        shape = (heads if per_head else 1, 2 * k + 1, head_dim)
        self.key_table = nn.Parameter(torch.empty(shape)) if keys else None
        self.value_table = nn.Parameter(torch.empty(shape)) if values else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for table in (self.key_table, self.value_table):
            if table is not None:
                table.normal_(0.0, self.std)

    def forward(self, q: Tensor, k: Tensor, *, offset: int = 0) -> SchemeTerms:
        return SchemeTerms(q=q, k=k, key_table=self.key_table, value_table=self.value_table, table_start=-self.k)

    def extra_repr(self) -> str:
        tables = [name for name in ("key", "value") if getattr(self, f"{name}_table") is not None]
        return f"heads={self.heads}, head_dim={self.head_dim}, k={self.k}, tables={tables}, per_head={self.per_head}"
