"""T5's relative position bias. Raffel et al. 2020, JMLR 21, https://arxiv.org/abs/1910.10683

    s_ij = q_i·k_j / √d + b_h[bucket(j−i)]                                                        (section 2.1)

b holds a learned number for each head and bucket of relative positions. Half of the buckets of a direction hold one
distance each. The distances of the others grow logarithmically up to `max_distance`, and the last one holds all beyond.
T5 does not divide its scores by √d: pass `scale=1` to compute its attention.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from headwise.attention.position_constants import position_constant
from headwise.attention.schemes.scheme import Scheme, check_positive
from headwise.attention.types import SchemeTerms


class T5Bias(Scheme):
    """T5's bias: a learned number for each head and bucket of relative positions, added to the scores.

    Args:
        heads: number of query heads.
        num_buckets: number of buckets, of both directions together.
        max_distance: distance from which on all keys of a direction share a bucket.
        bidirectional: use half of the buckets for keys after the query, as in T5's encoder. Otherwise all buckets are
            for keys before it, as in T5's decoder, and keys after it have the bias of distance 0.
        std: standard deviation of the initial numbers. With 0, training starts from attention without positions.

    Example:
        >>> import torch, headwise as hw
        >>> x = torch.randn(2, 4, 10, 16)
        >>> hw.attend(x, x, x, scheme=hw.T5Bias(heads=4)).shape
        torch.Size([2, 4, 10, 16])

    Raises:
        ValueError: heads < 1, too few buckets, an odd number of buckets with `bidirectional`, a `max_distance` that is
            not above the number of buckets with one distance, or a negative standard deviation.
    """

    heads: int

    def __init__(
        self,
        heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        std: float = 0.02,
    ) -> None:
        super().__init__()
        self.heads = check_positive("heads", heads)
        self.num_buckets = check_positive("num_buckets", num_buckets)
        self.max_distance = check_positive("max_distance", max_distance)
        self.bidirectional = bidirectional
        if num_buckets < (4 if bidirectional else 2):
            raise ValueError(f"num_buckets must be at least 4, or 2 without bidirectional, got {num_buckets}")
        if bidirectional and num_buckets % 2:
            raise ValueError(f"num_buckets must be even, for two directions, got {num_buckets}")
        num_exact = num_buckets // (4 if bidirectional else 2)
        if max_distance <= num_exact:
            raise ValueError(f"max_distance must be above {num_exact} with {num_buckets} buckets, got {max_distance}")
        if std < 0:
            raise ValueError(f"std must be 0 or more, got {std}")
        self.std = std
        self.bias = nn.Parameter(torch.empty(heads, num_buckets))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.bias.normal_(0.0, self.std)

    def forward(self, q: Tensor, k: Tensor, *, offset: int = 0) -> SchemeTerms:
        buckets = position_constant(
            t5_buckets_in_reach, self.num_buckets, self.max_distance, self.bidirectional, device=q.device
        )
        return SchemeTerms(q=q, k=k, relative_bias=embedding(buckets, self.bias.T).T, table_start=-self.max_distance)

    def buckets(self, positions: Tensor) -> Tensor:
        """Return the bucket of each relative position j − i."""
        return t5_buckets(positions, self.num_buckets, self.max_distance, bidirectional=self.bidirectional)

    def extra_repr(self) -> str:
        return (
            f"heads={self.heads}, num_buckets={self.num_buckets}, max_distance={self.max_distance}, "
            f"bidirectional={self.bidirectional}"
        )


def t5_buckets_in_reach(num_buckets: int, max_distance: int, bidirectional: bool, device: torch.device) -> Tensor:
    """Return the buckets of the relative positions from −max_distance to max_distance; see `T5Bias`."""
    positions = torch.arange(-max_distance, max_distance + 1, device=device)
    return t5_buckets(positions, num_buckets, max_distance, bidirectional=bidirectional)


def t5_buckets(positions: Tensor, num_buckets: int, max_distance: int, *, bidirectional: bool) -> Tensor:
    """Return the bucket of each relative position j − i; see `T5Bias` for the arguments."""
    if bidirectional:
        count = num_buckets // 2
        first, distances = count * (positions > 0), positions.abs()
    else:
        count = num_buckets
        first, distances = torch.zeros_like(positions), (-positions).clamp(min=0)
    num_exact = count // 2
    # float64 and the small number keep distances at the start of a bucket from being rounded into the one before.
    ratios = distances.clamp(min=num_exact).to(torch.float32 if positions.device.type == "mps" else torch.float64)
    steps = (ratios / num_exact).log() * ((count - num_exact) / math.log(max_distance / num_exact))
    logarithmic = (num_exact + (steps + 1e-6).long()).clamp(max=count - 1)
    return first + torch.where(distances < num_exact, distances, logarithmic)
