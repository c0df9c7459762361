"""What is learnt from: each click beside non-clicks of its own impression."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.models import build_tokenizer
from headwise.tasks import mind
from headwise.training.recommendation.clicks import Clicks, EpochBatches, draw, latest, mixed
from headwise.training.recommendation.survey import survey
from headwise.training.recommendation.titles import tokenize_titles

HISTORY, NEGATIVES = 7, 4


@pytest.fixture
def clicks(read: mind.Log) -> Clicks:
    seen = survey(read.splits["train"], len(read.news))
    tokenizer = build_tokenizer(read.news.data["title"][:])
    titles = tokenize_titles(tokenizer, read.news.data, 5)
    return Clicks(read.splits["train"], seen.rows, titles, history=HISTORY, negatives=NEGATIVES, seed=3)


def told(clicks: Clicks, read: mind.Log, batch: dict[str, Any]) -> list[tuple[list[str], list[str]]]:
    """A batch in words: of each click the titles of its history, and those of its candidates."""
    tokenizer = build_tokenizer(read.news.data["title"][:])
    names = [
        tokenizer.decode(ids[real.bool()])
        for ids, real in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]

    def title(numbers: Any) -> list[str]:
        return [names[number] for number in numbers.tolist() if number >= 0]

    return [
        (title(batch["history"][user]), title(candidates))
        for user, candidates in zip(batch["user"], batch["candidates"], strict=True)
    ]


def test_a_batch_holds_every_click_with_its_history_and_non_clicks(clicks: Clicks, read: mind.Log) -> None:
    rows = [5, 0, 40, 2, 11]
    batch = clicks[0, rows]
    stored = read.splits["train"].rows.data
    tokenizer = build_tokenizer(read.news.data["title"][:])
    short = [tokenizer.decode(tokenizer(title)["input_ids"][:5]) for title in read.news.data["title"]]
    found = iter(told(clicks, read, batch))
    for row in rows:
        one = stored[int(clicks.rows[row])]
        history = [short[number] for number in one["history"][-HISTORY:]]
        shown = [(short[number], label) for number, label in zip(one["candidates"], one["clicked"], strict=True)]
        others = [title for title, label in shown if not label]
        for title, label in shown:
            if label:
                own_history, (first, *drawn) = next(found)
                assert own_history == history
                assert first == title
                assert len(drawn) == min(NEGATIVES, len(others))
                assert not set(drawn) - set(others)
    assert next(found, None) is None
    assert len({tuple(ids) for ids in batch["input_ids"].tolist()}) <= len(batch["input_ids"])
    assert batch["labels"].tolist() == [0] * len(batch["user"])


def test_what_is_drawn_depends_on_epoch_and_impression_only(clicks: Clicks, read: mind.Log) -> None:
    together, alone = told(clicks, read, clicks[1, [3, 8, 20]]), told(clicks, read, clicks[1, [8]])
    first = len(told(clicks, read, clicks[1, [3]]))
    assert together[first : first + len(alone)] == alone
    assert told(clicks, read, clicks[2, [8, 9, 10]]) != told(clicks, read, clicks[1, [8, 9, 10]])


def test_impressions_of_one_kind_are_not_learnt_from(read: mind.Log) -> None:
    train = read.splits["train"]
    found = survey(train, len(read.news))
    assert found.skipped == train.counts["only_clicks"] + train.counts["only_non_clicks"] >= 2
    assert len(found.rows) == len(train) - found.skipped
    assert found.clicks.sum() == sum(sum(row["clicked"]) for row in train.rows.data)


def test_an_impression_without_history_has_an_empty_one(clicks: Clicks) -> None:
    last = len(clicks) - 1  # which was added by hand
    assert (clicks[0, [last]]["history"] == -1).all()


@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=5), most=st.integers(1, 5), seed=st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_draws_are_different_places_of_their_list(counts: list[int], most: int, seed: int) -> None:
    lists = np.arange(len(counts))
    drawn = draw(np.array(counts), lists, mixed(lists.astype(np.uint64) + np.uint64(seed)), most)
    starts = np.concatenate([[0], np.cumsum(counts)])
    for number, places in enumerate(drawn.tolist()):
        real = [place for place in places if place >= 0]
        assert len(set(real)) == len(real) == min(most, counts[number])
        assert all(starts[number] <= place < starts[number + 1] for place in real)


def test_draws_are_even() -> None:
    keys = mixed(np.arange(20_000, dtype=np.uint64))
    drawn = draw(np.array([10]), np.zeros(20_000, dtype=np.int64), keys, 4)
    shares = np.bincount(drawn.ravel(), minlength=10) / 20_000
    np.testing.assert_allclose(shares, 0.4, atol=0.02)


def test_the_latest_of_each_list() -> None:
    values, offsets = np.arange(7), np.array([0, 0, 5, 7])
    assert latest(values, offsets, 3).tolist() == [[-1, -1, -1], [2, 3, 4], [5, 6, -1]]
    assert latest(np.array([], dtype=np.int32), np.array([0, 0]), 3).tolist() == [[-1]]


def test_batches_tell_their_epoch() -> None:
    batches = EpochBatches([1] * 10, 4, seed=0)
    batches.epoch = 3
    assert [epoch for ((epoch, _),) in batches] == [3, 3, 3]
    assert sorted(row for ((_, rows),) in batches for row in rows) == list(range(10))
