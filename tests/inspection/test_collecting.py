"""Statistics over many texts are those of each text, added up; and texts are not kept."""

import tracemalloc
from collections.abc import Iterator
from math import log2

import numpy as np
import pytest
import torch

from headwise.errors import UserError
from headwise.inspection import HeadStatistics, attention_maps, compute_head_statistics
from headwise.inspection.head_statistics import CHUNK, PLACES, clustered
from headwise.inspection.inspected_model import InspectedModel
from tests.inspection.small import bert, ours

ROWS: list[tuple[str, ...]] = [("a fine film .",), ("dull , dull , dull actors !",), ("the plot is thin",)]


def by_hand(subject: InspectedModel, rows: list[tuple[str, ...]]) -> dict[str, np.ndarray]:
    """Every measure as a loop over texts, heads, queries and keys."""
    sums: dict[str, np.ndarray] = {}
    tokens = 0
    received, places = np.zeros((2, 4, PLACES)), np.zeros(PLACES)
    alike = []
    for (text,) in rows:
        encoded = subject.tokenizer(text, return_tensors="pt")
        names = subject.tokenizer.convert_ids_to_tokens(encoded["input_ids"][0])
        maps = attention_maps(subject.model, dict(encoded))[:, 0].double().numpy()
        n = len(names)
        tokens += n
        for layer in range(2):
            for head in range(4):
                w = maps[layer, head]
                for i in range(n):
                    for j in range(n):
                        told = {
                            "distance": abs(i - j),
                            "entropy": -log2(w[i, j]),
                            "first": names[j] == "[CLS]",
                            "separators": names[j] == "[SEP]",
                            "punctuation": names[j] in ".,!",
                            "next": j == i + 1,
                            "previous": j == i - 1,
                        }
                        for name, value in told.items():
                            sums.setdefault(name, np.zeros((2, 4)))[layer, head] += w[i, j] * value
                for j in range(n):
                    received[layer, head, j * PLACES // n] += w[:, j].sum()
        for j in range(n):
            places[j * PLACES // n] += 1
        alike.append(np.corrcoef(maps.reshape(8, -1)))
    measures = {name: total / tokens for name, total in sums.items()}
    return measures | {"received": received / np.maximum(places, 1), "similarity": np.mean(alike, axis=0)}


def check(found: HeadStatistics, expected: dict[str, np.ndarray]) -> None:
    for name, values in found.measures.items():
        np.testing.assert_allclose(values, expected[name], atol=1e-5, err_msg=name)
    np.testing.assert_allclose(found.received, expected["received"], atol=1e-5)
    np.testing.assert_allclose(found.similarity, expected["similarity"], atol=1e-4)


def test_every_number_is_what_a_loop_gives() -> None:
    subject = bert()
    found = compute_head_statistics(subject, ROWS)
    assert (found.texts, found.tokens, found.shape) == (3, 6 + 9 + 6, (2, 4))
    check(found, by_hand(subject, ROWS))


def test_rows_in_small_blocks_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = lambda n, *_: [(at, min(at + 2, n)) for at in range(0, n, 2)]  # noqa: E731
    monkeypatch.setattr("headwise.inspection.head_statistics.row_blocks", blocks)
    subject = bert()
    check(compute_head_statistics(subject, ROWS), by_hand(subject, ROWS))


def test_empty_rows_are_left_out_and_counted() -> None:
    subject = bert()
    found = compute_head_statistics(subject, [ROWS[0], ("",), *ROWS[1:], (" ",)])
    assert (found.texts, found.empty) == (3, 2)
    check(found, by_hand(subject, ROWS))


def test_texts_are_drawn_as_needed_and_not_kept() -> None:
    drawn = 0

    def rows(count: int) -> Iterator[tuple[str, ...]]:
        nonlocal drawn
        for _ in range(count):
            drawn += 1
            yield ROWS[drawn % 3]

    subject, peaks = bert(layers=1), []
    compute_head_statistics(subject, rows(3))
    for count in (CHUNK, 4 * CHUNK):
        drawn = 0
        tracemalloc.start()
        compute_head_statistics(subject, rows(count))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert drawn == count
    assert peaks[1] < 1.3 * peaks[0] + 200_000


def test_siamese_and_documents() -> None:
    pairs = compute_head_statistics(ours(pair="siamese"), [("a fine film", "dull"), ("the plot", "the actors")])
    assert pairs.shape == (2, 2)
    assert pairs.tokens == 8
    documents = compute_head_statistics(ours(hierarchy=(4, 3)), [("A fine film. Dull actors.",), ("Thin.",)])
    assert documents.shape == (4, 2)  # two layers of words, two of sentences
    assert np.isnan(documents.similarity[:4, 4:]).all()
    assert not np.isnan(documents.similarity[:4, :4]).any()
    assert documents.w is not None
    assert documents.w.shape == (4, 2)


def test_alike_heads_are_of_one_cluster() -> None:
    similarity = np.eye(5)
    for a, b in ((0, 3), (3, 4), (0, 4)):
        similarity[a, b] = similarity[b, a] = 0.9
    assert clustered(similarity).tolist() == [0, 1, 2, 0, 0]
    assert clustered(np.ones((1, 1))).tolist() == [0]


def test_no_text_at_all_is_told() -> None:
    with pytest.raises(UserError, match="no text"):
        compute_head_statistics(bert(), [("",)])


def test_texts_of_one_token() -> None:
    found = compute_head_statistics(ours(), [("film",)])
    assert found.measures["distance"].tolist() == [[0.0, 0.0]] * 2
    torch.testing.assert_close(torch.tensor(found.received[:, :, 0]), torch.ones(2, 2, dtype=torch.float64))
