"""Which pairs are learnt from together: of about one length, about so many tokens, each pair once an epoch."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from headwise.errors import UserError
from headwise.tasks.splitting import shuffled_indices
from headwise.training.translation.tokens import Tokens

#: Tables are as wide as a multiple of this: fewer shapes, for which kernels are chosen once.
WIDTHS = 4


class TokenBatches(Sampler[Any]):
    """A process's share of every batch of an epoch; the batches do not depend on the number of processes.

    Args:
        source, target: lengths of each pair's sentences.
        size: the most tokens in a batch, of either side, with padding.
        seed: of the order, which is another one every `epoch`.
        process, processes: whose share, of how many.
        ordered: the pairs by length, in the same batches every time.

    Raises:
        UserError: a batch has no room for a pair each process.

    Example:
        >>> batches = TokenBatches(np.array([3, 1, 2, 1]), np.array([2, 1, 2, 3]), size=6, seed=0)
        >>> sorted(int(row) for batch in batches for row in batch)
        [0, 1, 2, 3]
    """

    def __init__(
        self,
        source: NDArray[Any],
        target: NDArray[Any],
        size: int,
        *,
        seed: int = 0,
        process: int = 0,
        processes: int = 1,
        ordered: bool = False,
    ) -> None:
        self.source, self.target, self.size, self.seed = source, target, size, seed
        self.process, self.processes, self.ordered = process, processes, ordered
        self.epoch = 0
        longest = int(max(source.max(), target.max()))
        if longest * processes > size:
            raise UserError(
                f"--batch-size {size} has no room for {processes} sentence(s) of {longest} tokens, the longest there is"
            )
        self.widths = np.maximum(source, target)
        self.cuts = cuts(np.sort(self.widths), size, processes)

    def set_epoch(self, epoch: int) -> None:
        """The Trainer tells it, also where it goes on in the middle of an epoch and has a loader of its own."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.cuts) + 1

    def __iter__(self) -> Iterator[NDArray[Any]]:
        count = len(self.source)
        order = np.arange(count) if self.ordered else shuffled_indices(count, (self.seed, self.epoch))
        by_length = order[np.lexsort((self.target[order], self.widths[order]))]
        batches = np.split(by_length, self.cuts)
        for number in range(len(self)) if self.ordered else shuffled_indices(len(self), (self.seed, self.epoch, 1)):
            yield batches[number][self.process :: self.processes]


def cuts(widths: NDArray[Any], size: int, processes: int) -> list[int]:
    """Where batches end, of rows in order of their widths: the same in every epoch, whatever rows are equally wide.

    A last batch without a row for each process joins the one before.
    """
    found, start = [], 0
    while start < len(widths):
        window = widths[start : start + max(1, size // int(widths[start]))]
        fits = np.arange(1, len(window) + 1) * window <= size
        start += max(1, int(fits.sum()))
        found.append(start)
    if len(found) > 1 and len(widths) - found[-2] < processes:
        del found[-2]
    return found[:-1]


class Batched(Dataset[Any]):
    """Batches of pairs by their rows, as tensors on a device; the host does not wait for the copies."""

    def __init__(self, tokens: Tokens, device: torch.device, *, start: int, padding: int) -> None:
        self.tokens, self.device, self.start, self.padding = tokens, device, start, padding

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitems__(self, rows: Any) -> dict[str, Tensor]:
        source = widened(self.tokens.source.padded(rows, self.padding), self.padding)
        labels = widened(self.tokens.target.padded(rows, -100), -100)
        read = np.concatenate([np.full((len(labels), 1), self.start), labels[:, :-1]], axis=1)
        read[read == -100] = self.padding
        tables = {
            "input_ids": source,
            "attention_mask": source != self.padding,
            "decoder_input_ids": read,
            "labels": labels,
        }
        return {name: self.placed(torch.from_numpy(table)) for name, table in tables.items()}

    def placed(self, table: Tensor) -> Tensor:
        return table.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else table


def widened(table: NDArray[Any], filling: int) -> NDArray[Any]:
    """A table as wide as a multiple of WIDTHS."""
    more = -table.shape[1] % WIDTHS
    return np.pad(table, ((0, 0), (0, more)), constant_values=filling) if more else table


class Loader(DataLoader[Any]):
    """A DataLoader of batches that are made whole, which tells them the epoch that the Trainer tells it."""

    def __init__(self, batched: Batched, batches: TokenBatches) -> None:
        super().__init__(batched, batch_sampler=batches, collate_fn=identity_collate)

    def set_epoch(self, epoch: int) -> None:
        assert isinstance(self.batch_sampler, TokenBatches)
        self.batch_sampler.set_epoch(epoch)


def identity_collate(batch: Any) -> Any:
    return batch
