"""[Dependency]: words look at those they depend on, and at those that depend on them. Wang et al. 2022, section 3.5

T is 1 for every pair of word pieces whose words are joined by an arc of the dependency parse, rows divided by their
sum.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from headwise.guides.guide import ForwardRecord
from headwise.guides.pattern import PatternGuide, rows_to_one

#: What a batch holds for each word piece: its word's number and that of the word it depends on, −1 for none.
WORDS, HEADS = "words", "word_heads"


class Dependency(PatternGuide):
    """Push heads along the arcs of a dependency parse, which each batch holds; `dependency_arcs` makes it with spaCy.

    Args:
        weight, share, layers, heads, schedule, name: see `Guide`.

    Example:
        >>> import headwise as hw
        >>> hw.guides.Dependency(1.0, heads=[5])
        Dependency(weight=1, schedule='constant')
    """

    keys = (WORDS, HEADS)

    def target(self, observed: ForwardRecord) -> Tensor:
        words, heads = (observed.inputs.get(key) for key in self.keys)
        if not isinstance(words, Tensor) or not isinstance(heads, Tensor):
            raise ValueError(
                f"{self.name} needs {WORDS!r} and {HEADS!r} in every batch, (batch, length) each: "
                "headwise.guides.dependency_arcs(text, tokenizer, nlp) gives them"
            )
        depends = (heads[:, :, None] == words[:, None, :]) & (heads >= 0)[:, :, None]
        return rows_to_one((depends | depends.mT).float(), observed.real)


def dependency_arcs(text: str, tokenizer: Any, nlp: Callable[[str], Any], **options: Any) -> dict[str, Any]:
    """Tokenise a text for `Dependency`: the tokenizer's own output, with each word piece's word and its head.

    Args:
        text: one text.
        tokenizer: a fast Hugging Face tokenizer.
        nlp: a spaCy pipeline with a parser, such as `spacy.load("en_core_web_sm")`.
        options: as the tokenizer's, such as `truncation=True`.

    Returns:
        What the tokenizer returns, and `words` and `word_heads`, a list of numbers each, −1 for special tokens; pad
        them with −1.
    """
    encoded = tokenizer(text, return_offsets_mapping=True, **options)
    word_at: dict[int, int] = {}
    heads: list[int] = []
    for number, word in enumerate(nlp(text)):
        word_at |= dict.fromkeys(range(word.idx, word.idx + len(word)), number)
        heads.append(-1 if word.head.i == word.i else word.head.i)  # the root is its own head
    offsets = encoded.pop("offset_mapping")
    words = [word_at.get(start, -1) if end > start else -1 for start, end in offsets]
    return {**encoded, WORDS: words, HEADS: [heads[word] if word >= 0 else -1 for word in words]}
