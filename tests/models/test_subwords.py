"""Subwords: every text comes back as it was."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from headwise.errors import UserError
from headwise.models import build_subwords

TEXTS = ["Two young, White males are outside.", "Zwei junge weiße Männer sind im Freien.", "deux, c'est assez !"]
TOKENIZER = build_subwords(TEXTS, size=320, max_tokens=16)


def told_again(tokenizer: Any, text: str) -> str:
    decoded = tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True)
    assert isinstance(decoded, str)
    return decoded


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_comes_back_exactly(text: str) -> None:
    if not any(special in text for special in ("<s>", "</s>", "<pad>")):
        assert told_again(TOKENIZER, text) == text


def test_a_text_ends_and_frequent_parts_are_one() -> None:
    ids = TOKENIZER("Männer")["input_ids"]
    assert ids[-1] == TOKENIZER.eos_token_id
    assert len(TOKENIZER) == 320
    assert len(ids) < len("Männer".encode()) + 1


def test_saved_and_loaded(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in (*TEXTS, "ein  Ｘ , don 't !"):
        assert loaded(text)["input_ids"] == TOKENIZER(text)["input_ids"]
        assert told_again(loaded, text) == text


def test_mistakes() -> None:
    with pytest.raises(UserError, match="at least 259"):
        build_subwords(TEXTS, size=258)
    with pytest.raises(UserError, match="no texts"):
        build_subwords([])
