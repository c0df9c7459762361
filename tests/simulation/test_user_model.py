"""The model of users who click with known probabilities."""

from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwise.simulation.config import SimulationConfig
from headwise.simulation.user_model import Impressions, UserModel
from headwise.tasks.metrics import clicks

TOPIC_IDS = np.arange(200) % 4
CONFIG = SimulationConfig(titles=Path("news.csv"), users=400, candidates=12, past=3, history=20)


def draw_rounds(config: SimulationConfig, rounds: int) -> list[Impressions]:
    """Draw impressions of all users, including those without a click."""
    model = UserModel(TOPIC_IDS, config)
    return [model.draw_impressions(np.arange(config.users)) for _ in range(rounds)]


def concatenate(batches: list[Impressions], name: str) -> Any:
    return np.concatenate([getattr(part, name) for part in batches])


def test_click_rates_equal_probabilities() -> None:
    batches = draw_rounds(replace(CONFIG, position=1.0), 40)
    probability, clicked = concatenate(batches, "probability"), concatenate(batches, "clicked")
    for part in np.array_split(np.argsort(probability), 5):
        error = np.sqrt(probability[part].mean() / len(part))
        assert abs(clicked[part].mean() - probability[part].mean()) < 4 * error


def test_the_order_of_candidates_does_not_reveal_positions() -> None:
    batches = draw_rounds(replace(CONFIG, position=2.0), 20)
    scores = [-np.arange(len(part.candidates)) for part in batches]  # the first candidate is best
    auc = [
        clicks.compute_per_impression(score, part.clicked, part.offsets)["auc"]
        for score, part in zip(scores, batches, strict=True)
    ]
    assert np.nanmean(np.concatenate(auc)) == pytest.approx(0.5, abs=0.02)


def test_decaying_attention_lowers_click_probabilities() -> None:
    rates = [concatenate(draw_rounds(replace(CONFIG, position=p), 5), "probability").mean() for p in (0.0, 1.0)]
    assert rates[1] < 0.5 * rates[0]


def test_candidates_of_an_impression_are_distinct() -> None:
    model = UserModel(TOPIC_IDS[:14], CONFIG)
    impressions = model.draw_impressions(np.arange(CONFIG.users))
    assert np.diff(impressions.offsets).max() == 14  # all news
    for start, end in pairwise(impressions.offsets):
        assert len(set(impressions.candidates[start:end])) == end - start


def test_clicks_are_appended_to_the_history() -> None:
    expected: dict[int, list[int]] = {user: [] for user in range(CONFIG.users)}
    for impressions in draw_rounds(CONFIG, 30):
        for i, user in enumerate(impressions.users.tolist()):
            history = impressions.history[impressions.history_offsets[i] : impressions.history_offsets[i + 1]]
            assert history.tolist() == expected[user][-CONFIG.history :]
            candidates = slice(impressions.offsets[i], impressions.offsets[i + 1])
            expected[user] += impressions.candidates[candidates][impressions.clicked[candidates]].tolist()
    assert max(map(len, expected.values())) > CONFIG.history


def test_every_impression_has_a_click_and_users_start_with_a_history() -> None:
    impressions = next(UserModel(TOPIC_IDS, CONFIG).simulate())
    assert (clicks.sum_per_impression(impressions.clicked, impressions.offsets) > 0).all()
    assert len(impressions.history) > 0
    assert not len(next(UserModel(TOPIC_IDS, replace(CONFIG, past=0)).simulate()).history)


def test_take_selects_impressions() -> None:
    (impressions,) = draw_rounds(CONFIG, 1)
    mask = np.arange(len(impressions)) % 3 == 0
    selected = impressions.take(mask)
    assert len(selected) == mask.sum()
    for new, old in enumerate(np.flatnonzero(mask)):
        for name, offsets in (("candidates", "offsets"), ("probability", "offsets"), ("history", "history_offsets")):
            a, b = getattr(selected, offsets), getattr(impressions, offsets)
            np.testing.assert_array_equal(
                getattr(selected, name)[a[new] : a[new + 1]], getattr(impressions, name)[b[old] : b[old + 1]]
            )


def same_topic_rate(config: SimulationConfig, *, distance: int) -> float:
    """Return how often two clicks at this distance in a history have the same topic."""
    model = UserModel(TOPIC_IDS, config)
    impressions = list(islice(model.simulate(), 30))[-1]
    topic, last = TOPIC_IDS[impressions.history], impressions.history_offsets[1:]
    sizes = np.diff(impressions.history_offsets)
    ends = last[sizes > distance] - 1
    return float((topic[ends] == topic[ends - distance]).mean())


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"drift": 3.0}, id="drift"),
        pytest.param({"bursts": 1.0, "burst_length": 6.0}, id="bursts", marks=pytest.mark.long),
    ],
)
def test_short_term_interests_correlate_near_clicks_only(change: dict[str, float]) -> None:
    constant = replace(CONFIG, users=2000, interest=0.0, drift=0.0, bursts=0.0, history=40, past=10)
    moving, lasting = replace(constant, **change), replace(constant, interest=2.0)  # type: ignore[arg-type]
    assert same_topic_rate(moving, distance=1) > same_topic_rate(moving, distance=30) + 0.08
    assert same_topic_rate(lasting, distance=1) == pytest.approx(same_topic_rate(lasting, distance=30), abs=0.06)
    assert same_topic_rate(constant, distance=1) == pytest.approx(0.25, abs=0.04)
