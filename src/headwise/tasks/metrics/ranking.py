"""Candidates in order of their scores, for each query: the reciprocal rank of the first hit (MRR), MAP, nDCG, R@k.

Of equal scores, the relevant one ranks last: a model gains nothing by scores that are all the same. Queries with no
relevant candidate, which no order can help, are left out and counted; R@k is the share of the relevant candidates.
"""

from typing import Any

import numpy as np
from datasets import Dataset

from headwise.tasks.metrics.rows import column_array, label_values

PRIMARY = "mrr"
CUTS = (1, 3, 5, 20)


def compute(scores: Any, rows: Dataset) -> dict[str, float]:
    ranks = hits(scores, rows)
    found = [ranked for ranked in ranks if len(ranked)]
    each = {
        "mrr": [1 / ranked[0] for ranked in found],
        "map": [np.mean(np.arange(1, len(ranked) + 1) / ranked) for ranked in found],
        "ndcg": [gain(ranked) / gain(np.arange(1, len(ranked) + 1)) for ranked in found],
        **{f"r@{cut}": [np.mean(ranked <= cut) for ranked in found] for cut in CUTS},
    }
    means = {name: float(np.mean(numbers)) if numbers else 0.0 for name, numbers in each.items()}
    return {**means, "queries": float(len(found)), "queries_without_hit": float(len(ranks) - len(found))}


def gain(ranks: Any) -> Any:
    return (1 / np.log2(1 + ranks)).sum()


def row_statistics(scores: Any, rows: Dataset) -> Any:
    """The reciprocal rank of the first hit and one, for each query that has one."""
    return np.array([(1 / ranked[0], 1) for ranked in hits(scores, rows) if len(ranked)]).reshape(-1, 2)


def from_sums(sums: Any) -> Any:
    return sums[..., 0] / np.maximum(sums[..., 1], 1)


def hits(scores: Any, rows: Dataset) -> list[Any]:
    """For each query, in the order of their names, the ranks of its relevant candidates, from 1."""
    _, query = np.unique(label_values(rows, "query"), return_inverse=True)
    relevant = column_array(rows, "label")
    order = np.lexsort((relevant, -relevance(scores), query))
    starts = np.flatnonzero(np.diff(query[order], prepend=-1))
    return [np.flatnonzero(part) + 1 for part in np.split(relevant[order], starts[1:])]


def relevance(scores: Any) -> Any:
    """One number a row: of two, how much the second (relevant) is above the first."""
    scores = np.asarray(scores, dtype=np.float64)
    return scores[:, 1] - scores[:, 0] if scores.ndim == 2 and scores.shape[1] == 2 else scores.reshape(-1)
