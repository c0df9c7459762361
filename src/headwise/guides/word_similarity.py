"""Guides towards words of similar meaning."""

import io
import os
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from headwise.guides.guide import ForwardRecord, GuideOptions, Weight
from headwise.guides.patterns import PatternGuide, get_input_ids

#: Where packages of Linux distributions install WordNet's files.
WORDNET_DIRS = ("/usr/share/wordnet", "/usr/share/wordnet/dict")


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
        ImportError: the default similarity was chosen and nltk or WordNet is not installed.

    Advice:
        The default similarity needs the package nltk and WordNet, see `load_wordnet`. The guide reads the attention
        maps: N × N memory per head.

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
        queries, keys = ids[:, :, None], ids[:, None, :]
        size = int(ids.max()) + 1
        pairs, index = (torch.minimum(queries, keys) * size + torch.maximum(queries, keys)).unique(return_inverse=True)
        similarities = torch.tensor([self._pair_similarity(divmod(pair, size)) for pair in pairs.tolist()])
        return similarities.to(ids.device)[index]

    def _pair_similarity(self, pair: tuple[int, int]) -> float:
        if pair[0] == pair[1] or pair[0] not in self._words or pair[1] not in self._words:
            return 0.0
        if pair not in self._cache:
            similarity = self.similarity(self._words[pair[0]], self._words[pair[1]])
            self._cache[pair] = similarity if similarity >= self.min_similarity else 0.0
        return self._cache[pair]


def wordnet_similarity() -> Callable[[str, str], float]:
    """Return Wu and Palmer's similarity of the most frequent senses of two words in WordNet; 0 for unknown words."""
    wordnet = load_wordnet()

    @cache
    def find_sense(word: str) -> Any:
        return next(iter(wordnet.synsets(word)), None)

    def similarity(a: str, b: str) -> float:
        sense_a, sense_b = find_sense(a), find_sense(b)
        if sense_a is None or sense_b is None:
            return 0.0
        return float(sense_a.wup_similarity(sense_b) or 0.0)

    return similarity


def load_wordnet() -> Any:
    """Return WordNet: the data of nltk, or the files of Princeton's release.

    Princeton's files are searched in the directory that the environment variable WNSEARCHDIR names, as by WordNet's own
    programs, and where Debian's package wordnet-base installs them.

    Raises:
        ImportError: nltk or the files are missing.
    """
    message = (
        "WordSimilarity needs nltk (pip install 'headwise[knowledge]') and WordNet: nltk.download('wordnet'), Debian's "
        "package wordnet-base, or the directory of its files in the environment variable WNSEARCHDIR"
    )
    try:
        import nltk
        from nltk.corpus import wordnet
        from nltk.corpus.reader import WordNetCorpusReader
    except ImportError as error:
        raise ImportError(message) from error
    try:
        wordnet.ensure_loaded()
        return wordnet
    except LookupError:
        pass

    class PrincetonReader(WordNetCorpusReader):
        """Reads Princeton's files. Debian's package lacks the names of topics, which similarities do not need."""

        def open(self, file: str) -> Any:
            if file == "lexnames" and not Path(self.root, file).is_file():
                return io.StringIO("".join(f"{number:02} topic.{number} 1\n" for number in range(45)))
            return super().open(file)

        def map_wn(self, version: str = "wordnet") -> None:
            """Return no map between versions of WordNet, which is for other languages."""

    directories = [os.environ.get("WNSEARCHDIR"), *WORDNET_DIRS]
    found = next((x for x in directories if x is not None and Path(x, "data.noun").is_file()), None)
    if found is None:
        raise ImportError(message)
    nltk.data.path.append(found)  # nltk reads no other directories
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # other languages are not available
        return PrincetonReader(found, omw_reader=None)
