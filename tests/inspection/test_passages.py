"""Tests of encoded texts (passages, tokens, truncation) and of predictions."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertModel

import headwise as hw
from headwise.errors import UserError
from headwise.inspection import build_viewer
from headwise.inspection.inspected_model import InspectedModel
from headwise.inspection.measures import distance_bin_names, num_distance_bins
from headwise.inspection.passages import capture_passages, check_same_tokens
from headwise.inspection.quantize import QuantizedLayer, quantize_layer
from headwise.integrations import AttentionRows
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


def test_a_text_of_4096_tokens_is_captured_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than 2^20 weights of a layer are held at once, of 2^25."""
    sizes: list[int] = []

    def quantize(rows: AttentionRows, lengths: list[int]) -> QuantizedLayer:
        def weights(start: int, stop: int) -> Tensor:
            block = rows.weights(start, stop)
            sizes.append(block.numel())
            return block

        return quantize_layer(replace(rows, weights=weights), lengths)

    monkeypatch.setattr("headwise.inspection.passages.quantize_layer", quantize)
    torch.manual_seed(0)
    tokenizer = build_bert().tokenizer
    config: dict[str, Any] = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    bert = BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **config)).eval()
    hw.extend_positions(bert, 4096, positions="tile", tokenizer=tokenizer)
    viewer = build_viewer([InspectedModel(name="long", model=bert, tokenizer=tokenizer)], ["film " * 5000])
    (passage,) = viewer.examples[0].passages
    assert len(passage.tokens) == 4096
    assert passage.truncated
    assert sum(sizes) == 2 * 4096**2
    assert max(sizes) <= 2**20
    shares = passage.layers[0].distance_shares
    assert shares is not None
    names = distance_bin_names(num_distance_bins(4096))
    assert (names[0], names[-1], shares.shape) == ("before_2049-4096", "after_2049-4096", (2, len(names)))
    np.testing.assert_allclose(shares.sum(axis=-1), 1.0, atol=1e-4)
    metadata = viewer.metadata()["texts"][0]
    assert metadata["group_sizes"] == [16, 16]
    np.testing.assert_allclose(metadata["models"][0]["distance_shares"][0], shares, rtol=1e-4)
    assert len(viewer.html()) < 2**20
