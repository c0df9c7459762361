"""Packing: the tokens of a padded batch, concatenated without padding.

Axes: B batch, N tokens including padding, T real tokens.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PackedTokens:
    """The real tokens of a padded batch.

    Attributes:
        index: the indices of the real tokens in the flattened batch, (T,).
        cu_seqlens: cumulative numbers of real tokens, (B+1,).
        shape: B and N.

    Example:
        >>> import torch
        >>> packed = PackedTokens.from_mask(torch.tensor([[True, True, False], [True, False, False]]))
        >>> packed.cu_seqlens.tolist()
        [0, 2, 3]
        >>> packed.pack(torch.tensor([[5, 6, 0], [7, 0, 0]])).tolist()
        [[5, 6, 7]]
        >>> packed.unpack(torch.tensor([[5, 6, 7]])).tolist()
        [[5, 6, 0], [7, 0, 0]]
    """

    index: Tensor
    cu_seqlens: Tensor
    shape: tuple[int, int]

    @classmethod
    def from_mask(cls, mask: Tensor) -> Self | None:
        """Return the tokens for which the mask (B, N) is nonzero, or None if there is no padding or no token."""
        mask = mask.bool()
        index = mask.flatten().nonzero().squeeze(1)
        if len(index) in (0, mask.numel()):
            return None
        lengths = mask.sum(dim=1, dtype=torch.int32)
        cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        return cls(index, cu_seqlens, (mask.shape[0], mask.shape[1]))

    def pack(self, x: Tensor) -> Tensor:
        """Return the real tokens of x (B or 1, N, …) as (1, T, …)."""
        return x.expand(self.shape[0], *x.shape[1:]).flatten(0, 1).index_select(0, self.index)[None]

    def unpack(self, x: Tensor) -> Tensor:
        """Return x (1, T, …) as (B, N, …), with zeros for padding."""
        batch, n = self.shape
        flat = x.new_zeros(batch * n, *x.shape[2:]).index_copy(0, self.index, x[0])
        return flat.view(batch, n, *x.shape[2:])
