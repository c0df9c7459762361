"""[Prev]: every token looks at the one before it. Wang et al. 2022, section 3.5"""

import torch
from torch import Tensor

from headwise.guidance.guide import Observed
from headwise.guidance.guides.pattern import PatternGuide


class Previous(PatternGuide):
    """Push heads towards the previous token; the first one has no target.

    Args:
        weight, share, layers, heads, schedule, name: see `Guide`.

    Example:
        >>> import headwise as hw
        >>> hw.Previous(1.0, heads=[2])
        Previous(weight=1, schedule='constant')
    """

    def target(self, observed: Observed) -> Tensor:
        n = observed.real.shape[1]
        return torch.ones(n, n).tril(-1).triu(-1)
