"""News recommendation: candidates in order of their scores, for each impression of a click log, as MIND judges them.

With y of the candidate at rank r being 1 where it was clicked, each a mean over impressions:

    AUC        the share of pairs of a click and a non-click where the click scores higher; equal scores count one half
    MIND's MRR Σ_r (y_r / r) / Σ_r y_r, over all clicks; re-ranking's `mrr` knows the first hit only
    nDCG@k     Σ_{r≤k} (2^{y_r} − 1) / log2(1 + r), divided by the same sum of the best order

Ranks go by score, from the highest; of equal scores, the candidate that the log lists first ranks first. An impression
of only clicks has no AUC, one without clicks none of the three: they are left out of these means, and counted.

Candidates are flat arrays, as in Arrow's lists: impression i has those from `offsets[i]` to `offsets[i + 1]`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from headwise.errors import UserError

PRIMARY = "auc"
CUTS = (5, 10)
METRICS = ("auc", "mind_mrr", *(f"ndcg@{cut}" for cut in CUTS))
CANDIDATES = 2**20  # that are sorted at a time, unless one impression has more


def compute(scores: Any, clicked: Any, offsets: Any) -> dict[str, float]:
    """All metrics, and how many impressions there are, of which label_type; a mean over no impressions is NaN.

    Args:
        scores: (candidates,).
        clicked: (candidates,), 0 or 1.
        offsets: (impressions + 1,), where each impression's candidates begin, and where the last one's end.

    Raises:
        UserError: arrays that do not fit each other, or a score that is not a number.

    Example:
        >>> found = figures([0.9, 0.1, 0.4, 0.3], [0, 1, 1, 1], [0, 3, 4])  # the second impression is one click
        >>> found["auc"], round(found["mind_mrr"], 4), found["only_clicks"]
        (0.0, 0.7083, 1)
    """
    tally = ClickMetrics()
    tally.add(scores, clicked, offsets)
    return tally.figures()


class ClickMetrics:
    """Metrics of impressions that come a part at a time."""

    def __init__(self) -> None:
        self.sums = dict.fromkeys(METRICS, 0.0)
        self.squares = dict.fromkeys(METRICS, 0.0)
        self.counts = dict.fromkeys(METRICS, 0)
        self.kinds = {"impressions": 0, "only_clicks": 0, "only_non_clicks": 0}

    def add(self, scores: Any, clicked: Any, offsets: Any) -> None:
        """Count some impressions; the arguments are those of `figures`."""
        scores, clicked, offsets = checked(scores, clicked, offsets)
        for first, last in row_statistics(offsets):
            inside = slice(offsets[first], offsets[last])
            starts = offsets[first : last + 1] - offsets[first]
            for name, values in each(scores[inside], clicked[inside], starts).items():
                self.sums[name] += float(np.nansum(values))
                self.squares[name] += float(np.nansum(values**2))
                self.counts[name] += int((~np.isnan(values)).sum())
            clicks, sizes = impression_metrics(clicked[inside], starts), np.diff(starts)
            self.kinds["impressions"] += len(sizes)
            self.kinds["only_clicks"] += int(((clicks == sizes) & (clicks > 0)).sum())
            self.kinds["only_non_clicks"] += int((clicks == 0).sum())

    def figures(self) -> dict[str, float]:
        """What `figures` gives, of all that was added."""
        means = {name: self.sums[name] / count if (count := self.counts[name]) else np.nan for name in METRICS}
        return {**means, **self.kinds}

    def standard_error(self) -> float:
        """Of the primary metric: of a mean over impressions, as they might have been others of the same label_type."""
        count = self.counts[PRIMARY]
        if count < 2:
            return np.nan
        mean = self.sums[PRIMARY] / count
        variance = max(self.squares[PRIMARY] / count - mean**2, 0.0)
        return float(np.sqrt(variance / (count - 1)))


def each(scores: Any, clicked: Any, offsets: Any) -> dict[str, Any]:
    """Every metric of every impression (impressions,), NaN where it has none; all in memory at once."""
    scores, clicked, offsets = checked(scores, clicked, offsets)
    sizes = np.diff(offsets)
    impression = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((-scores.astype(np.float64), impression))  # stable: equal scores stay in the log's order
    scores, hit = scores[order], clicked[order]
    rank = np.arange(1, len(scores) + 1) - offsets[impression]
    clicks = impression_metrics(hit, offsets)
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0 is the NaN that is meant
        above = impression_metrics(hit * shared(rank, scores, impression), offsets) - clicks * (clicks + 1) / 2
        found = {
            "auc": 1 - above / (clicks * (sizes - clicks)),
            "mind_mrr": impression_metrics(hit / rank, offsets) / clicks,
        }
        for cut in CUTS:
            gain = np.where(rank <= cut, hit / np.log2(1 + rank), 0)
            best = np.concatenate([[0], np.cumsum(1 / np.log2(1 + np.arange(1, cut + 1)))])
            found[f"ndcg@{cut}"] = impression_metrics(gain, offsets) / best[np.minimum(clicks, cut).astype(int)]
    return found


def shared(rank: Any, scores: Any, impression: Any) -> Any:
    """Ranks, where those of equal scores share their mean."""
    if not len(rank):
        return rank
    new = np.ones(len(rank), dtype=bool)
    new[1:] = (scores[1:] != scores[:-1]) | (impression[1:] != impression[:-1])
    starts = np.flatnonzero(new)
    lengths = np.diff(np.append(starts, len(rank)))
    return np.repeat(rank[starts] + (lengths - 1) / 2, lengths)


def impression_metrics(values: Any, offsets: Any) -> Any:
    """The sum of each impression's values."""
    sizes = np.diff(offsets)
    return np.bincount(np.repeat(np.arange(len(sizes)), sizes), weights=values, minlength=len(sizes))


def row_statistics(offsets: Any) -> Iterator[tuple[int, int]]:
    """Runs of impressions (first, last + 1) with at most `CANDIDATES` candidates, or one impression."""
    first, end = 0, len(offsets) - 1
    while first < end:
        last = int(np.searchsorted(offsets, offsets[first] + CANDIDATES, side="right")) - 1
        last = max(min(last, end), first + 1)
        yield first, last
        first = last


def checked(scores: Any, clicked: Any, offsets: Any) -> tuple[Any, Any, Any]:
    scores, clicked, offsets = np.asarray(scores), np.asarray(clicked), np.asarray(offsets, dtype=np.int64)
    if scores.ndim != 1 or scores.shape != clicked.shape:
        raise UserError(f"scores {scores.shape} and clicked {clicked.shape} must both be (candidates,)")
    if offsets.ndim != 1 or not len(offsets) or offsets[0] != 0 or offsets[-1] != len(scores):
        raise UserError(f"offsets must go from 0 to the number of candidates, {len(scores)}")
    if (np.diff(offsets) < 0).any():
        raise UserError("offsets must not fall")
    if ((clicked != 0) & (clicked != 1)).any():
        raise UserError("clicked must be 0 or 1")
    if np.isnan(scores).any():
        impression = int(np.searchsorted(offsets, np.flatnonzero(np.isnan(scores))[0], side="right")) - 1
        raise UserError(f"impression {impression} (from 0): a score is NaN")
    return scores, clicked, offsets
