"""[PMI]: tokens look at those they go together with. Wang et al. 2022, section 3.5

    PMI(a, b) = log( p(a, b) / (p(a) p(b)) ),   p: the share of training texts that hold a, or both

T is PMI, clipped at 0, rows divided by their sum; a token without any partner in its text has no target.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from math import log
from typing import Unpack

import torch
from torch import Tensor

from headwise.guides.guide import ForwardRecord, Options, Weight
from headwise.guides.pattern import PatternGuide, given_ids, rows_to_one


class MutualInformation(PatternGuide):
    """Push heads towards tokens that occur together more often than by chance in the training texts.

    Args:
        weight: see `Guide`.
        texts: the training texts' token ids, without padding; a text counts a token once.
        least: pairs in fewer texts than this are left out: their mutual information is an accident.
        ignore: ids that are no words, such as `tokenizer.all_special_ids`.
        share, layers, heads, schedule, name: see `Guide`.

    Raises:
        ValueError: no pair of tokens is in `least` texts.

    Example:
        >>> import headwise as hw
        >>> guide = hw.guides.MutualInformation(1.0, texts=[[5, 6], [5, 6], [7], [8]], heads=[0])
        >>> round(guide.of_pair(5, 6), 3)  # log( 1/2 / (1/2 · 1/2) )
        0.693
    """

    def __init__(
        self,
        weight: Weight = 1.0,
        *,
        texts: Iterable[Sequence[int]],
        least: int = 2,
        ignore: Sequence[int] = (),
        **options: Unpack[Options],
    ) -> None:
        super().__init__(weight, **options)
        count, single, pairs = 0, Counter[int](), Counter[tuple[int, int]]()
        ignored = set(ignore)
        for text in texts:
            tokens = sorted({int(token) for token in text} - ignored)
            count += 1
            single.update(tokens)
            pairs.update(combinations(tokens, 2))
        information = {
            pair: log(times * count / (single[pair[0]] * single[pair[1]]))
            for pair, times in pairs.items()
            if times >= least
        }
        information = {pair: x for pair, x in information.items() if x > 0}
        if not information:
            raise ValueError(f"no two tokens are together in {least} texts more often than by chance: too few texts")
        self._base = max(single) + 1
        keys, values = zip(*sorted((a * self._base + b, x) for (a, b), x in information.items()), strict=True)
        self._keys, self._values = torch.tensor(keys), torch.tensor(values)

    def target(self, observed: ForwardRecord) -> Tensor:
        ids = given_ids(observed.inputs, self.name)
        first, second = ids[:, :, None].expand(-1, -1, ids.shape[1]), ids[:, None, :].expand(-1, ids.shape[1], -1)
        information = self._look_up(torch.minimum(first, second), torch.maximum(first, second))
        return rows_to_one(information, observed.real)

    def of_pair(self, a: int, b: int) -> float:
        """The mutual information of two tokens, 0 where it is not above chance."""
        low, high = torch.tensor([min(a, b)]), torch.tensor([max(a, b)])
        return float(self._look_up(low, high))

    def _look_up(self, low: Tensor, high: Tensor) -> Tensor:
        if self._keys.device != low.device:
            self._keys, self._values = self._keys.to(low.device), self._values.to(low.device)
        wanted = low * self._base + high
        place = torch.searchsorted(self._keys, wanted).clamp(max=len(self._keys) - 1)
        known = (self._keys[place] == wanted) & (high < self._base) & (low != high)
        return torch.where(known, self._values[place], 0.0)
