"""What one layer did in one forward pass, as guides read it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.integrations.deferred import DeferredReceived

#: What guides may need besides what tokens receive. Maps, `weights`, cost N × N memory a head; `states` are values
#: and heads' outputs, which come for free, but not with a model's own maps.
RecordField = Literal["weight_norms", "neighbours", "weights", "states"]


@dataclass(kw_only=True, eq=False)  # not frozen, which takes four times as long to make
class LayerRecord:
    """One layer's part of a forward pass. All that is about weights is about those before dropout.

    Attributes:
        q: queries (B, H, N, d).
        k, v: keys and values (B, G, N, d); G key heads, H a multiple of G.
        output: each head's output (B, H, N, d).
        receiving: what each token receives from all real tokens, (B, H, N), or what will tell it; see `received`.
        weight_norms: the sum of the squares of each token's weights, (B, H, N), if somebody needs it.
        lse: the logarithm of the sum of the exponentials of each token's scores, (B, H, N), if somebody needs
            neighbours and a score is scale · q·k and nothing else.
        weights: the maps (B, H, N, N), if somebody needs them, or neighbours that log-sums do not give.
        padding: which tokens are real, (B, N); None if all are.
        scale: what q·k is multiplied by.
        causal: whether tokens see none that come after them.
        mask: which pairs may attend, broadcastable to (B, H, N, N); None if all real ones may.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    output: Tensor
    receiving: Tensor | DeferredReceived
    scale: float
    causal: bool = False
    padding: Tensor | None = None
    mask: Tensor | None = None
    weight_norms: Tensor | None = None
    lse: Tensor | None = None
    weights: Tensor | None = None

    @property
    def received(self) -> Tensor:
        """What each token receives from all real tokens, (B, H, N)."""
        return self.receiving if isinstance(self.receiving, Tensor) else self.receiving.found()

    @cached_property
    def real(self) -> Tensor:
        """Which tokens are no padding, (B, N)."""
        if self.padding is not None:
            return self.padding
        return torch.ones(self.q.shape[0], self.q.shape[2], dtype=torch.bool, device=self.q.device)

    def sees(self, places: int) -> Tensor:
        """Whether each real token may look at a real one so many places after it, (B, H or 1, N)."""
        n = self.real.shape[1]
        neighbour = torch.arange(n, device=self.real.device) + places
        there = (neighbour >= 0) & (neighbour < (0 if self.causal and places > 0 else n))
        seen = (self.real & self.real.roll(-places, dims=1) & there)[:, None]
        return seen if self.mask is None else seen & diagonal(self.mask.expand(-1, -1, n, n), places)

    def given(self, places: int) -> Tensor:
        """What each token gives to the one so many places after it, (B, H, N); 0 where it does not see it."""
        if self.lse is None:
            assert self.weights is not None
            return diagonal(self.weights, places)
        # In the precision that attention ran in, which autocast may have lowered.
        q, k = (x.to(self.output.dtype).to(self.lse.dtype) for x in (self.q, self.k))
        k = k.roll(-places, dims=2).repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        hidden = ~self.sees(places)
        scores = (self.scale * (q * k).sum(dim=-1)).masked_fill(hidden, -torch.inf)
        return torch.exp(scores - self.lse.masked_fill(hidden, 0.0))


def diagonal(x: Tensor, places: int) -> Tensor:
    """Of (…, N, N) each row's element so many places after the main diagonal's, (…, N); 0 where there is none."""
    return F.pad(x.diagonal(places, dim1=-2, dim2=-1), (max(0, -places), max(0, places)))
