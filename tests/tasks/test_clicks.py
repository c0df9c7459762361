"""Metrics of click logs against scikit-learn and MIND's formulas, impression by impression in plain loops."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from headwise.errors import UserError
from headwise.tasks.metrics import clicks

#: Candidates of some impressions, as (score, clicked); few scores, so that there are ties.
LOGS = st.lists(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 1)), max_size=14), max_size=8)


def flat(log: list[list[tuple[float, int]]]) -> tuple[Any, Any, Any]:
    candidates = [candidate for impression in log for candidate in impression]
    offsets = np.cumsum([0, *map(len, log)])
    return np.array([c[0] for c in candidates], dtype=float), np.array([c[1] for c in candidates], dtype=int), offsets


def ranked(impression: list[tuple[float, int]]) -> list[int]:
    """Which were clicked, from the highest score to the lowest; Python's sort keeps the order of equal ones."""
    return [clicked for _, clicked in sorted(impression, key=lambda candidate: -candidate[0])]


def mrr(impression: list[tuple[float, int]]) -> float:
    y = ranked(impression)
    return sum(clicked / (place + 1) for place, clicked in enumerate(y)) / sum(y)


def dcg(y: list[int], k: int) -> float:
    return sum((2.0**clicked - 1) / math.log2(place + 2) for place, clicked in enumerate(y[:k]))


def ndcg(impression: list[tuple[float, int]], k: int) -> float:
    y = ranked(impression)
    return dcg(y, k) / dcg(sorted(y, reverse=True), k)


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


@given(log=LOGS, at_a_time=st.integers(1, 30))
@settings(max_examples=150, deadline=None)
def test_metrics_are_scikit_learns_and_minds(log: list[list[tuple[float, int]]], at_a_time: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clicks, "CANDIDATES", at_a_time)
        found = clicks.compute(*flat(log))
    some = [impression for impression in log if any(clicked for _, clicked in impression)]
    both = [impression for impression in some if not all(clicked for _, clicked in impression)]
    auc = [float(roc_auc_score([y for _, y in impression], [s for s, _ in impression])) for impression in both]
    expected = {
        "auc": mean(auc),
        "mind_mrr": mean([mrr(impression) for impression in some]),
        "ndcg@5": mean([ndcg(impression, 5) for impression in some]),
        "ndcg@10": mean([ndcg(impression, 10) for impression in some]),
        "impressions": len(log),
        "only_clicks": len(some) - len(both),
        "only_non_clicks": len(log) - len(some),
    }
    assert found == pytest.approx(expected, nan_ok=True)


def test_every_impression_has_its_own_figures() -> None:
    found = clicks.each(*flat([[(3, 1), (2, 0), (1, 1)], [(1, 0)], [(1, 1)], []]))
    np.testing.assert_allclose(found["auc"], [0.5, np.nan, np.nan, np.nan])
    np.testing.assert_allclose(found["mind_mrr"], [(1 + 1 / 3) / 2, np.nan, 1, np.nan])
    np.testing.assert_allclose(found["ndcg@5"], [1.5 / (1 + 1 / math.log2(3)), np.nan, 1, np.nan])


def test_of_equal_scores_the_one_listed_first_ranks_first() -> None:
    first, last = clicks.compute([1, 1], [1, 0], [0, 2]), clicks.compute([1, 1], [0, 1], [0, 2])
    assert (first["mind_mrr"], last["mind_mrr"]) == (1.0, 0.5)
    assert first["auc"] == last["auc"] == 0.5


def test_parts_add_up() -> None:
    draw = np.random.default_rng(0)
    offsets = np.arange(0, 401, 10)
    scores, clicked = draw.normal(size=400), draw.integers(0, 2, 400)
    tally = clicks.ClickMetrics()
    tally.add(scores[:100], clicked[:100], offsets[:11])
    tally.add(scores[100:], clicked[100:], offsets[10:] - 100)
    assert tally.figures() == pytest.approx(clicks.compute(scores, clicked, offsets))


@pytest.mark.parametrize(
    ("scores", "clicked", "offsets", "told"),
    [
        ([1.0, 2.0], [1], [0, 2], "must both be"),
        ([1.0, 2.0], [1, 0], [0, 1], "from 0 to the number of candidates, 2"),
        ([1.0, 2.0], [1, 0], [0, 3, 2], "must not fall"),
        ([1.0, 2.0], [1, 2], [0, 2], "must be 0 or 1"),
        ([1.0, 2.0, math.nan], [1, 0, 1], [0, 2, 3], r"impression 1 \(from 0\): a score is NaN"),
    ],
    ids=["shapes", "end", "falling", "clicked", "nan"],
)
def test_mistakes(scores: list[float], clicked: list[int], offsets: list[int], told: str) -> None:
    with pytest.raises(UserError, match=told):
        clicks.compute(scores, clicked, offsets)
