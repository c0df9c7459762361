"""Batches of examples of similar length: each example once per epoch, for any number of processes."""

from collections.abc import Iterator
from typing import Any

import numpy as np
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


class EpochDataLoader(DataLoader[Any]):
    """A DataLoader that passes the epoch, which the Trainer sets, on to its batch sampler."""

    def set_epoch(self, epoch: int) -> None:
        sampler: Any = self.batch_sampler
        sampler.set_epoch(epoch)


def identity_collate(batch: Any) -> Any:
    """Identity collate function, for datasets that return whole batches."""
    return batch
