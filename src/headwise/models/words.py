"""The word tokeniser of models that start from word vectors.

The rule: a text is brought to Unicode's composed form (NFC) with plain apostrophes, lower-cased unless told otherwise,
and cut into runs of letters and digits, the English endings n't 's 're 've 'll 'd 'm (as GloVe has them), and single
other characters; white space only separates.

A vocabulary comes from training texts alone. Every other word is [UNK].
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
    """How often each word occurs.

    Example:
        >>> from headwise.models import count_words
        >>> count_words(["Don't panic!", "Panic."])
        Counter({'panic': 2, 'do': 1, "n't": 1, '!': 1, '.': 1})
    """
    normalise, cut = _normaliser(lowercase).normalize_str, _cutter().pre_tokenize_str
    return Counter(word for text in texts for word, _ in cut(normalise(text)))


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
    """A tokeniser with the words of some texts as its vocabulary, the most frequent first.

    A pair of texts becomes [CLS] a [SEP] b [SEP]. A single text stays as it is, since additive pooling needs no special
    tokens and they would stand between words and their distances; `framed` makes it [CLS] a [SEP], for `cls` pooling.

    Args:
        texts: the training texts, or their words' counts (`count_words`).
        size: the most words to keep, special tokens included; by default all.
        min_count: how often a word must occur to be kept.
        known: words that are kept however rare, such as those with word vectors.
        lowercase: whether upper and lower case are one.
        framed: whether a single text gets [CLS] and [SEP] too.
        max_tokens: where texts are cut when truncation is asked for.

    Returns:
        A tokeniser to call, save and load like any other of transformers.

    Raises:
        UserError: texts without a word, or sizes that are not possible.

    Example:
        >>> from headwise.models import build_tokenizer
        >>> tokenizer = build_tokenizer(["the cat sat", "the cat"], min_count=2)
        >>> tokenizer.tokenize("The dog sat; the cat."), tokenizer("the cat")["input_ids"]
        (['the', '[UNK]', '[UNK]', '[UNK]', 'the', 'cat', '[UNK]'], [5, 4])
    """
    if isinstance(texts, str):
        raise UserError("texts must be several texts, not one string")
    if size is not None and size <= len(SPECIAL):
        raise UserError(f"size must leave room for words beside {', '.join(SPECIAL)}, got {size}")
    if max_tokens < 1:
        raise UserError(f"max_tokens must be at least 1, got {max_tokens}")
    counts = texts if isinstance(texts, Mapping) else count_words(texts, lowercase=lowercase)
    words = sorted(
        (word for word, count in counts.items() if count >= min_count or word in known),
        key=lambda word: (-counts[word], word),
    )
    if not words:
        raise UserError(f"no word is left for the vocabulary: {len(counts):,} words, none of them {min_count} times")
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *words][:size])}

    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=UNK))
    tokenizer.normalizer = _normaliser(lowercase)
    tokenizer.pre_tokenizer = _cutter()
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


def _normaliser(lowercase: bool) -> Normalizer:
    steps: Iterator[Normalizer] = filter(None, [NFC(), Replace("’", "'"), Lowercase() if lowercase else None])
    return Sequence(list(steps))


def _cutter() -> PreTokenizer:
    return Split(Regex(WORD), behavior="removed", invert=True)
