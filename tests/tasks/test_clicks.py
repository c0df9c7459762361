"""Metrics of click logs against scikit-learn and loops over MIND's formulas."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from headwise.errors import UserError
from headwise.tasks.metrics import clicks
from tests.short_form import scale_examples

#: Candidates of impressions as (score, clicked); few different scores, so that there are ties.
LOGS = st.lists(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 1)), max_size=14), max_size=8)


def flatten(log: list[list[tuple[float, int]]]) -> tuple[Any, Any, Any]:
    candidates = [candidate for impression in log for candidate in impression]
    offsets = np.cumsum([0, *map(len, log)])
    return np.array([c[0] for c in candidates], dtype=float), np.array([c[1] for c in candidates], dtype=int), offsets


def ranked_labels(impression: list[tuple[float, int]]) -> list[int]:
    """Return the labels by descending score; Python's sort is stable."""
    return [clicked for _, clicked in sorted(impression, key=lambda candidate: -candidate[0])]


def mrr(impression: list[tuple[float, int]]) -> float:
    y = ranked_labels(impression)
    return sum(clicked / (position + 1) for position, clicked in enumerate(y)) / sum(y)


def dcg(y: list[int], k: int) -> float:
    return sum((2.0**clicked - 1) / math.log2(position + 2) for position, clicked in enumerate(y[:k]))


def ndcg(impression: list[tuple[float, int]], k: int) -> float:
    y = ranked_labels(impression)
    return dcg(y, k) / dcg(sorted(y, reverse=True), k)


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


@given(log=LOGS, chunk_size=st.integers(1, 30))
@settings(max_examples=scale_examples(2))
def test_metrics_equal_scikit_learn_and_the_formulas(log: list[list[tuple[float, int]]], chunk_size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clicks, "MAX_CHUNK_CANDIDATES", chunk_size)
        metrics = clicks.compute(*flatten(log))
    with_clicks = [impression for impression in log if any(clicked for _, clicked in impression)]
    with_both = [impression for impression in with_clicks if not all(clicked for _, clicked in impression)]
    auc = [float(roc_auc_score([y for _, y in impression], [s for s, _ in impression])) for impression in with_both]
    expected = {
        "auc": mean(auc),
        "mind_mrr": mean([mrr(impression) for impression in with_clicks]),
        "ndcg@5": mean([ndcg(impression, 5) for impression in with_clicks]),
        "ndcg@10": mean([ndcg(impression, 10) for impression in with_clicks]),
        "impressions": len(log),
        "only_clicks": len(with_clicks) - len(with_both),
        "only_non_clicks": len(log) - len(with_clicks),
    }
    assert metrics == pytest.approx(expected, nan_ok=True)


def test_metrics_per_impression() -> None:
    metrics = clicks.compute_per_impression(*flatten([[(3, 1), (2, 0), (1, 1)], [(1, 0)], [(1, 1)], []]))
    np.testing.assert_allclose(metrics["auc"], [0.5, np.nan, np.nan, np.nan])
    np.testing.assert_allclose(metrics["mind_mrr"], [(1 + 1 / 3) / 2, np.nan, 1, np.nan])
    np.testing.assert_allclose(metrics["ndcg@5"], [1.5 / (1 + 1 / math.log2(3)), np.nan, 1, np.nan])


def test_equal_scores_keep_the_order_of_the_log() -> None:
    first, last = clicks.compute([1, 1], [1, 0], [0, 2]), clicks.compute([1, 1], [0, 1], [0, 2])
    assert (first["mind_mrr"], last["mind_mrr"]) == (1.0, 0.5)
    assert first["auc"] == last["auc"] == 0.5


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_candidates_are_sorted_by_impression_and_score(dtype: type) -> None:
    scores: Any = np.random.default_rng(0).integers(-3, 4, 60).astype(dtype)
    if dtype != np.int64:
        scores[::7], scores[1::7], scores[2::7], scores[3::7] = -0.0, 0.0, np.inf, -np.inf
    impression = np.repeat([0, 1, 2], [30, 0, 30])
    expected = sorted(range(60), key=lambda index: (impression[index], -float(scores[index])))  # stable
    assert clicks.sort_candidates(scores, impression).tolist() == expected


def test_batches_add_up() -> None:
    rng = np.random.default_rng(0)
    offsets = np.arange(0, 401, 10)
    scores, clicked = rng.normal(size=400), rng.integers(0, 2, 400)
    totals = clicks.ClickMetrics()
    totals.add(scores[:100], clicked[:100], offsets[:11])
    totals.add(scores[100:], clicked[100:], offsets[10:] - 100)
    assert totals.compute() == pytest.approx(clicks.compute(scores, clicked, offsets))


@pytest.mark.parametrize(
    ("scores", "clicked", "offsets", "message"),
    [
        ([1.0, 2.0], [1], [0, 2], "must both be"),
        ([1.0, 2.0], [1, 0], [0, 1], "from 0 to the number of candidates, 2"),
        ([1.0, 2.0], [1, 0], [0, 3, 2], "must not decrease"),
        ([1.0, 2.0], [1, 2], [0, 2], "must be 0 or 1"),
        ([1.0, 2.0, math.nan], [1, 0, 1], [0, 2, 3], r"impression 1 \(from 0\): a score is NaN"),
    ],
    ids=["shapes", "end", "decreasing", "clicked", "nan"],
)
def test_invalid_arrays_raise_errors(scores: list[float], clicked: list[int], offsets: list[int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        clicks.compute(scores, clicked, offsets)
