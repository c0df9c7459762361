"""Tests of head statistics against loops over texts, heads, queries and keys."""

import tracemalloc
from collections.abc import Iterator
from math import log2
from typing import Any

import numpy as np
import pytest
import torch
from transformers import XLNetConfig, XLNetForSequenceClassification

from headwise.errors import UserError
from headwise.inspection import HeadStatistics, attention_maps, compute_head_statistics
from headwise.inspection.head_statistics import NUM_POSITION_BINS, READ_AHEAD_ROWS, cluster_heads
from headwise.inspection.inspected_model import InspectedModel
from headwise.integrations.fusion import fuse_to_record
from tests.inspection.tiny_models import build_bert, build_headwise

ROWS: list[tuple[str, ...]] = [("a fine film .",), ("dull , dull , dull actors !",), ("the plot is thin",)]


def compute_by_loop(model: InspectedModel, rows: list[tuple[str, ...]]) -> dict[str, np.ndarray]:
    sums: dict[str, np.ndarray] = {}
    num_tokens = 0
    shares: dict[int, np.ndarray] = {}
    received, bin_sizes = np.zeros((2, 4, NUM_POSITION_BINS)), np.zeros(NUM_POSITION_BINS)
    correlations = []
    for (text,) in rows:
        inputs = model.tokenizer(text, return_tensors="pt")
        tokens = model.tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
        maps = attention_maps(model.model, dict(inputs))[:, 0].double().numpy()
        n = len(tokens)
        num_tokens += n
        for layer in range(2):
            for head in range(4):
                w = maps[layer, head]
                for i in range(n):
                    for j in range(n):
                        distance_bin = int(np.sign(j - i)) * (0 if i == j else (abs(j - i) - 1).bit_length() + 1)
                        shares.setdefault(distance_bin, np.zeros((2, 4)))[layer, head] += w[i, j]
                        factors = {
                            "distance": abs(i - j),
                            "entropy": -log2(w[i, j]),
                            "first": tokens[j] == "[CLS]",
                            "separators": tokens[j] == "[SEP]",
                            "punctuation": tokens[j] in ".,!",
                            "next": j == i + 1,
                            "previous": j == i - 1,
                        }
                        for name, factor in factors.items():
                            sums.setdefault(name, np.zeros((2, 4)))[layer, head] += w[i, j] * factor
                for j in range(n):
                    received[layer, head, j * NUM_POSITION_BINS // n] += w[:, j].sum()
        for j in range(n):
            bin_sizes[j * NUM_POSITION_BINS // n] += 1
        correlations.append(np.corrcoef(maps.reshape(8, -1)))
    measures = {name: total / num_tokens for name, total in sums.items()}
    measures["distance_shares"] = np.stack([shares[number] for number in sorted(shares)], axis=-1) / num_tokens
    return measures | {"received": received / np.maximum(bin_sizes, 1), "similarity": np.mean(correlations, axis=0)}


def assert_close(statistics: HeadStatistics, expected: dict[str, np.ndarray]) -> None:
    for name, values in statistics.measures.items():
        np.testing.assert_allclose(values, expected[name], atol=1e-5, err_msg=name)
    np.testing.assert_allclose(statistics.distance_shares, expected["distance_shares"], atol=1e-6)
    np.testing.assert_allclose(statistics.distance_shares.sum(axis=-1), 1.0, atol=1e-5)
    np.testing.assert_allclose(statistics.received, expected["received"], atol=1e-5)
    np.testing.assert_allclose(statistics.similarity, expected["similarity"], atol=1e-4)


def test_statistics_equal_a_loop() -> None:
    model = build_bert()
    statistics = compute_head_statistics(model, ROWS)
    assert (statistics.texts, statistics.tokens, statistics.shape) == (3, 6 + 9 + 6, (2, 4))
    assert_close(statistics, compute_by_loop(model, ROWS))


def test_statistics_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = lambda n, *_: [(start, min(start + 2, n)) for start in range(0, n, 2)]  # noqa: E731
    monkeypatch.setattr("headwise.inspection.head_statistics.row_blocks", blocks)
    model = build_bert()
    assert_close(compute_head_statistics(model, ROWS), compute_by_loop(model, ROWS))


def test_empty_rows_are_skipped_and_counted() -> None:
    model = build_bert()
    statistics = compute_head_statistics(model, [ROWS[0], ("",), *ROWS[1:], (" ",)])
    assert (statistics.texts, statistics.empty) == (3, 2)
    assert_close(statistics, compute_by_loop(model, ROWS))


def test_texts_are_read_lazily_and_memory_is_bounded() -> None:
    num_read = 0

    def read_rows(count: int) -> Iterator[tuple[str, ...]]:
        nonlocal num_read
        for _ in range(count):
            num_read += 1
            yield ROWS[num_read % 3]

    model, peaks = build_bert(layers=1), []
    compute_head_statistics(model, read_rows(3))
    for count in (READ_AHEAD_ROWS, 4 * READ_AHEAD_ROWS):
        num_read = 0
        tracemalloc.start()
        compute_head_statistics(model, read_rows(count))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert num_read == count
    assert peaks[1] < 1.3 * peaks[0] + 200_000


def test_siamese_and_hierarchical_models() -> None:
    siamese = build_headwise(pair="siamese")
    pairs = compute_head_statistics(siamese, [("a fine film", "dull"), ("the plot", "the actors")])
    assert pairs.shape == (2, 2)
    assert pairs.tokens == 8
    hierarchical = build_headwise(hierarchy=(4, 3))
    documents = compute_head_statistics(hierarchical, [("A fine film. Dull actors.",), ("Thin.",)])
    assert documents.shape == (4, 2)  # two layers of words, two of sentences
    assert np.isnan(documents.similarity[:4, 4:]).all()
    assert not np.isnan(documents.similarity[:4, :4]).any()
    assert documents.w is not None
    assert documents.w.shape == (4, 2)


def test_similar_heads_form_a_cluster() -> None:
    similarity = np.eye(5)
    for a, b in ((0, 3), (3, 4), (0, 4)):
        similarity[a, b] = similarity[b, a] = 0.9
    assert cluster_heads(similarity).tolist() == [0, 1, 2, 0, 0]
    assert cluster_heads(np.ones((1, 1))).tolist() == [0]


def test_a_dataset_without_texts_is_an_error() -> None:
    with pytest.raises(UserError, match="there are no texts"):
        compute_head_statistics(build_bert(), [("",)])


def test_texts_of_one_token() -> None:
    statistics = compute_head_statistics(build_headwise(), [("film",)])
    assert statistics.measures["distance"].tolist() == [[0.0, 0.0]] * 2
    torch.testing.assert_close(torch.tensor(statistics.received[:, :, 0]), torch.ones(2, 2, dtype=torch.float64))


def test_xlnet_is_padded_on_the_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its classifier reads the last token, and statistics do not depend on the batch."""
    torch.manual_seed(0)
    tokenizer = build_bert().tokenizer
    sizes: dict[str, Any] = {"vocab_size": len(tokenizer), "d_model": 16, "n_layer": 2, "n_head": 4, "d_inner": 16}
    xlnet = XLNetForSequenceClassification(XLNetConfig(**sizes, initializer_range=0.5)).eval()
    fuse_to_record(xlnet)
    model = InspectedModel(name="xlnet", model=xlnet, tokenizer=tokenizer, labels=["negative", "positive"])
    batch = model.encode(ROWS)
    assert batch.inputs["attention_mask"][:, -1].tolist() == [1, 1, 1]
    assert batch.inputs["attention_mask"][0].tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 1]
    with torch.no_grad():
        together = xlnet(**batch.inputs)
        alone = [xlnet(**model.encode([row]).inputs) for row in ROWS]
    for number, output in enumerate(alone):
        expected, found = model.get_prediction(output), model.get_prediction(together, row=number)
        assert expected is not None
        assert found is not None
        assert dict(found.labels) == pytest.approx(dict(expected.labels), abs=1e-5)
    batched = compute_head_statistics(model, ROWS)
    monkeypatch.setattr("headwise.inspection.head_statistics.MAX_BATCH_ROWS", 1)
    single = compute_head_statistics(model, ROWS)
    for name, values in single.measures.items():
        np.testing.assert_allclose(batched.measures[name], values, atol=1e-5, err_msg=name)
    for name in ("distance_shares", "received", "similarity"):
        np.testing.assert_allclose(getattr(batched, name), getattr(single, name), atol=1e-4, err_msg=name)
