"""Training batches: each click with sampled non-clicks of its own impression."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.models import build_tokenizer
from headwise.tasks import mind
from headwise.training.recommendation.batches import (
    ClickDataset,
    EpochBatchSampler,
    find_training_impressions,
    sample_positions,
    splitmix64,
    take_latest,
)
from headwise.training.recommendation.titles import tokenize_titles

HISTORY, NEGATIVES = 7, 4


@pytest.fixture
def dataset(loaded_log: mind.Log) -> ClickDataset:
    impressions = find_training_impressions(loaded_log.splits["train"], len(loaded_log.news))
    tokenizer = build_tokenizer(loaded_log.news.data["title"][:])
    titles = tokenize_titles(tokenizer, loaded_log.news.data, 5)
    return ClickDataset(
        loaded_log.splits["train"], impressions.rows, titles, history=HISTORY, negatives=NEGATIVES, seed=3
    )


def decode_batch(loaded_log: mind.Log, batch: dict[str, Any]) -> list[tuple[list[str], list[str]]]:
    """Return the titles of the history and of the candidates of each click."""
    tokenizer = build_tokenizer(loaded_log.news.data["title"][:])
    names = [
        tokenizer.decode(ids[real.bool()])
        for ids, real in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]

    def get_titles(numbers: Any) -> list[str]:
        return [names[number] for number in numbers.tolist() if number >= 0]

    return [
        (get_titles(batch["history"][user]), get_titles(candidates))
        for user, candidates in zip(batch["user"], batch["candidates"], strict=True)
    ]


def test_batch_holds_every_click_with_its_history_and_non_clicks(dataset: ClickDataset, loaded_log: mind.Log) -> None:
    rows = [5, 0, 40, 2, 11]
    batch = dataset[0, rows]
    stored = loaded_log.splits["train"].rows.data
    tokenizer = build_tokenizer(loaded_log.news.data["title"][:])
    truncated = [tokenizer.decode(tokenizer(title)["input_ids"][:5]) for title in loaded_log.news.data["title"]]
    decoded = iter(decode_batch(loaded_log, batch))
    for row in rows:
        impression = stored[int(dataset.rows[row])]
        history = [truncated[number] for number in impression["history"][-HISTORY:]]
        candidates = [
            (truncated[number], label)
            for number, label in zip(impression["candidates"], impression["clicked"], strict=True)
        ]
        non_clicks = [title for title, label in candidates if not label]
        for title, label in candidates:
            if label:
                click_history, (click, *sampled) = next(decoded)
                assert click_history == history
                assert click == title
                assert len(sampled) == min(NEGATIVES, len(non_clicks))
                assert not set(sampled) - set(non_clicks)
    assert next(decoded, None) is None
    assert len({tuple(ids) for ids in batch["input_ids"].tolist()}) <= len(batch["input_ids"])
    assert batch["labels"].tolist() == [0] * len(batch["user"])


def test_sampled_non_clicks_depend_on_epoch_and_impression_only(dataset: ClickDataset, loaded_log: mind.Log) -> None:
    batch, single = decode_batch(loaded_log, dataset[1, [3, 8, 20]]), decode_batch(loaded_log, dataset[1, [8]])
    start = len(decode_batch(loaded_log, dataset[1, [3]]))
    assert batch[start : start + len(single)] == single
    other_epoch = decode_batch(loaded_log, dataset[2, [8, 9, 10]])
    assert other_epoch != decode_batch(loaded_log, dataset[1, [8, 9, 10]])


def test_impressions_with_only_one_label_are_skipped(loaded_log: mind.Log) -> None:
    train = loaded_log.splits["train"]
    impressions = find_training_impressions(train, len(loaded_log.news))
    assert impressions.num_skipped == train.counts["only_clicks"] + train.counts["only_non_clicks"] >= 2
    assert len(impressions.rows) == len(train) - impressions.num_skipped
    assert impressions.click_counts.sum() == sum(sum(row["clicked"]) for row in train.rows.data)


def test_impression_without_history_has_only_padding(dataset: ClickDataset) -> None:
    last = len(dataset) - 1  # added in conftest.py
    assert (dataset[0, [last]]["history"] == -1).all()


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=5), num_samples=st.integers(1, 5), seed=st.integers(0, 99)
)
def test_samples_are_distinct_positions_of_their_list(counts: list[int], num_samples: int, seed: int) -> None:
    lists = np.arange(len(counts))
    samples = sample_positions(
        np.array(counts), lists, splitmix64(lists.astype(np.uint64) + np.uint64(seed)), num_samples
    )
    starts = np.concatenate([[0], np.cumsum(counts)])
    for number, row in enumerate(samples.tolist()):
        positions = [position for position in row if position >= 0]
        assert len(set(positions)) == len(positions) == min(num_samples, counts[number])
        assert all(starts[number] <= position < starts[number + 1] for position in positions)


def test_samples_are_uniform() -> None:
    keys = splitmix64(np.arange(20_000, dtype=np.uint64))
    samples = sample_positions(np.array([10]), np.zeros(20_000, dtype=np.int64), keys, 4)
    shares = np.bincount(samples.ravel(), minlength=10) / 20_000
    np.testing.assert_allclose(shares, 0.4, atol=0.02)


def test_take_latest_returns_the_last_values_of_each_list() -> None:
    values, offsets = np.arange(7), np.array([0, 0, 5, 7])
    assert take_latest(values, offsets, 3).tolist() == [[-1, -1, -1], [2, 3, 4], [5, 6, -1]]
    assert take_latest(np.array([], dtype=np.int32), np.array([0, 0]), 3).tolist() == [[-1]]


def test_batches_include_their_epoch() -> None:
    sampler = EpochBatchSampler([1] * 10, 4, seed=0)
    sampler.epoch = 3
    assert [epoch for ((epoch, _),) in sampler] == [3, 3, 3]
    assert sorted(row for ((_, rows),) in sampler for row in rows) == list(range(10))
