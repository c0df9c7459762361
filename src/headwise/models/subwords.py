"""The subword tokeniser of translators: byte-level BPE, which says every text and gives it back as it was."""

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
BYTES = 256


def build_subwords(texts: Iterable[str], *, size: int = 32_768, max_tokens: int = 512) -> PreTrainedTokenizerFast:
    """A tokeniser of at most `size` subwords, learnt from some texts: of the training split, of both languages.

    Every text has a place in it, byte by byte if need be, and is told again exactly. A text ends with `</s>`.

    Args:
        texts: what to learn from.
        size: the most subwords, all bytes and special tokens included; few texts give fewer.
        max_tokens: where texts are cut when truncation is asked for.

    Raises:
        UserError: no texts, or a size without room for all bytes.

    Example:
        >>> from headwise.models import build_subwords
        >>> tokenizer = build_subwords(["a cat sat", "eine Katze saß"], size=300)
        >>> ids = tokenizer("Eine  Katze, 🐈!")["input_ids"]
        >>> tokenizer.decode(ids, skip_special_tokens=True)
        'Eine  Katze, 🐈!'
    """
    least = BYTES + len(SPECIAL)
    if size < least:
        raise UserError(f"a vocabulary needs at least {least} entries, for all bytes and special tokens; got {size}")
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
    if tokenizer.get_vocab_size() == least:
        raise UserError("no texts to learn subwords from")
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
