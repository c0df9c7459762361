"""Training batches of a click log: each click with sampled non-clicks of the same impression.

The sampled non-clicks depend on the seed, the epoch and the impression only, not on the number of processes or on
whether the run was resumed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from headwise.errors import UserError
from headwise.tasks.metrics.clicks import sum_per_impression
from headwise.tasks.mind import Impressions, Split
from headwise.training.core.batches import LengthGroupedSampler
from headwise.training.recommendation.titles import Titles


@dataclass(frozen=True)
class TrainingImpressions:
    """The impressions of a split that a model can be trained on, and statistics of the split.

    Args:
        rows: (usable,), the impressions with at least one click and one non-click.
        history_lengths: (usable,), the number of clicks in their histories.
        click_counts: (news,), how often each news item was clicked.
        is_seen: (news,), whether a news item occurs in a history or among candidates.
        num_skipped: the number of impressions with only clicks or only non-clicks.
    """

    rows: Any
    history_lengths: Any
    click_counts: Any
    is_seen: Any
    num_skipped: int


def find_training_impressions(split: Split, num_news: int) -> TrainingImpressions:
    """Find the usable impressions of a split in one pass.

    Raises:
        UserError: the split has no labels or no usable impression.
    """
    if not split.labelled:
        raise UserError(f"{split.rows.origin}: the candidates have no labels, such as N123-1, to train on")
    click_counts, is_seen = np.zeros(num_news, dtype=np.int64), np.zeros(num_news, dtype=bool)
    rows, history_lengths, start = [], [], 0
    for part in split.parts():
        num_candidates, num_clicks = np.diff(part.offsets), sum_per_impression(part.clicked, part.offsets)
        usable = np.flatnonzero((num_clicks > 0) & (num_clicks < num_candidates))
        rows.append((usable + start).astype(np.int32))
        history_lengths.append(np.diff(part.history_offsets)[usable].astype(np.int32))
        click_counts += count_part_clicks(part, num_news)
        is_seen[part.candidates] = is_seen[part.history] = True
        start += len(num_candidates)
    all_rows = np.concatenate(rows)
    if not len(all_rows):
        raise UserError(f"{split.rows.origin}: no impression has both a click and a non-click")
    return TrainingImpressions(all_rows, np.concatenate(history_lengths), click_counts, is_seen, start - len(all_rows))


def count_clicks(split: Split, num_news: int) -> Any:
    """Return how often each news item was clicked, (news,)."""
    return sum((count_part_clicks(part, num_news) for part in split.parts()), np.zeros(num_news, dtype=np.int64))


def count_part_clicks(part: Impressions, num_news: int) -> Any:
    """Return how often each news item was clicked in some impressions, (news,)."""
    return np.bincount(part.candidates[np.asarray(part.clicked, dtype=bool)], minlength=num_news)


class EpochBatchSampler(LengthGroupedSampler):
    """A batch sampler whose batches include the epoch, as (epoch, rows)."""

    def __iter__(self) -> Iterator[Any]:
        return ([(self.epoch, rows)] for rows in super().__iter__())


class ClickDataset(Dataset[dict[str, Tensor]]):
    """Returns whole batches of impressions as the model takes them; each title occurs once per batch.

    Args:
        split: a split with labels.
        rows: (impressions,), the usable impressions.
        titles: the titles of all news.
        history: the maximum number of clicks in a history; the latest are used.
        negatives: the number of non-clicks per click; all of them if an impression has fewer.
        seed: the seed of the sampled non-clicks.
    """

    def __init__(self, split: Split, rows: Any, titles: Titles, *, history: int, negatives: int, seed: int) -> None:
        self.split, self.rows, self.titles = split, rows, titles
        self.history, self.negatives, self.seed = history, negatives, seed

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, epoch_and_indices: tuple[int, Sequence[int]]) -> dict[str, Tensor]:
        """Return the batch of an epoch with these indices into `rows`."""
        epoch, indices = epoch_and_indices
        rows = self.rows[np.asarray(indices)]
        part = self.split.take(rows)
        history = take_latest(part.history, part.history_offsets, self.history)
        clicked = np.asarray(part.clicked, dtype=bool)
        impression = np.repeat(np.arange(len(rows)), np.diff(part.offsets))
        clicks, non_clicks = np.flatnonzero(clicked), np.flatnonzero(~clicked)
        user = impression[clicks]
        keys = splitmix64(np.uint64(self.seed) << np.uint64(32) | np.uint64(epoch))
        keys = keys ^ splitmix64(rows[user].astype(np.uint64))
        keys ^= (clicks - part.offsets[user]).astype(np.uint64)
        num_non_clicks = np.bincount(impression[non_clicks], minlength=len(rows))
        sampled = sample_positions(num_non_clicks, user, keys, self.negatives)
        is_missing = sampled < 0
        positions = np.concatenate([clicks[:, None], non_clicks[np.where(is_missing, 0, sampled)]], axis=1)
        candidates = part.candidates[positions]
        candidates[:, 1:][is_missing] = -1
        news, (history, candidates) = renumber([history, candidates], len(self.titles))
        tokens, mask = self.titles.take(news)
        batch = {
            "input_ids": tokens,
            "attention_mask": mask,
            "history": history,
            "candidates": candidates,
            "user": user,
            "labels": np.zeros(len(user)),
        }
        return {name: torch.from_numpy(array.astype(np.int64)) for name, array in batch.items()}


def unwrap_batch(batches: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Collate function for a dataset that returns whole batches."""
    (batch,) = batches
    return batch


