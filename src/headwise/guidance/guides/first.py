"""[First]: every token looks at the first one. Wang et al. 2022, section 3.5"""

import torch
from torch import Tensor

from headwise.guidance.guide import Observed
from headwise.guidance.guides.pattern import TokenGuide


class First(TokenGuide):
    """Push heads towards the first token, [CLS] in BERT.

    Args:
        weight, share, layers, heads, schedule, name: see `Guide`.

    Example:
        >>> import headwise as hw
        >>> hw.First(1.0, heads=[0], schedule="linear")
        First(weight=1, schedule='linear')
    """

    def target(self, observed: Observed) -> Tensor:
        n = observed.real.shape[1]
        first = observed.real.int().argmax(dim=1)  # padding may be on the left
        return torch.nn.functional.one_hot(first, n).bool()
