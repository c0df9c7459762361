"""What one look at the training impressions tells: which can be learnt from, and what was clicked how often."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from headwise.errors import UserError
from headwise.tasks.metrics.clicks import sum_per_impression
from headwise.tasks.mind import Split


@dataclass(frozen=True)
class Survey:
    """Of a split's impressions.

    Args:
        rows: (usable,), those with a click and a non-click.
        lengths: (usable,), of their histories.
        clicks: (news,), how often each was clicked.
        seen: (news,), whether it was shown or clicked before.
        skipped: how many have only clicks or only non-clicks.
    """

    rows: Any
    lengths: Any
    clicks: Any
    seen: Any
    skipped: int


def survey(split: Split, news: int) -> Survey:
    """Look at all impressions once.

    Raises:
        UserError: there is nothing to learn from.
    """
    if not split.labelled:
        raise UserError(f"{split.rows.origin}: its candidates have no labels, such as N123-1, to learn from")
    clicks, seen = np.zeros(news, dtype=np.int64), np.zeros(news, dtype=bool)
    rows, lengths, first = [], [], 0
    for part in split.parts():
        sizes, hits = np.diff(part.offsets), sum_per_impression(part.clicked, part.offsets)
        usable = np.flatnonzero((hits > 0) & (hits < sizes))
        rows.append((usable + first).astype(np.int32))
        lengths.append(np.diff(part.history_offsets)[usable].astype(np.int32))
        clicks += np.bincount(part.candidates[np.asarray(part.clicked, dtype=bool)], minlength=news)
        seen[part.candidates] = seen[part.history] = True
        first += len(sizes)
    found = np.concatenate(rows)
    if not len(found):
        raise UserError(f"{split.rows.origin}: no impression has both a click and a non-click")
    return Survey(found, np.concatenate(lengths), clicks, seen, first - len(found))
