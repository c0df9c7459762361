"""[First]: every token looks at the first one. Wang et al. 2022, section 3.5"""

import torch
from torch import Tensor

from headwise.guides.guide import ForwardRecord
from headwise.guides.pattern import TokenGuide


class First(TokenGuide):
    """Push heads towards the first token, [CLS] in BERT.

    Args:
        weight, share, layers, heads, schedule, name: see `Guide`.

    Example:
        >>> import headwise as hw
        >>> hw.guides.First(1.0, heads=[0], schedule="linear")
        First(weight=1, schedule='linear')
    """

    def target(self, observed: ForwardRecord) -> Tensor:
        n = observed.real.shape[1]
        first = observed.real.int().argmax(dim=1)  # padding may be on the left
        return torch.nn.functional.one_hot(first, n).bool()
