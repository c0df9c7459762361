"""Users who click with known probabilities."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwise.simulation.config import SimulationConfig
from headwise.simulation.user_model import Impressions, UserModel
from headwise.tasks.metrics import clicks

TOPIC = np.arange(200) % 4
SETTINGS = SimulationConfig(titles=Path("news.csv"), users=400, candidates=12, past=3, history=20)


def shown(settings: SimulationConfig, rounds: int) -> list[Impressions]:
    """Impressions of all users, those without a click too."""
    readers = UserModel(TOPIC, settings)
    return [readers.show(np.arange(settings.users)) for _ in range(rounds)]


def joined(pages: list[Impressions], name: str) -> Any:
    return np.concatenate([getattr(part, name) for part in pages])


def test_clicks_come_as_often_as_their_probability_says() -> None:
    pages = shown(replace(SETTINGS, position=1.0), 40)
    probability, clicked = joined(pages, "probability"), joined(pages, "clicked")
    for part in np.array_split(np.argsort(probability), 5):
        error = np.sqrt(probability[part].mean() / len(part))
        assert abs(clicked[part].mean() - probability[part].mean()) < 4 * error


def test_the_log_does_not_tell_the_place() -> None:
    pages = shown(replace(SETTINGS, position=2.0), 20)
    scores = [-np.arange(len(part.candidates)) for part in pages]  # the one listed first is best
    found = [clicks.each(score, part.clicked, part.offsets)["auc"] for score, part in zip(scores, pages, strict=True)]
    assert np.nanmean(np.concatenate(found)) == pytest.approx(0.5, abs=0.02)


def test_attention_that_falls_is_noise_to_clicks() -> None:
    rates = [joined(shown(replace(SETTINGS, position=p), 5), "probability").mean() for p in (0.0, 1.0)]
    assert rates[1] < 0.5 * rates[0]


def test_no_news_is_shown_twice_in_an_impression() -> None:
    readers = UserModel(TOPIC[:14], SETTINGS)
    pages = readers.show(np.arange(SETTINGS.users))
    assert np.diff(pages.offsets).max() == 14  # all there are
    for first, last in zip(pages.offsets[:-1], pages.offsets[1:], strict=True):
        assert len(set(pages.candidates[first:last])) == last - first


def test_clicks_become_history() -> None:
    known: dict[int, list[int]] = {user: [] for user in range(SETTINGS.users)}
    for pages in shown(SETTINGS, 30):
        for i, user in enumerate(pages.users.tolist()):
            told = pages.history[pages.history_offsets[i] : pages.history_offsets[i + 1]]
            assert told.tolist() == known[user][-SETTINGS.history :]
            inside = slice(pages.offsets[i], pages.offsets[i + 1])
            known[user] += pages.candidates[inside][pages.clicked[inside]].tolist()
    assert max(map(len, known.values())) > SETTINGS.history


def test_a_log_has_clicks_only_and_begins_with_a_past() -> None:
    first = next(UserModel(TOPIC, SETTINGS).log())
    assert (clicks.impression_metrics(first.clicked, first.offsets) > 0).all()
    assert len(first.history) > 0
    assert not len(next(UserModel(TOPIC, replace(SETTINGS, past=0)).log()).history)


def test_nothing_is_taken_but_what_is_kept() -> None:
    (pages,) = shown(SETTINGS, 1)
    kept = np.arange(len(pages)) % 3 == 0
    taken = pages.take(kept)
    assert len(taken) == kept.sum()
    for new, old in enumerate(np.flatnonzero(kept)):
        for name, offsets in (("candidates", "offsets"), ("probability", "offsets"), ("history", "history_offsets")):
            a, b = getattr(taken, offsets), getattr(pages, offsets)
            np.testing.assert_array_equal(
                getattr(taken, name)[a[new] : a[new + 1]], getattr(pages, name)[b[old] : b[old + 1]]
            )


def same_topic(settings: SimulationConfig, *, apart: int) -> float:
    """How often two clicks that lie so far apart in a history are of one topic."""
    readers = UserModel(TOPIC, settings)
    pages = list(islice(readers.log(), 30))[-1]
    topic, last = TOPIC[pages.history], pages.history_offsets[1:]
    sizes = np.diff(pages.history_offsets)
    ends = last[sizes > apart] - 1
    return float((topic[ends] == topic[ends - apart]).mean())


@pytest.mark.parametrize("way", [{"drift": 3.0}, {"bursts": 1.0, "burst_length": 6.0}], ids=["drift", "bursts"])
def test_short_term_interests_show_in_near_clicks_only(way: dict[str, float]) -> None:
    none = replace(SETTINGS, users=2000, interest=0.0, drift=0.0, bursts=0.0, history=40, past=10)
    moving, lasting = replace(none, **way), replace(none, interest=2.0)  # type: ignore[arg-type]
    assert same_topic(moving, apart=1) > same_topic(moving, apart=30) + 0.08
    assert same_topic(lasting, apart=1) == pytest.approx(same_topic(lasting, apart=30), abs=0.06)
    assert same_topic(none, apart=1) == pytest.approx(0.25, abs=0.04)
