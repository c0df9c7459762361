"""Batches of examples of similar length: each example once per epoch, for any number of processes."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Sampler

from headwise.errors import UserError
from headwise.tasks.splitting import shuffled_indices

#: Number of batches whose examples are sorted by length together.
GROUP_BATCHES = 50


class LengthGroupedSampler(Sampler[list[int]]):
    """A process's share of the batches of an epoch. The batches are the same for any number of processes.

    Args:
        lengths: the length of each example.
        batch_size: examples per batch, over all processes. The remainder is spread, so that batches have similar sizes.
        seed: seed of the order, which also depends on `epoch`.
        process: the rank of this process.
        num_processes: the number of processes.

    Raises:
        UserError: there are more processes than examples in a batch.

    Example:
        >>> shares = [LengthGroupedSampler([3, 1, 2, 1, 3], 4, seed=0, process=i, num_processes=2) for i in (0, 1)]
        >>> sorted(row for share in shares for batch in share for row in batch)
        [0, 1, 2, 3, 4]
    """

    def __init__(self, lengths: Any, batch_size: int, *, seed: int, process: int = 0, num_processes: int = 1) -> None:
        self.lengths = np.asarray(lengths)
        smallest = min(batch_size, len(self.lengths))
        if num_processes > smallest:
            raise UserError(f"{num_processes} processes cannot share batches of {smallest} rows (--batch-size)")
        self.batch_size, self.seed, self.process, self.num_processes = batch_size, seed, process, num_processes
        self.num_batches = min(-(-len(self.lengths) // batch_size), len(self.lengths) // num_processes)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[list[int]]:
        order = shuffled_indices(len(self.lengths), (self.seed, self.epoch))
        group_size = GROUP_BATCHES * self.batch_size
        groups = np.split(order, range(group_size, len(order), group_size))
        by_length = np.concatenate([group[np.argsort(self.lengths[group], kind="stable")] for group in groups])
        batches = np.array_split(by_length, self.num_batches)
        for index in shuffled_indices(self.num_batches, (self.seed, self.epoch, 1)):
            yield batches[index][self.process :: self.num_processes].tolist()


class TokenBatchSampler(LengthGroupedSampler):
    """A process's share of the batches of an epoch, which have a limited number of tokens.

    All examples are sorted by length. The sizes of the batches depend on the lengths alone and are the same in every
    epoch; examples of the same length and the order of the batches are shuffled.

    Args:
        lengths: the number of tokens of each example.
        batch_size: the maximum number of examples in a batch, over all processes.
        batch_tokens: the maximum number of tokens in a batch, with padding, over all processes.
        seed, process, num_processes: as for `LengthGroupedSampler`.

    Raises:
        UserError: a batch cannot hold one of the longest examples per process.

    Example:
        >>> batches = list(TokenBatchSampler([3, 1, 2, 1], 4, batch_tokens=4, seed=0))
        >>> sorted(map(sorted, batches))
        [[0], [1, 3], [2]]
    """

    def __init__(self, lengths: Any, batch_size: int, *, batch_tokens: int, seed: int, **processes: int) -> None:
        super().__init__(lengths, batch_size, seed=seed, **processes)
        longest = int(self.lengths.max())
        if longest * self.num_processes > batch_tokens:
            raise UserError(
                f"--batch-tokens {batch_tokens} is too small for {self.num_processes} text(s) of {longest} tokens, the "
                "longest in the data"
            )
        self.boundaries = compute_boundaries(np.sort(self.lengths), batch_tokens, self.num_processes, batch_size)
        self.num_batches = len(self.boundaries) + 1

    def __iter__(self) -> Iterator[list[int]]:
        order = shuffled_indices(len(self.lengths), (self.seed, self.epoch))
        batches = np.split(order[np.argsort(self.lengths[order], kind="stable")], self.boundaries)
        for index in shuffled_indices(self.num_batches, (self.seed, self.epoch, 1)):
            yield batches[index][self.process :: self.num_processes].tolist()


def build_sampler(
    lengths: Any, batch_size: int, batch_tokens: int | None, *, seed: int, **processes: int
) -> LengthGroupedSampler:
    """Return the sampler for batches of a number of examples, and of tokens if it is limited."""
    if batch_tokens is None:
        return LengthGroupedSampler(lengths, batch_size, seed=seed, **processes)
    return TokenBatchSampler(lengths, batch_size, batch_tokens=batch_tokens, seed=seed, **processes)


def compute_boundaries(
    lengths: NDArray[Any], batch_tokens: int, num_processes: int = 1, max_rows: int | None = None
) -> list[int]:
    """Return where one batch ends and the next begins, given the lengths in ascending order.

    The boundaries depend on the lengths alone, so they are the same in every epoch. If the last batch has fewer
    examples than there are processes, it is merged with the one before.

    Args:
        lengths: the number of tokens of each example, in ascending order.
        batch_tokens: the maximum number of tokens in a batch, with padding. A longer example has its own batch.
        num_processes: the number of processes that share a batch.
        max_rows: the maximum number of examples in a batch; by default there is none.

    >>> compute_boundaries(np.array([1, 1, 2, 3, 3]), 6), compute_boundaries(np.array([1, 1, 2, 3, 3]), 6, max_rows=2)
    ([3], [2, 4])
    """
    ends, start = [], 0
    while start < len(lengths):
        size = max(1, batch_tokens // max(1, int(lengths[start])))
        window = lengths[start : start + (size if max_rows is None else min(size, max_rows))]
        fits = np.arange(1, len(window) + 1) * window <= batch_tokens
        start += max(1, int(fits.sum()))
        ends.append(start)
    if len(ends) > 1 and len(lengths) - ends[-2] < num_processes:
        del ends[-2]
    return ends[:-1]


class EpochDataLoader(DataLoader[Any]):
    """A DataLoader that passes the epoch, which the Trainer sets, on to its batch sampler."""

    def set_epoch(self, epoch: int) -> None:
        sampler: Any = self.batch_sampler
        sampler.set_epoch(epoch)


def identity_collate(batch: Any) -> Any:
    """Identity collate function, for datasets that return whole batches."""
    return batch
