"""The subword tokenizer of translation models: byte-level BPE, which encodes every text without loss."""

from collections.abc import Iterable

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from headwise.errors import UserError

PAD, BOS, EOS = SPECIAL = ("<pad>", "<s>", "</s>")
NUM_BYTES = 256


def build_subwords(texts: Iterable[str], *, size: int = 32_768, max_tokens: int = 512) -> PreTrainedTokenizerFast:
    """Train a tokenizer of at most `size` subwords on texts of both languages.

    Every text can be encoded, byte by byte if necessary, and decoded exactly. Encoded texts end with `</s>`.

    Args:
        texts: Texts of the training split.
        size: Maximum number of subwords, including all bytes and special tokens.
        max_tokens: Maximum length for truncation.

    Raises:
        UserError: There are no texts, or the size is too small for all bytes.

    Example:
        >>> from headwise.models import build_subwords
        >>> tokenizer = build_subwords(["a cat sat", "eine Katze saß"], size=300)
        >>> ids = tokenizer("Eine  Katze, 🐈!")["input_ids"]
        >>> tokenizer.decode(ids, skip_special_tokens=True)
        'Eine  Katze, 🐈!'
    """
    min_size = NUM_BYTES + len(SPECIAL)
    if size < min_size:
        raise UserError(f"a vocabulary needs at least {min_size} entries for all bytes and special tokens, got {size}")
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() == min_size:
        raise UserError("there are no texts to train the tokenizer on")
    tokenizer.post_processor = TemplateProcessing(
        single=f"$A {EOS}", pair=f"$A {EOS} $B {EOS}", special_tokens=[(EOS, SPECIAL.index(EOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        model_max_length=max_tokens,
        padding_side="right",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )
