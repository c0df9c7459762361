"""Impressions to learn from: each click beside some non-clicks of the same impression, drawn anew every epoch.

What is drawn depends on the seed, the epoch and the impression, and on nothing else: not on the number of processes,
nor on where a killed run goes on.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from headwise.tasks.mind import Split
from headwise.training.recommendation.titles import Titles
from headwise.training.text.batches import Batches


class EpochBatches(Batches):
    """Batches that know which epoch they are of."""

    def __iter__(self) -> Iterator[Any]:
        return ([(self.epoch, rows)] for rows in super().__iter__())


class Clicks(Dataset[dict[str, Tensor]]):
    """Batches of impressions, as the model takes them: every title of a batch once.

    Args:
        split: with labels.
        rows: (impressions,), those to learn from, each with a click and a non-click.
        titles: of all news.
        history: the latest clicks that are looked at.
        negatives: non-clicks for each click; where an impression has fewer, all of them.
        seed: of what is drawn.
    """

    def __init__(self, split: Split, rows: Any, titles: Titles, *, history: int, negatives: int, seed: int) -> None:
        self.split, self.rows, self.titles = split, rows, titles
        self.history, self.negatives, self.seed = history, negatives, seed

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, batch: tuple[int, Sequence[int]]) -> dict[str, Tensor]:
        """An epoch and numbers of impressions → a batch."""
        epoch, chosen = batch
        rows = self.rows[np.asarray(chosen)]
        part = self.split.take(rows)
        history = latest(part.history, part.history_offsets, self.history)
        clicked = np.asarray(part.clicked, dtype=bool)
        impression = np.repeat(np.arange(len(rows)), np.diff(part.offsets))
        hits, others = np.flatnonzero(clicked), np.flatnonzero(~clicked)
        user = impression[hits]
        key = mixed(np.uint64(self.seed) << np.uint64(32) | np.uint64(epoch)) ^ mixed(rows[user].astype(np.uint64))
        key ^= (hits - part.offsets[user]).astype(np.uint64)
        drawn = draw(np.bincount(impression[others], minlength=len(rows)), user, key, self.negatives)
        missing = drawn < 0
        shown = np.concatenate([hits[:, None], others[np.where(missing, 0, drawn)]], axis=1)
        candidates = part.candidates[shown]
        candidates[:, 1:][missing] = -1
        news, (history, candidates) = numbered([history, candidates], len(self.titles))
        tokens, real = self.titles.take(news)
        found = {
            "input_ids": tokens,
            "attention_mask": real,
            "history": history,
            "candidates": candidates,
            "user": user,
            "labels": np.zeros(len(user)),
        }
        return {name: torch.from_numpy(x.astype(np.int64)) for name, x in found.items()}


def keep_rows(batches: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """What a loader makes of one batch that is ready."""
    (batch,) = batches
    return batch


def latest(values: Any, offsets: Any, most: int) -> Any:
    """The last values of each list, in their order, (lists, longest), then −1.

    >>> latest(np.array([7, 8, 9, 5]), np.array([0, 3, 3, 4]), 2).tolist()
    [[8, 9], [-1, -1], [5, -1]]
    """
    ends = offsets[1:]
    lengths = np.minimum(np.diff(offsets), most)
    place = np.arange(max(int(lengths.max(initial=0)), 1))
    real = place < lengths[:, None]
    at = (ends - lengths)[:, None] + place
    return np.where(real, values[np.where(real, at, 0)] if len(values) else -1, -1)


def draw(counts: Any, lists: Any, keys: Any, most: int) -> Any:
    """For each key `most` different places of a list in a flat array of all lists, in order, then −1.

    Args:
        counts: (lists,), how long each is.
        lists: (keys,), which list each key draws from.
        keys: what is drawn depends on it.
        most: how many are drawn.
    """
    starts = np.concatenate([[0], np.cumsum(counts)])[lists]
    place = np.arange(max(int(counts.max(initial=0)), most))
    lots = mixed(keys[:, None] + mixed(place.astype(np.uint64)))
    lots = np.where(place < counts[lists][:, None], lots, np.uint64(2**64 - 1))
    drawn = np.sort(np.argpartition(lots, most - 1, axis=1)[:, :most], axis=1)
    return np.where(drawn < counts[lists][:, None], starts[:, None] + drawn, -1)


def mixed(x: Any) -> Any:
    """Numbers of 64 bits that look random, one for each: the last step of SplitMix64 (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        x = (x + np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def numbered(tables: Sequence[Any], count: int) -> tuple[Any, list[Any]]:
    """The numbers below `count` that stand in tables, once each, and the tables with their places instead.

    >>> news, (table,) = numbered([np.array([[7, 3], [7, -1]])], 10)
    >>> news.tolist(), table.tolist()
    ([3, 7], [[1, 0], [1, -1]])
    """
    seen = np.zeros(count + 1, dtype=bool)
    for table in tables:
        seen[table] = True  # −1 is the last
    seen[-1] = False
    found = np.flatnonzero(seen)
    places = np.full(count + 1, -1)
    places[found] = np.arange(len(found))
    return found, [places[table] for table in tables]
