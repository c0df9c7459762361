"""Guides towards words of similar meaning."""

from collections.abc import Callable
from typing import Any, Unpack

import torch
from torch import Tensor

from headwise.guides.guide import ForwardRecord, GuideOptions, Weight
from headwise.guides.patterns import PatternGuide, get_input_ids


class WordSimilarity(PatternGuide):
    """Guide heads to words of similar meaning.

    The target T is the similarity of two words, 0 for a word and itself, with rows divided by their sum. The term is
    `L = (P − T)²`, as a mean over pairs. Only tokens that are whole words have a target.

    Reference:
        Wang et al. 2022, Paying More Attention to Self-attention, section 3.5, pattern [WordSim]. Wu and Palmer 1994,
        Verb Semantics and Lexical Selection, for the default similarity.

    Args:
        weight: see `Guide`.
        tokenizer: the model's tokenizer.
        similarity: returns the similarity of two words, 0 to 1. Wu and Palmer's in WordNet by default.
        min_similarity: lower similarities count as 0.
        share, layers, heads, schedule, name: see `Guide`.

    Raises:
        ImportError: the default similarity was chosen and nltk is not installed.

    Advice:
        The default similarity needs the package nltk and its WordNet data. The guide reads the attention maps: N × N
        memory per head.

    Example:
        >>> import headwise as hw
        >>> from transformers import BertTokenizerFast
        >>> tokenizer = BertTokenizerFast(vocab={"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "film": 4, "movie": 5})
        >>> hw.guides.WordSimilarity(1.0, tokenizer=tokenizer, similarity=lambda a, b: 0.8, heads=[6])
        WordSimilarity(weight=1, schedule='constant')
    """

    normalizes_rows = True

    def __init__(
        self,
        weight: Weight = 1.0,
        *,
        tokenizer: Any,
        similarity: Callable[[str, str], float] | None = None,
        min_similarity: float = 0.5,
        **options: Unpack[GuideOptions],
    ) -> None:
        super().__init__(weight, **options)
        self.similarity = wordnet_similarity() if similarity is None else similarity
        self.min_similarity = min_similarity
        special_ids = set(tokenizer.all_special_ids)
        words = {i: token.removeprefix("Ġ").removeprefix("▁") for token, i in tokenizer.get_vocab().items()}
        self._words = {i: word.lower() for i, word in words.items() if i not in special_ids and word.isalpha()}
        self._cache: dict[tuple[int, int], float] = {}

    def target(self, record: ForwardRecord) -> Tensor:
        ids = get_input_ids(record.inputs, self.name)
        unique_ids, index = ids.unique(return_inverse=True)
        id_list = unique_ids.tolist()
        similarities = torch.tensor([[self._pair_similarity(a, b) for b in id_list] for a in id_list])
        target: Tensor = similarities.to(ids.device)[index[:, :, None], index[:, None, :]]
        return target

    def _pair_similarity(self, a: int, b: int) -> float:
        if a == b or a not in self._words or b not in self._words:
            return 0.0
        pair = (min(a, b), max(a, b))
        if pair not in self._cache:
            similarity = self.similarity(self._words[pair[0]], self._words[pair[1]])
            self._cache[pair] = similarity if similarity >= self.min_similarity else 0.0
        return self._cache[pair]


def wordnet_similarity() -> Callable[[str, str], float]:
    """Return Wu and Palmer's similarity of the most frequent senses of two words in WordNet; 0 for unknown words."""
    try:
        from nltk.corpus import wordnet
    except ImportError as error:
        raise ImportError("WordSimilarity needs WordNet: pip install nltk, then nltk.download('wordnet')") from error

    def similarity(a: str, b: str) -> float:
        senses_a, senses_b = wordnet.synsets(a)[:1], wordnet.synsets(b)[:1]
        if not senses_a or not senses_b:
            return 0.0
        return float(senses_a[0].wup_similarity(senses_b[0]) or 0.0)

    return similarity
