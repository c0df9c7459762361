"""Encoding of long texts as sentences of words, the input of hierarchical models.

A text is split at line breaks and after . ! ? … (with closing quotes and brackets) if white space follows. Sentences
that are too long are split, and sentences beyond the maximum number are dropped.
"""

import re
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

SENTENCE_END = re.compile(r"""\s*\n\s*|(?<=[.!?…])\s+|(?<=[.!?…]["'”’)\]])\s+""")


def encode_document(text: str, tokenizer: PreTrainedTokenizerBase, *, hierarchy: tuple[int, int]) -> list[list[int]]:
    """Encode a text as a list of word ids per sentence.

    Args:
        text: The document.
        tokenizer: A tokenizer; special tokens are not added.
        hierarchy: Maximum words per sentence and sentences per document, as in `HeadwiseConfig`.

    Example:
        >>> from headwise.models import build_tokenizer, encode_document
        >>> text = "It works. Well, mostly!"
        >>> encode_document(text, build_tokenizer(["it works well , mostly . !"]), hierarchy=(3, 5))
        [[7, 10, 6], [9, 5, 8], [4]]
    """
    max_words, max_sentences = hierarchy
    sentences: list[list[int]] = []
    for sentence in filter(None, SENTENCE_END.split(text.strip())):
        ids = tokenizer(sentence, add_special_tokens=False, verbose=False)["input_ids"]
        sentences += [ids[start : start + max_words] for start in range(0, len(ids), max_words)]
        if len(sentences) >= max_sentences:
            break
    return sentences[:max_sentences]


def pad_documents(documents: Sequence[Sequence[Sequence[int]]], pad_token_id: int = 0) -> dict[str, Tensor]:
    """Pad documents to input_ids and attention_mask of shape (B, sentences, words).

    Example:
        >>> from headwise.models import pad_documents
        >>> pad_documents([[[5, 6], [7]], [[8]]])["input_ids"].tolist()
        [[[5, 6], [7, 0]], [[8, 0], [0, 0]]]
    """
    num_sentences = max([1, *map(len, documents)])
    num_words = max((len(sentence) for document in documents for sentence in document), default=1)
    ids = torch.full((len(documents), num_sentences, num_words), pad_token_id)
    mask = torch.zeros_like(ids)
    for row, document in enumerate(documents):
        for column, sentence in enumerate(document):
            ids[row, column, : len(sentence)] = torch.tensor(sentence)
            mask[row, column, : len(sentence)] = 1
    return {"input_ids": ids, "attention_mask": mask}