def take_latest(values: Any, offsets: Any, max_count: int) -> Any:
    """Return the last values of each list in their order, padded with −1: (lists, longest).

    >>> take_latest(np.array([7, 8, 9, 5]), np.array([0, 3, 3, 4]), 2).tolist()
    [[8, 9], [-1, -1], [5, -1]]
    """
    ends = offsets[1:]
    lengths = np.minimum(np.diff(offsets), max_count)
    columns = np.arange(max(int(lengths.max(initial=0)), 1))
    is_value = columns < lengths[:, None]
    indices = (ends - lengths)[:, None] + columns
    return np.where(is_value, values[np.where(is_value, indices, 0)] if len(values) else -1, -1)


def sample_positions(counts: Any, lists: Any, keys: Any, num_samples: int) -> Any:
    """Sample positions from concatenated lists without replacement: (keys, samples), ascending, padded with −1.

    Args:
        counts: (lists,), the length of each list.
        lists: (keys,), the list that each key samples from.
        keys: (keys,), the random numbers that determine the samples.
        num_samples: the number of positions per key.
    """
    starts = np.concatenate([[0], np.cumsum(counts)])[lists]
    columns = np.arange(max(int(counts.max(initial=0)), num_samples))
    priorities = splitmix64(keys[:, None] + splitmix64(columns.astype(np.uint64)))
    priorities = np.where(columns < counts[lists][:, None], priorities, np.uint64(2**64 - 1))
    samples = np.sort(np.argpartition(priorities, num_samples - 1, axis=1)[:, :num_samples], axis=1)
    return np.where(samples < counts[lists][:, None], starts[:, None] + samples, -1)


def splitmix64(x: Any) -> Any:
    """Hash 64-bit integers with the output function of SplitMix64 (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        x = (x + np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def renumber(arrays: Sequence[Any], count: int) -> tuple[Any, list[Any]]:
    """Return the distinct numbers below `count` in some arrays, and the arrays with indices into them; −1 is kept.

    >>> news, (array,) = renumber([np.array([[7, 3], [7, -1]])], 10)
    >>> news.tolist(), array.tolist()
    ([3, 7], [[1, 0], [1, -1]])
    """
    is_used = np.zeros(count + 1, dtype=bool)
    for array in arrays:
        is_used[array] = True  # −1 sets the last element
    is_used[-1] = False
    numbers = np.flatnonzero(is_used)
    indices = np.full(count + 1, -1)
    indices[numbers] = np.arange(len(numbers))
    return numbers, [indices[array] for array in arrays]
