"""Which rows are learnt from together: texts of about one length, each row once an epoch, however many processes."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Sampler

from headwise.errors import UserError
from headwise.tasks.splitting import shuffled_indices

#: So many batches are drawn together and put in order of length.
TOGETHER = 50


class Batches(Sampler[list[int]]):
    """A process's share of every batch of an epoch. The batches themselves do not depend on the number of processes.

    Args:
        lengths: of each row.
        size: rows in a batch, all processes together; the last rows are spread, so that batches are alike.
        seed: of the order, which is another one every `epoch`.
        process, processes: whose share, of how many.

    Raises:
        UserError: more processes than rows in a batch.

    Example:
        >>> from headwise.training.text.batches import Batches
        >>> shares = [list(Batches([3, 1, 2, 1, 3], 4, seed=0, process=i, processes=2)) for i in (0, 1)]
        >>> sorted(row for share in shares for batch in share for row in batch)
        [0, 1, 2, 3, 4]
    """

    def __init__(self, lengths: Any, size: int, *, seed: int, process: int = 0, processes: int = 1) -> None:
        self.lengths = np.asarray(lengths)
        least = min(size, len(self.lengths))
        if processes > least:
            raise UserError(f"{processes} processes cannot share batches of {least} rows (--batch-size)")
        self.size, self.seed, self.process, self.processes = size, seed, process, processes
        self.count = min(-(-len(self.lengths) // size), len(self.lengths) // processes)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """The Trainer tells it, also where it goes on in the middle of an epoch and has a loader of its own."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[list[int]]:
        order = shuffled_indices(len(self.lengths), (self.seed, self.epoch))
        parts = np.split(order, range(TOGETHER * self.size, len(order), TOGETHER * self.size))
        by_length = np.concatenate([part[np.argsort(self.lengths[part], kind="stable")] for part in parts])
        batches = np.array_split(by_length, self.count)
        for number in shuffled_indices(self.count, (self.seed, self.epoch, 1)):
            yield batches[number][self.process :: self.processes].tolist()


class Loader(DataLoader[Any]):
    """A DataLoader that tells its batches the epoch, which the Trainer tells it."""

    def set_epoch(self, epoch: int) -> None:
        assert isinstance(self.batch_sampler, Batches)
        self.batch_sampler.set_epoch(epoch)
