"""[Delim]: every token looks at the separators. Wang et al. 2022, section 3.5"""

from typing import Unpack

from torch import Tensor

from headwise.guides.guide import ForwardRecord, Options, Weight
from headwise.guides.pattern import TokenGuide, tokens_among


class Delimiter(TokenGuide):
    """Push heads towards separator tokens, [SEP] in BERT.

    Args:
        weight: see `Guide`.
        tokens: the separators' ids, such as `[tokenizer.sep_token_id]`.
        share, layers, heads, schedule, name: see `Guide`.

    Example:
        >>> import headwise as hw
        >>> hw.guides.Delimiter(1.0, tokens=[102], heads=[3])
        Delimiter(weight=1, schedule='constant')
    """

    def __init__(self, weight: Weight = 1.0, *, tokens: list[int], **options: Unpack[Options]) -> None:
        super().__init__(weight, **options)
        self.tokens = tuple(tokens)

    def target(self, observed: ForwardRecord) -> Tensor:
        return tokens_among(observed.inputs, self.tokens, self.name)
