"""Metrics of click logs, as defined by MIND.

The candidates of an impression are ranked by their scores. Let y_r be 1 if the candidate at rank r was clicked. Metrics
are means over impressions of

    AUC         share of pairs of a click and a non-click where the click has the higher score; equal scores count 1/2
    MIND's MRR  Σ_r (y_r / r) / Σ_r y_r, over all clicks (`mrr` of rankings has the first relevant candidate only)
    nDCG@k      Σ_{r≤k} (2^{y_r} − 1) / log2(1 + r), divided by the same sum of the best order

Among equal scores, the candidate that comes first in the log ranks first. AUC is undefined for impressions with clicks
only, all metrics are undefined for impressions without clicks: these are excluded from the means and counted.

Candidates are flat arrays, as in Arrow's lists: impression i has candidates `offsets[i]` to `offsets[i + 1]`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from headwise.errors import UserError

PRIMARY = "auc"
NDCG_CUTOFFS = (5, 10)
METRICS = ("auc", "mind_mrr", *(f"ndcg@{cutoff}" for cutoff in NDCG_CUTOFFS))
MAX_CHUNK_CANDIDATES = 2**20  # that are sorted at once; a larger impression is a chunk of its own


def compute(scores: Any, clicked: Any, offsets: Any) -> dict[str, float]:
    """Compute all metrics, and count impressions. A mean over no impressions is NaN.

    Args:
        scores: (candidates,).
        clicked: (candidates,), 0 or 1.
        offsets: (impressions + 1,), the start of each impression's candidates, and the end of the last.

    Raises:
        UserError: Array sizes do not match, or a score is NaN.

    Example:
        >>> metrics = compute([0.9, 0.1, 0.4, 0.3], [0, 1, 1, 1], [0, 3, 4])  # the second impression is a single click
        >>> metrics["auc"], round(metrics["mind_mrr"], 4), metrics["only_clicks"]
        (0.0, 0.7083, 1)
    """
    totals = ClickMetrics()
    totals.add(scores, clicked, offsets)
    return totals.compute()


class ClickMetrics:
    """Metrics of impressions that are added in batches."""

    def __init__(self) -> None:
        self.sums = dict.fromkeys(METRICS, 0.0)
        self.squared_sums = dict.fromkeys(METRICS, 0.0)
        self.counts = dict.fromkeys(METRICS, 0)
        self.impression_counts = {"impressions": 0, "only_clicks": 0, "only_non_clicks": 0}

    def add(self, scores: Any, clicked: Any, offsets: Any) -> None:
        """Add impressions. The arguments are those of `compute`."""
        scores, clicked, offsets = check_arrays(scores, clicked, offsets)
        for start, end in iterate_impression_chunks(offsets):
            chunk = slice(offsets[start], offsets[end])
            chunk_offsets = offsets[start : end + 1] - offsets[start]
            for name, values in compute_chunk(scores[chunk], clicked[chunk], chunk_offsets).items():
                self.sums[name] += float(np.nansum(values))
                self.squared_sums[name] += float(np.nansum(values**2))
                self.counts[name] += int((~np.isnan(values)).sum())
            num_clicks, sizes = sum_per_impression(clicked[chunk], chunk_offsets), np.diff(chunk_offsets)
            self.impression_counts["impressions"] += len(sizes)
            self.impression_counts["only_clicks"] += int(((num_clicks == sizes) & (num_clicks > 0)).sum())
            self.impression_counts["only_non_clicks"] += int((num_clicks == 0).sum())

    def to_array(self) -> Any:
        """Return all sums as an array. The sum of such arrays belongs to the impressions of all of them."""
        return np.array([x for sums in self._sums() for x in sums.values()], dtype=np.float64)

    @classmethod
    def from_array(cls, array: Any) -> "ClickMetrics":
        """Return the metrics with the sums that `to_array` returned."""
        totals, values = cls(), iter(np.asarray(array).tolist())
        for sums in totals._sums():
            for name, zero in sums.items():
                sums[name] = type(zero)(next(values))
        return totals

    def _sums(self) -> tuple[dict[str, Any], ...]:
        return self.sums, self.squared_sums, self.counts, self.impression_counts

    def compute(self) -> dict[str, float]:
        """Return the metrics of all impressions that were added."""
        means = {name: self.sums[name] / count if (count := self.counts[name]) else np.nan for name in METRICS}
        return {**means, **self.impression_counts}

    def standard_error(self) -> float:
        """Return the standard error of the primary metric, a mean over impressions."""
        count = self.counts[PRIMARY]
        if count < 2:
            return np.nan
        mean = self.sums[PRIMARY] / count
        variance = max(self.squared_sums[PRIMARY] / count - mean**2, 0.0)
        return float(np.sqrt(variance / (count - 1)))


def compute_per_impression(scores: Any, clicked: Any, offsets: Any) -> dict[str, Any]:
    """Compute each metric (impressions,), NaN where undefined. The arguments are those of `compute`."""
    return compute_chunk(*check_arrays(scores, clicked, offsets))


def compute_chunk(scores: Any, clicked: Any, offsets: Any) -> dict[str, Any]:
    """Compute each metric (impressions,) of arrays that are valid."""
    sizes = np.diff(offsets)
    impression = np.repeat(np.arange(len(sizes)), sizes)
    order = sort_candidates(scores, impression)
    rank = np.arange(1, len(scores) + 1) - offsets[impression]
    clicks = np.flatnonzero(clicked[order])  # only clicks contribute to the sums
    click_impression, click_rank = impression[clicks], rank[clicks]

    def sum_over_clicks(values: Any) -> Any:
        return np.bincount(click_impression, weights=values, minlength=len(sizes))

    num_clicks = sum_over_clicks(None).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0 is NaN: the metric is undefined
        rank_sums = sum_over_clicks(mean_ranks(rank, scores[order], impression)[clicks])
        num_inversions = rank_sums - num_clicks * (num_clicks + 1) / 2
        metrics = {
            "auc": 1 - num_inversions / (num_clicks * (sizes - num_clicks)),
            "mind_mrr": sum_over_clicks(1 / click_rank) / num_clicks,
        }
        for cutoff in NDCG_CUTOFFS:
            gain = np.where(click_rank <= cutoff, 1 / np.log2(1 + click_rank), 0)
            best_gain = np.concatenate([[0], np.cumsum(1 / np.log2(1 + np.arange(1, cutoff + 1)))])
            num_relevant = np.minimum(num_clicks, cutoff).astype(int)
            metrics[f"ndcg@{cutoff}"] = sum_over_clicks(gain) / best_gain[num_relevant]
    return metrics


def sort_candidates(scores: Any, impression: Any) -> Any:
    """Return the order of candidates by impression, then by score, the best first; equal scores stay in their order.

    Args:
        scores: (candidates,), without NaN.
        impression: (candidates,), the impression of each, ascending.
    """
    if scores.dtype != np.float32 or (len(impression) and impression[-1] >= 2**31):
        return np.lexsort((-scores.astype(np.float64), impression))
    # One integer per candidate is faster to sort: the impression, and the bits of the score such that a larger score
    # is a smaller integer. Adding 0 makes −0 equal to 0.
    bits = (scores + np.float32(0)).view(np.int32).astype(np.int64)
    descending = np.where(bits < 0, bits & 0x7FFFFFFF, ~bits)
    return np.argsort((impression.astype(np.int64) << 32) + descending, kind="stable")


def mean_ranks(rank: Any, scores: Any, impression: Any) -> Any:
    """Return ranks where candidates with equal scores share their mean rank. The arguments are sorted by rank."""
    if not len(rank):
        return rank
    is_group_start = np.ones(len(rank), dtype=bool)
    is_group_start[1:] = (scores[1:] != scores[:-1]) | (impression[1:] != impression[:-1])
    starts = np.flatnonzero(is_group_start)
    lengths = np.diff(np.append(starts, len(rank)))
    return np.repeat(rank[starts] + (lengths - 1) / 2, lengths)


def sum_per_impression(values: Any, offsets: Any) -> Any:
    """Return the sums (impressions,) of values (candidates,)."""
    sizes = np.diff(offsets)
    return np.bincount(np.repeat(np.arange(len(sizes)), sizes), weights=values, minlength=len(sizes))


def iterate_impression_chunks(offsets: Any) -> Iterator[tuple[int, int]]:
    """Iterate over ranges (start, end) of impressions with at most `MAX_CHUNK_CANDIDATES`, or one impression."""
    start, num_impressions = 0, len(offsets) - 1
    while start < num_impressions:
        end = int(np.searchsorted(offsets, offsets[start] + MAX_CHUNK_CANDIDATES, side="right")) - 1
        end = max(min(end, num_impressions), start + 1)
        yield start, end
        start = end


def check_arrays(scores: Any, clicked: Any, offsets: Any) -> tuple[Any, Any, Any]:
    """Return the arguments of `compute` as arrays.

    Raises:
        UserError: They are invalid.
    """
    scores, clicked, offsets = np.asarray(scores), np.asarray(clicked), np.asarray(offsets, dtype=np.int64)
    if scores.ndim != 1 or scores.shape != clicked.shape:
        raise UserError(f"scores {scores.shape} and clicked {clicked.shape} must both be (candidates,)")
    if offsets.ndim != 1 or not len(offsets) or offsets[0] != 0 or offsets[-1] != len(scores):
        raise UserError(f"offsets must go from 0 to the number of candidates, {len(scores)}")
    if (np.diff(offsets) < 0).any():
        raise UserError("offsets must not decrease")
    if ((clicked != 0) & (clicked != 1)).any():
        raise UserError("clicked must be 0 or 1")
    if np.isnan(scores).any():
        impression = int(np.searchsorted(offsets, np.flatnonzero(np.isnan(scores))[0], side="right")) - 1
        raise UserError(f"impression {impression} (from 0): a score is NaN")
    return scores, clicked, offsets
