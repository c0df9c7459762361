"""[Next]: every token looks at the one after it. Wang et al. 2022, section 3.5"""

import torch
from torch import Tensor

from headwise.guidance.guide import Observed
from headwise.guidance.guides.pattern import PatternGuide


class Next(PatternGuide):
    """Push heads towards the next token; the last one has no target.

    Args:
        weight, share, layers, heads, schedule, name: see `Guide`.

    Example:
        >>> import headwise as hw
        >>> hw.Next(1.0, heads=[1])
        Next(weight=1, schedule='constant')
    """

    def target(self, observed: Observed) -> Tensor:
        n = observed.real.shape[1]
        return torch.ones(n, n).triu(1).tril(1)
