"""Long texts as sentences of words, the input of a hierarchy.

The rule: a text is cut at line breaks, and after . ! ? … (and the quotes and brackets that close there) where white
space follows. A sentence of more words than there is room for goes on as another one; what comes after the last
sentence that there is room for is dropped.
"""

import re
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

SENTENCE_END = re.compile(r"""\s*\n\s*|(?<=[.!?…])\s+|(?<=[.!?…]["'”’)\]])\s+""")


def encode_document(text: str, tokenizer: PreTrainedTokenizerBase, *, hierarchy: tuple[int, int]) -> list[list[int]]:
    """A text's word ids, a list for each sentence.

    Args:
        text: the document.
        tokenizer: any; special tokens are left out.
        hierarchy: most words in a sentence, most sentences in the document, as in `HeadwiseConfig`.

    Example:
        >>> from headwise.models import build_tokenizer, encode_document
        >>> text = "It works. Well, mostly!"
        >>> encode_document(text, build_tokenizer(["it works well , mostly . !"]), hierarchy=(3, 5))
        [[7, 10, 6], [9, 5, 8], [4]]
    """
    words, sentences = hierarchy
    parts: list[list[int]] = []
    for sentence in filter(None, SENTENCE_END.split(text.strip())):
        ids = tokenizer(sentence, add_special_tokens=False, verbose=False)["input_ids"]
        parts += [ids[start : start + words] for start in range(0, len(ids), words)]
        if len(parts) >= sentences:
            break
    return parts[:sentences]


def pad_documents(documents: Sequence[Sequence[Sequence[int]]], pad_token_id: int = 0) -> dict[str, Tensor]:
    """Documents of sentences of ids as input_ids and attention_mask, (B, sentences, words), no larger than needed.

    Example:
        >>> from headwise.models import pad_documents
        >>> pad_documents([[[5, 6], [7]], [[8]]])["input_ids"].tolist()
        [[[5, 6], [7, 0]], [[8, 0], [0, 0]]]
    """
    sentences = max([1, *map(len, documents)])
    words = max((len(sentence) for document in documents for sentence in document), default=1)
    ids = torch.full((len(documents), sentences, words), pad_token_id)
    mask = torch.zeros_like(ids)
    for row, document in enumerate(documents):
        for at, sentence in enumerate(document):
            ids[row, at, : len(sentence)] = torch.tensor(sentence)
            mask[row, at, : len(sentence)] = 1
    return {"input_ids": ids, "attention_mask": mask}
