"""The tokeniser cuts by its rule, knows training words only, and is saved and loaded like any other."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from headwise.errors import UserError
from headwise.models import build_tokenizer, count_words

TRAIN = ["The cat didn't see the dog.", "The dog's cat; the END"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't panic!", ["do", "n't", "panic", "!"]),
        ("It’s John's, we've won", ["it", "'s", "john", "'s", ",", "we", "'ve", "won"]),
        ("they 'll ca n't 'twas", ["they", "'ll", "ca", "n't", "'", "twas"]),
        ("3.5-year (U.S.)...", ["3", ".", "5", "-", "year", "(", "u", ".", "s", ".", ")", ".", ".", "."]),
        ("cafe\u0301  na\u00efve\t東京\n\nx_1", ["caf\u00e9", "na\u00efve", "東京", "x_1"]),
        ("  ", []),
    ],
)
def test_the_rule(text: str, words: list[str]) -> None:
    assert list(count_words([text]).elements()) == list(Counter(words).elements())
    assert build_tokenizer(["any"]).backend_tokenizer.encode(text).tokens == ["[UNK]"] * len(words)
    if words:
        assert build_tokenizer([text]).tokenize(text) == words


def test_the_vocabulary_is_the_training_texts_most_frequent_first() -> None:
    tokenizer = build_tokenizer(TRAIN)
    words = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    assert words[:8] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "dog", "'s"]
    assert tokenizer.pad_token_id == 0
    assert tokenizer.tokenize("the horse") == ["the", "[UNK]"]
    assert set(build_tokenizer(TRAIN, min_count=2).get_vocab()) - set(tokenizer.all_special_tokens) == {
        "the",
        "cat",
        "dog",
    }
    assert "end" in build_tokenizer(TRAIN, min_count=2, known={"end", "horse"}).get_vocab()
    assert "horse" not in build_tokenizer(TRAIN, min_count=2, known={"end", "horse"}).get_vocab()
    assert len(build_tokenizer(TRAIN, size=6)) == 6
    assert "END" in build_tokenizer(TRAIN, lowercase=False).get_vocab()
    assert build_tokenizer(count_words(TRAIN)).get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize("framed", [False, True])
def test_special_tokens(framed: bool) -> None:
    tokenizer = build_tokenizer(TRAIN, framed=framed)
    single = tokenizer.convert_ids_to_tokens(tokenizer("the cat")["input_ids"])
    assert single == (["[CLS]", "the", "cat", "[SEP]"] if framed else ["the", "cat"])
    pair = tokenizer("the cat", "the dog")
    assert tokenizer.convert_ids_to_tokens(pair["input_ids"]) == ["[CLS]", "the", "cat", "[SEP]", "the", "dog", "[SEP]"]
    assert pair["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("framed", [False, True])
def test_saved_and_loaded(framed: bool, tmp_path: Path) -> None:
    tokenizer = build_tokenizer(TRAIN, framed=framed, max_tokens=5)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(loaded, PreTrainedTokenizerFast)
    assert loaded.model_max_length == 5
    for texts in (TRAIN, [("the cat", "END")]):
        options = {"padding": True, "truncation": True, "return_offsets_mapping": True}
        assert dict(loaded(texts, **options)) == dict(tokenizer(texts, **options))
    assert set(loaded("the", "cat")) == {"input_ids", "token_type_ids", "attention_mask"}


@given(st.lists(st.text(), min_size=1, max_size=5))
def test_what_it_learnt_it_knows(texts: list[str]) -> None:
    counts = count_words(texts)
    if counts:
        tokenizer = build_tokenizer(counts)
        for text in texts:
            encoded = tokenizer.backend_tokenizer.encode(text)
            assert "[UNK]" not in encoded.tokens
            assert all(text[start:end] for start, end in encoded.offsets)


def test_words_of_a_sentence_that_is_cut_already() -> None:
    tokenizer = build_tokenizer(TRAIN)
    assert tokenizer(["The", "U.S.", "cat"], is_split_into_words=True).word_ids() == [0, 1, 1, 1, 1, 2]


def test_user_errors() -> None:
    with pytest.raises(UserError, match="got one string"):
        build_tokenizer("the cat")
    with pytest.raises(UserError, match=r"the vocabulary is empty"):
        build_tokenizer([" "])
    with pytest.raises(UserError, match=r"none of .* words occurs 5 times"):
        build_tokenizer(TRAIN, min_count=5)
    with pytest.raises(UserError, match="size must be larger"):
        build_tokenizer(TRAIN, size=4)
    with pytest.raises(UserError, match="max_tokens"):
        build_tokenizer(TRAIN, max_tokens=0)
