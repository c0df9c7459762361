"""Tests of encoded texts (passages, tokens, truncation) and of predictions."""

import numpy as np
import pytest
import torch

from headwise.errors import UserError
from headwise.inspection.inspected_model import InspectedModel
from headwise.inspection.passages import capture_passages, check_same_tokens
from tests.inspection.tiny_models import TEXT, build_bert, build_headwise


def test_a_text_is_one_passage() -> None:
    (passage,) = capture_passages(build_bert(), (TEXT,))
    assert passage.tokens == ("[CLS]", *TEXT.split(), "[SEP]")
    assert [layer.cells.shape for layer in passage.layers] == [(4, 14, 14)] * 2
    assert passage.prediction is not None
    labels = dict(passage.prediction.labels)
    assert set(labels) == {"negative", "positive"}
    assert sum(labels.values()) == pytest.approx(1.0)


def test_predictions_equal_those_of_the_model() -> None:
    model = build_bert()
    (passage,) = capture_passages(model, (TEXT,))
    with torch.no_grad():
        logits = model.model(**model.tokenizer(TEXT, return_tensors="pt")).logits
    negative, positive = logits.softmax(dim=-1)[0].tolist()
    assert passage.prediction is not None
    assert dict(passage.prediction.labels) == pytest.approx({"negative": negative, "positive": positive})


def test_a_siamese_pair_has_two_passages() -> None:
    passages = capture_passages(build_headwise(pair="siamese"), ("a fine film", "dull actors"))
    assert [(passage.title, passage.tokens, len(passage.layers)) for passage in passages] == [
        ("first text", ("a", "fine", "film"), 2),
        ("second text", ("dull", "actors"), 2),
    ]


def test_a_siamese_pair_of_equal_lengths_has_two_passages() -> None:
    first, second = capture_passages(build_headwise(pair="siamese"), ("a fine film", "the dull plot"))
    assert [len(first.layers), len(second.layers)] == [2, 2]
    assert (first.layers[0].cells != second.layers[0].cells).any()


def test_a_joint_pair_is_one_passage() -> None:
    (passage,) = capture_passages(build_headwise(pair="joint"), ("a fine film", "dull actors"))
    assert passage.tokens == ("[CLS]", "a", "fine", "film", "[SEP]", "dull", "actors", "[SEP]")


def test_a_document_has_passages_of_words_and_sentences() -> None:
    model = build_headwise(hierarchy=(4, 3))
    words, sentences = capture_passages(model, ("A fine film! The plot is thin. Dull. Dull.",))
    assert words.tokens == ("a", "fine", "film", "!", "the", "plot", "is", "thin", ".")
    assert sentences.tokens == ("sentence 1", "sentence 2", "sentence 3")
    assert words.truncated
    assert not words.layers[0].cells[:, :4, 4:].any()  # no attention between sentences
    assert words.layers[0].cells[:, :4, :4].any()


def test_regression_predicts_a_value() -> None:
    (passage,) = capture_passages(build_headwise(num_labels=1, problem_type="regression"), (TEXT,))
    assert passage.prediction is not None
    assert isinstance(passage.prediction.value, float)


def test_long_texts_are_truncated() -> None:
    model = build_bert()
    limited = InspectedModel(name="limited", model=model.model, tokenizer=model.tokenizer, max_length=6)
    (passage,) = capture_passages(limited, (TEXT,))
    assert len(passage.tokens) == 6
    assert passage.truncated
    assert not capture_passages(model, (TEXT,))[0].truncated


def test_batches_are_padded_on_the_right() -> None:
    batch = build_bert().encode([("a fine film",), ("film",)])
    assert batch.inputs["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert batch.inputs["input_ids"][1, 3:].tolist() == [0, 0]
    assert [len(sequence) for sequence in batch.passages[0].sequences] == [5, 3]


@pytest.mark.parametrize(
    ("model", "texts", "message"),
    [
        (build_bert(), (" ",), "a text is empty"),
        (build_headwise(pair="joint"), ("a film",), "headwise expects a pair of texts"),
        (build_headwise(), ("a film", "a plot"), "headwise expects one text, got a pair"),
    ],
    ids=["empty", "one", "two"],
)
def test_invalid_texts_are_errors(model: InspectedModel, texts: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        capture_passages(model, texts)


def test_compared_models_require_the_same_tokens() -> None:
    bert, headwise = capture_passages(build_bert(), (TEXT,)), capture_passages(build_headwise(), (TEXT,))
    check_same_tokens(["tiny", "copy"], [bert, bert])
    with pytest.raises(UserError, match=r"tiny and headwise split the text into different tokens \(14 and 12\)"):
        check_same_tokens(["tiny", "headwise"], [bert, headwise])


def test_passages_have_the_learned_w() -> None:
    model = build_bert(is_distance_aware=True)
    (passage,) = capture_passages(model, (TEXT,))
    parameters = [x for name, x in model.model.named_parameters() if name.endswith("scheme.w")]
    for layer, w in zip(passage.layers, parameters, strict=True):
        assert layer.w is not None
        np.testing.assert_allclose(layer.w, w.detach())
