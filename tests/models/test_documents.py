"""Long texts are cut into sentences by the rule, and nothing is lost before the limits."""

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from headwise.models import build_tokenizer, encode_document, pad_documents
from tests.models.tiny_models import classifier

TEXT = 'Good. "Really good!" I said…\n\nIt costs 3.5 dollars, e.g. here (or there.) Why?  Because'


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer([TEXT], framed=True)


def shown(tokenizer: PreTrainedTokenizerFast, ids: list[list[int]]) -> list[str]:
    return [" ".join(tokenizer.convert_ids_to_tokens(sentence)) for sentence in ids]


def test_sentences(tokenizer: PreTrainedTokenizerFast) -> None:
    assert shown(tokenizer, encode_document(TEXT, tokenizer, hierarchy=(50, 50))) == [
        "good .",
        '" really good ! "',
        "i said …",
        "it costs 3 . 5 dollars , e . g .",
        "here ( or there . )",
        "why ?",
        "because",
    ]


def test_limits(tokenizer: PreTrainedTokenizerFast) -> None:
    cut = encode_document(TEXT, tokenizer, hierarchy=(4, 4))
    assert shown(tokenizer, cut) == ["good .", '" really good !', '"', "i said …"]
    everything = encode_document(TEXT, tokenizer, hierarchy=(4, 50))
    assert [word for sentence in everything for word in sentence] == tokenizer(TEXT, add_special_tokens=False)[
        "input_ids"
    ]
    assert encode_document(" \n ", tokenizer, hierarchy=(4, 4)) == []


def test_padded_and_classified(tokenizer: PreTrainedTokenizerFast) -> None:
    model = classifier(hierarchy=(4, 8)).eval()
    documents = [encode_document(text, tokenizer, hierarchy=(4, 8)) for text in (TEXT, "", "Good. Why?")]
    batch = pad_documents(documents)
    assert batch["input_ids"].shape == (3, 8, 4)
    logits = model(**batch).logits
    for row, document in enumerate(documents):
        torch.testing.assert_close(logits[row], model(**pad_documents([document])).logits[0])
