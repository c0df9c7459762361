"""Logs whose clicks depend on the order of the history: the order is needed, and it is sufficient."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwise.cli import main
from headwise.errors import UserError
from headwise.simulation.config import SimulationConfig
from headwise.simulation.mind import simulate
from headwise.simulation.ordered_histories import OrderedHistories
from headwise.simulation.user_model import Impressions
from headwise.tasks import mind
from headwise.tasks.metrics import clicks

TOPIC_IDS = np.arange(200) % 4
CONFIG = SimulationConfig(titles=Path("news.csv"), users=400, candidates=12, history=20, clicks="distance")


def draw(config: SimulationConfig) -> Impressions:
    return OrderedHistories(TOPIC_IDS, config).draw_impressions(np.arange(config.users))


def history_topics(impressions: Any) -> Any:
    """Return the topics of histories, (impressions, clicks)."""
    return TOPIC_IDS[impressions.history].reshape(len(impressions.history_offsets) - 1, -1)


def score_by_counts(topics: Any) -> Any:
    """Return how often each topic is in a history, (impressions, topics)."""
    return (topics[:, :, None] == np.arange(4)).sum(axis=1)


def score_by_latest(topics: Any) -> Any:
    """Return how often each topic is among the latest three clicks."""
    return score_by_counts(topics[:, -3:])


def score_by_neighbors(topics: Any) -> Any:
    """Return how often two clicks next to each other have each topic."""
    same = topics[:, 1:] == topics[:, :-1]
    return ((topics[:, 1:, None] == np.arange(4)) & same[:, :, None]).sum(axis=1)


def measure_auc(impressions: Any, topic_scores: Any) -> float:
    """Return the AUC of the order of candidates by the score of their topic."""
    impression = np.repeat(np.arange(len(impressions.offsets) - 1), np.diff(impressions.offsets))
    scores = topic_scores[impression, TOPIC_IDS[impressions.candidates]]
    return float(clicks.compute(scores, impressions.clicked, impressions.offsets)["auc"])


@pytest.mark.parametrize("mode", ["recency", "distance"])
def test_topics_are_equally_frequent_in_every_history(mode: Any) -> None:
    impressions = draw(replace(CONFIG, clicks=mode))
    assert (score_by_counts(history_topics(impressions)) == 5).all()


def test_an_oracle_that_uses_distances_is_better_than_one_that_ignores_order() -> None:
    """The oracles know the topics of all news, but not the user."""
    impressions = draw(replace(CONFIG, users=3000))
    topics = history_topics(impressions)
    oracle = float(clicks.compute(impressions.probability, impressions.clicked, impressions.offsets)["auc"])
    assert measure_auc(impressions, score_by_counts(topics)) == pytest.approx(0.5, abs=0.01)
    assert measure_auc(impressions, score_by_latest(topics)) < 0.6, "the latest clicks say little"
    assert measure_auc(impressions, score_by_neighbors(topics)) > oracle - 0.03 > 0.65
    reversed_topics = topics[:, ::-1]
    assert measure_auc(impressions, score_by_neighbors(reversed_topics)) == pytest.approx(
        measure_auc(impressions, score_by_neighbors(topics))
    ), "the direction of time does not matter"


def test_an_oracle_that_uses_the_latest_clicks_is_better_than_one_that_ignores_order() -> None:
    impressions = draw(replace(CONFIG, users=3000, clicks="recency"))
    topics = history_topics(impressions)
    oracle = float(clicks.compute(impressions.probability, impressions.clicked, impressions.offsets)["auc"])
    assert measure_auc(impressions, score_by_counts(topics)) == pytest.approx(0.5, abs=0.01)
    assert measure_auc(impressions, score_by_latest(topics)) > oracle - 0.03 > 0.65
    assert measure_auc(impressions, score_by_latest(topics[:, ::-1])) < 0.5, "the direction of time matters"


def test_click_rates_equal_probabilities() -> None:
    impressions = draw(replace(CONFIG, users=4000))
    for part in np.array_split(np.argsort(impressions.probability), 5):
        error = np.sqrt(impressions.probability[part].mean() / len(part))
        assert abs(impressions.clicked[part].mean() - impressions.probability[part].mean()) < 4 * error


def test_without_a_preference_the_order_says_nothing() -> None:
    impressions = draw(replace(CONFIG, users=3000, preference=0.0))
    assert measure_auc(impressions, score_by_neighbors(history_topics(impressions))) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interest": 1.0}, "--interest does not apply to --clicks distance"),
        ({"past": 3}, "--past does not apply to --clicks distance"),
        ({"clicks": "interests", "preference": 1.0}, "--preference does not apply to --clicks interests"),
        ({"preference": -1.0}, "--preference must be at least 0"),
    ],
)
def test_options_without_effect_are_errors(options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(CONFIG, **options)


@pytest.fixture
def titles(tmp_path: Path) -> Path:
    path = tmp_path / "news.csv"
    words = ["world peace", "sports cup", "bank stock", "tech chip"]
    path.write_text("title,label\n" + "".join(f"{words[i % 4]} {i // 4 % 7},{i % 4}\n" for i in range(80)))
    return path


def test_topics_and_histories_must_suffice(titles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["simulate", "mind", "--titles", str(titles), "--clicks", "distance", "--out", str(tmp_path / "log")]
    assert main([*args, "--history", "7"]) == 2
    assert "--history 7: --clicks distance needs at least 8" in capsys.readouterr().err
    titles.write_text("title,label\n" + "".join(f"title {i},{i % 2}\n" for i in range(80)))
    assert main(args) == 2
    assert "needs titles of at least 3 topics, got 2" in capsys.readouterr().err
    assert not (tmp_path / "log").exists()


def test_the_log_is_one_of_mind(titles: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, titles=titles, impressions=200, users=50, clicks="recency")
    truth = simulate(config, tmp_path / "log")
    assert json.loads((tmp_path / "log" / "truth.json").read_text())["config"]["clicks"] == "recency"
    log = mind.read(tmp_path / "log", cache=tmp_path / "cache")
    (part,) = log.splits["test"].parts()
    assert np.diff(part.history_offsets).tolist() == [20] * 20
    assert truth["oracle"]["test"]["auc"] > 0.6
