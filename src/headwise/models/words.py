"""The word tokenizer of models that use word vectors.

Texts are normalized to Unicode NFC with straight apostrophes and, by default, lower-cased. They are split into
sequences of letters and digits, the English endings n't 's 're 've 'll 'd 'm (as in GloVe), and other single
characters. White space is dropped. The vocabulary is built from the training texts; other words become [UNK].
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import NFC, Lowercase, Normalizer, Replace, Sequence
from tokenizers.pre_tokenizers import PreTokenizer, Split
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from headwise.errors import UserError

PAD, UNK, CLS, SEP = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORD = r"\w+?(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|\w+|[^\w\s]"


def count_words(texts: Iterable[str], *, lowercase: bool = True) -> Counter[str]:
    """Count the words of texts.

    Example:
        >>> from headwise.models import count_words
        >>> count_words(["Don't panic!", "Panic."])
        Counter({'panic': 2, 'do': 1, "n't": 1, '!': 1, '.': 1})
    """
    normalize, split = _normalizer(lowercase).normalize_str, _splitter().pre_tokenize_str
    return Counter(word for text in texts for word, _ in split(normalize(text)))


def build_tokenizer(
    texts: Iterable[str] | Mapping[str, int],
    *,
    size: int | None = None,
    min_count: int = 1,
    known: Collection[str] = (),
    lowercase: bool = True,
    framed: bool = False,
    max_tokens: int = 512,
) -> PreTrainedTokenizerFast:
    """Build a tokenizer whose vocabulary is the words of texts, the most frequent first.

    A pair of texts is encoded as [CLS] a [SEP] b [SEP]. A single text gets no special tokens, because additive pooling
    does not need them and they would change distances; with `framed` it is encoded as [CLS] a [SEP], for `cls` pooling.

    Args:
        texts: Training texts, or word counts (`count_words`).
        size: Maximum size of the vocabulary, including special tokens (default: all words).
        min_count: Minimum count of a word in the vocabulary.
        known: Words that are kept regardless of their count, such as words with vectors.
        lowercase: Convert texts to lower case.
        framed: Add [CLS] and [SEP] to single texts, too.
        max_tokens: Maximum length for truncation.

    Returns:
        A tokenizer of transformers.

    Raises:
        UserError: There is no word, or a size is invalid.

    Example:
        >>> from headwise.models import build_tokenizer
        >>> tokenizer = build_tokenizer(["the cat sat", "the cat"], min_count=2)
        >>> tokenizer.tokenize("The dog sat; the cat."), tokenizer("the cat")["input_ids"]
        (['the', '[UNK]', '[UNK]', '[UNK]', 'the', 'cat', '[UNK]'], [5, 4])
    """
    if isinstance(texts, str):
        raise UserError("texts must be an iterable of texts, got one string")
    if size is not None and size <= len(SPECIAL):
        raise UserError(f"size must be larger than the number of special tokens ({len(SPECIAL)}), got {size}")
    if max_tokens < 1:
        raise UserError(f"max_tokens must be at least 1, got {max_tokens}")
    counts = texts if isinstance(texts, Mapping) else count_words(texts, lowercase=lowercase)
    words = sorted(
        (word for word, count in counts.items() if count >= min_count or word in known),
        key=lambda word: (-counts[word], word),
    )
    if not words:
        raise UserError(f"the vocabulary is empty: none of {len(counts):,} words occurs {min_count} times")
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *words][:size])}

    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=UNK))
    tokenizer.normalizer = _normalizer(lowercase)
    tokenizer.pre_tokenizer = _splitter()
    tokenizer.post_processor = TemplateProcessing(
        single=f"{CLS} $A {SEP}" if framed else "$A",
        pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
        special_tokens=[(token, vocabulary[token]) for token in (CLS, SEP)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNK,
        cls_token=CLS,
        sep_token=SEP,
        model_max_length=max_tokens,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def _normalizer(lowercase: bool) -> Normalizer:
    steps: Iterator[Normalizer] = filter(None, [NFC(), Replace("’", "'"), Lowercase() if lowercase else None])
    return Sequence(list(steps))


def _splitter() -> PreTokenizer:
    return Split(Regex(WORD), behavior="removed", invert=True)
