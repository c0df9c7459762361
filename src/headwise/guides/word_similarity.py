"""[WordSim]: words look at similar words. Wang et al. 2022, section 3.5

T is the similarity of two words, 0 for a word and itself, rows divided by their sum. By default it is Wu and Palmer's
in WordNet, which needs the package nltk and its WordNet data. Only whole-word tokens have a target.
"""

from collections.abc import Callable
from typing import Any, Unpack

import torch
from torch import Tensor

from headwise.guides.guide import ForwardRecord, Options, Weight
from headwise.guides.pattern import PatternGuide, given_ids, rows_to_one


class WordSimilarity(PatternGuide):
    """Push heads towards words of a similar meaning.

    Args:
        weight: see `Guide`.
        tokenizer: the model's, to know the words behind ids.
        similarity: of two words, 0 to 1; WordNet's by default.
        least: similarities below this are 0: most words are a little similar.
        share, layers, heads, schedule, name: see `Guide`.

    Raises:
        ImportError: similarity is WordNet's, and nltk is not installed.
    """

    def __init__(
        self,
        weight: Weight = 1.0,
        *,
        tokenizer: Any,
        similarity: Callable[[str, str], float] | None = None,
        least: float = 0.5,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(weight, **options)
        self.similarity = wordnet_similarity() if similarity is None else similarity
        self.least = least
        special = set(tokenizer.all_special_ids)
        self._words = {
            number: token.removeprefix("Ġ").removeprefix("▁").lower()
            for token, number in tokenizer.get_vocab().items()
            if number not in special and token.removeprefix("Ġ").removeprefix("▁").isalpha()
        }
        self._known: dict[tuple[int, int], float] = {}

    def target(self, observed: ForwardRecord) -> Tensor:
        ids = given_ids(observed.inputs, self.name)
        unique, place = ids.unique(return_inverse=True)
        numbers = unique.tolist()
        table = torch.tensor([[self._of_pair(a, b) for b in numbers] for a in numbers])
        similar: Tensor = table.to(ids.device)[place[:, :, None], place[:, None, :]]
        return rows_to_one(similar, observed.real)

    def _of_pair(self, a: int, b: int) -> float:
        pair = (min(a, b), max(a, b))
        if a == b or a not in self._words or b not in self._words:
            return 0.0
        if pair not in self._known:
            found = self.similarity(self._words[pair[0]], self._words[pair[1]])
            self._known[pair] = found if found >= self.least else 0.0
        return self._known[pair]


def wordnet_similarity() -> Callable[[str, str], float]:
    """Wu and Palmer's similarity of two words' most frequent senses in WordNet, 0 where there is none."""
    try:
        from nltk.corpus import wordnet
    except ImportError as error:
        raise ImportError("WordSimilarity needs WordNet: pip install nltk, then nltk.download('wordnet')") from error

    def similarity(a: str, b: str) -> float:
        senses = wordnet.synsets(a)[:1], wordnet.synsets(b)[:1]
        if not all(senses):
            return 0.0
        return float(senses[0][0].wup_similarity(senses[1][0]) or 0.0)

    return similarity
