"""Guides towards tokens with high pointwise mutual information."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from math import log
from typing import Unpack

import torch
from torch import Tensor

from headwise.guides.guide import ForwardRecord, GuideOptions, Weight
from headwise.guides.patterns import PatternGuide, get_input_ids


class MutualInformation(PatternGuide):
    """Guide heads to tokens that occur together in the training texts more often than by chance.

        PMI(a, b) = log( p(a, b) / (p(a) p(b)) )

    where p is the fraction of training texts that contain a, b, or both. The target T is PMI, clipped at 0, with rows
    divided by their sum. The term is `L = (P − T)²`, as a mean over pairs. Tokens without a partner are excluded.

    Reference:
        Wang et al. 2022, Paying More Attention to Self-attention, section 3.5, pattern [PMI].

    Args:
        weight: see `Guide`.
        texts: the token ids of the training texts, without padding. A text counts each token once.
        min_count: pairs that occur in fewer texts are ignored.
        ignore: ids to ignore, such as `tokenizer.all_special_ids`.
        share, layers, heads, schedule, name: see `Guide`.

    Raises:
        ValueError: no pair of tokens occurs in `min_count` texts.

    Advice:
        The guide reads the attention maps: N × N memory per head.

    Example:
        >>> import headwise as hw
        >>> guide = hw.guides.MutualInformation(1.0, texts=[[5, 6], [5, 6], [7], [8]], heads=[0])
        >>> round(guide.pmi(5, 6), 3)  # log( 1/2 / (1/2 · 1/2) )
        0.693
    """

    normalizes_rows = True

    def __init__(
        self,
        weight: Weight = 1.0,
        *,
        texts: Iterable[Sequence[int]],
        min_count: int = 2,
        ignore: Sequence[int] = (),
        **options: Unpack[GuideOptions],
    ) -> None:
        super().__init__(weight, **options)
        num_texts, token_counts, pair_counts = 0, Counter[int](), Counter[tuple[int, int]]()
        ignored = set(ignore)
        for text in texts:
            tokens = sorted({int(token) for token in text} - ignored)
            num_texts += 1
            token_counts.update(tokens)
            pair_counts.update(combinations(tokens, 2))
        pmi = {
            (a, b): log(count * num_texts / (token_counts[a] * token_counts[b]))
            for (a, b), count in pair_counts.items()
            if count >= min_count
        }
        pmi = {pair: value for pair, value in pmi.items() if value > 0}
        if not pmi:
            raise ValueError(
                f"no two tokens occur together in {min_count} texts more often than by chance: pass more texts"
            )
        # A pair (a, b) with a < b has the key a · _base + b in a sorted table.
        self._base = max(token_counts) + 1
        keys, values = zip(*sorted((a * self._base + b, value) for (a, b), value in pmi.items()), strict=True)
        self._keys, self._values = torch.tensor(keys), torch.tensor(values)

    def target(self, record: ForwardRecord) -> Tensor:
        ids = get_input_ids(record.inputs, self.name)
        n = ids.shape[1]
        query_ids, key_ids = ids[:, :, None].expand(-1, -1, n), ids[:, None, :].expand(-1, n, -1)
        return self._look_up(torch.minimum(query_ids, key_ids), torch.maximum(query_ids, key_ids))

    def pmi(self, a: int, b: int) -> float:
        """Return the pointwise mutual information of two tokens, clipped at 0."""
        low, high = torch.tensor([min(a, b)]), torch.tensor([max(a, b)])
        return float(self._look_up(low, high))

    def _look_up(self, low: Tensor, high: Tensor) -> Tensor:
        if self._keys.device != low.device:
            self._keys, self._values = self._keys.to(low.device), self._values.to(low.device)
        keys = low * self._base + high
        index = torch.searchsorted(self._keys, keys).clamp(max=len(self._keys) - 1)
        is_known = (self._keys[index] == keys) & (high < self._base) & (low != high)
        return torch.where(is_known, self._values[index], 0.0)
