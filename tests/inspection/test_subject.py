"""Texts as models read them: passages, tokens, what is cut, and what models say."""

import numpy as np
import pytest
import torch

from headwise.errors import UserError
from headwise.inspection.attention_maps import read, same_tokens
from headwise.inspection.inspected_model import InspectedModel
from tests.inspection.small import TEXT, bert, ours


def test_a_text_is_one_passage() -> None:
    (reading,) = read(bert(), (TEXT,))
    assert reading.tokens == ("[CLS]", *TEXT.split(), "[SEP]")
    assert [layer.cells.shape for layer in reading.layers] == [(4, 14, 14)] * 2
    assert reading.prediction is not None
    labels = dict(reading.prediction.labels)
    assert set(labels) == {"blame", "praise"}
    assert sum(labels.values()) == pytest.approx(1.0)


def test_predictions_are_those_of_the_model_alone() -> None:
    subject = bert()
    (reading,) = read(subject, (TEXT,))
    with torch.no_grad():
        shares = subject.model(**subject.tokenizer(TEXT, return_tensors="pt")).logits.softmax(dim=-1)[0]
    assert reading.prediction is not None
    assert dict(reading.prediction.labels) == pytest.approx({"blame": float(shares[0]), "praise": float(shares[1])})


def test_a_siamese_pair_is_two_passages() -> None:
    readings = read(ours(pair="siamese"), ("a fine film", "dull actors"))
    assert [(x.title, x.tokens, len(x.layers)) for x in readings] == [
        ("first text", ("a", "fine", "film"), 2),
        ("second text", ("dull", "actors"), 2),
    ]


def test_a_siamese_pair_of_equal_lengths_too() -> None:
    first, second = read(ours(pair="siamese"), ("a fine film", "the dull plot"))
    assert [len(first.layers), len(second.layers)] == [2, 2]
    assert (first.layers[0].cells != second.layers[0].cells).any()


def test_a_joint_pair_is_one_passage() -> None:
    (reading,) = read(ours(pair="joint"), ("a fine film", "dull actors"))
    assert reading.tokens == ("[CLS]", "a", "fine", "film", "[SEP]", "dull", "actors", "[SEP]")


def test_a_document_is_its_words_and_its_sentences() -> None:
    words, sentences = read(ours(hierarchy=(4, 3)), ("A fine film! The plot is thin. Dull. Dull.",))
    assert (
        words.tokens == ("a", "fine", "film", "!", "the", "plot", "is", "thin", ".", "dull", ".")[: len(words.tokens)]
    )
    assert sentences.tokens == ("sentence 1", "sentence 2", "sentence 3")
    assert words.cut
    assert not words.layers[0].cells[:, :4, 4:].any()  # sentences do not look at each other
    assert words.layers[0].cells[:, :4, :4].any()


def test_a_rating_and_tags() -> None:
    rated = ours(num_labels=1, problem_type="regression")
    assert isinstance(read(rated, (TEXT,))[0].prediction.rating, float)  # type: ignore[union-attr]


def test_a_text_that_is_too_long_is_cut_and_told() -> None:
    subject = bert()
    short = InspectedModel(name="short", model=subject.model, tokenizer=subject.tokenizer, max_length=6)
    (reading,) = read(short, (TEXT,))
    assert len(reading.tokens) == 6
    assert reading.cut
    assert not read(subject, (TEXT,))[0].cut


@pytest.mark.parametrize(
    ("subject", "texts", "told"),
    [
        (bert(), (" ",), "an empty text"),
        (ours(pair="joint"), ("a film",), "ours reads two texts"),
        (ours(), ("a film", "a plot"), "ours reads one text, not two"),
    ],
    ids=["empty", "one", "two"],
)
def test_texts_that_do_not_fit_are_told(subject: InspectedModel, texts: tuple[str, ...], told: str) -> None:
    with pytest.raises(UserError, match=told):
        read(subject, texts)


def test_models_side_by_side_read_the_same_tokens() -> None:
    a, b = read(bert(), (TEXT,)), read(ours(), (TEXT,))
    same_tokens(["tiny", "again"], [a, a])
    with pytest.raises(UserError, match=r"tiny and ours cut the text into different tokens \(14 and 12\)"):
        same_tokens(["tiny", "ours"], [a, b])


def test_learned_w_is_read() -> None:
    subject = bert(distance=True)
    (reading,) = read(subject, (TEXT,))
    learned = [x for name, x in subject.model.named_parameters() if name.endswith("scheme.w")]
    for layer, w in zip(reading.layers, learned, strict=True):
        assert layer.w is not None
        np.testing.assert_allclose(layer.w, w.detach())
