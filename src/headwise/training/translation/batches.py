"""Batches of sentence pairs: of similar length, with a bounded number of tokens, each pair once per epoch."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from headwise.errors import UserError
from headwise.tasks.splitting import shuffled_indices
from headwise.training.core.batches import compute_boundaries
from headwise.training.translation.tokens import TokenizedPairs

#: Batches are padded to a multiple of this length, so that kernels are chosen for fewer shapes.
PAD_TO_MULTIPLE_OF = 4
#: Label of padding, which the loss ignores.
IGNORE_INDEX = -100


class TokenBatchSampler(Sampler[Any]):
    """Samples batches by their number of tokens; yields this process's share of each batch.

    The batches do not depend on the number of processes.

    Args:
        source_lengths, target_lengths: the number of tokens of each pair's sentences.
        batch_size: the maximum number of tokens in a batch, on either side, including padding.
        seed: the seed of the order, which differs from epoch to epoch.
        process_index, num_processes: which share to yield, out of how many.
        ordered: sort the pairs by length and yield the same batches in every epoch.

    Raises:
        UserError: a batch cannot hold one of the longest pairs per process.

    Example:
        >>> batches = TokenBatchSampler(np.array([3, 1, 2, 1]), np.array([2, 1, 2, 3]), batch_size=6, seed=0)
        >>> sorted(int(row) for batch in batches for row in batch)
        [0, 1, 2, 3]
    """

    def __init__(
        self,
        source_lengths: NDArray[Any],
        target_lengths: NDArray[Any],
        batch_size: int,
        *,
        seed: int = 0,
        process_index: int = 0,
        num_processes: int = 1,
        ordered: bool = False,
    ) -> None:
        self.target_lengths, self.seed, self.ordered = target_lengths, seed, ordered
        self.process_index, self.num_processes = process_index, num_processes
        self.epoch = 0
        self.pair_lengths = np.maximum(source_lengths, target_lengths)
        max_length = int(self.pair_lengths.max())
        if max_length * num_processes > batch_size:
            raise UserError(
                f"--batch-size {batch_size} is too small for {num_processes} sentence(s) of {max_length} tokens, the "
                "longest in the data"
            )
        self.boundaries = compute_boundaries(np.sort(self.pair_lengths), batch_size, num_processes)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; the Trainer calls this, also when it resumes within an epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.boundaries) + 1

    def __iter__(self) -> Iterator[NDArray[Any]]:
        num_pairs = len(self.pair_lengths)
        order = np.arange(num_pairs) if self.ordered else shuffled_indices(num_pairs, (self.seed, self.epoch))
        by_length = order[np.lexsort((self.target_lengths[order], self.pair_lengths[order]))]
        batches = np.split(by_length, self.boundaries)
        for index in range(len(self)) if self.ordered else shuffled_indices(len(self), (self.seed, self.epoch, 1)):
            yield batches[index][self.process_index :: self.num_processes]


class TranslationDataset(Dataset[Any]):
    """Returns whole batches of pairs as tensors on a device, copied without blocking the host.

    Args:
        pairs: the tokenized pairs of a split.
        device: the device of the tensors.
        decoder_start_id: the first input token of the decoder.
        pad_id: the token that pads inputs.
    """

    def __init__(self, pairs: TokenizedPairs, device: torch.device, *, decoder_start_id: int, pad_id: int) -> None:
        self.pairs, self.device, self.decoder_start_id, self.pad_id = pairs, device, decoder_start_id, pad_id

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitems__(self, rows: Any) -> dict[str, Tensor]:
        input_ids = pad_width(self.pairs.source.pad(rows, self.pad_id), self.pad_id)
        labels = pad_width(self.pairs.target.pad(rows, IGNORE_INDEX), IGNORE_INDEX)
        start_ids = np.full((len(labels), 1), self.decoder_start_id)
        decoder_input_ids = np.concatenate([start_ids, labels[:, :-1]], axis=1)
        decoder_input_ids[decoder_input_ids == IGNORE_INDEX] = self.pad_id
        batch = {
            "input_ids": input_ids,
            "attention_mask": input_ids != self.pad_id,
            "decoder_input_ids": decoder_input_ids,
            "labels": labels,
        }
        return {name: self.to_device(torch.from_numpy(array)) for name, array in batch.items()}

    def to_device(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tensor


def pad_width(array: NDArray[Any], pad_value: int) -> NDArray[Any]:
    """Pad an array on the right to a multiple of PAD_TO_MULTIPLE_OF columns."""
    missing = -array.shape[1] % PAD_TO_MULTIPLE_OF
    return np.pad(array, ((0, 0), (0, missing)), constant_values=pad_value) if missing else array
