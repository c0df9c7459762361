"""Batches of tokenized pairs: each pair once, bounded size, independent of the number of processes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise.errors import UserError
from headwise.training.core.batches import EpochDataLoader, identity_collate
from headwise.training.translation.batches import TokenBatchSampler, TranslationDataset
from headwise.training.translation.tokens import RaggedArray, TokenizedPairs

LENGTHS = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=60)


@given(LENGTHS, st.integers(60, 200), st.integers(1, 3), st.integers(0, 3))
def test_each_pair_occurs_once_in_batches_within_the_size(
    lengths: list[tuple[int, int]], size: int, num_processes: int, epoch: int
) -> None:
    source, target = map(np.array, zip(*lengths, strict=True))
    samplers = [
        TokenBatchSampler(source, target, size, seed=1, process_index=i, num_processes=num_processes)
        for i in range(num_processes)
    ]
    for sampler in samplers:
        sampler.epoch = epoch
    shares = [[list(batch) for batch in sampler] for sampler in samplers]
    assert len({len(share) for share in shares}) == 1
    assert len(shares[0]) == len(samplers[0])
    batches = [[row for part in batch for row in part] for batch in zip(*shares, strict=True)]
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    sizes = [max(max(source[row], target[row]) for row in batch) * len(batch) for batch in batches]
    # With several processes, one batch may have been merged with a last one that was too small.
    assert all(num_tokens <= size for num_tokens in (sorted(sizes)[:-1] if num_processes > 1 else sizes))


def test_epochs_differ_and_the_same_seed_repeats() -> None:
    lengths = np.arange(1, 101) % 7 + 1
    sampler = TokenBatchSampler(lengths, lengths, 40, seed=0)
    first_epoch = [list(batch) for batch in sampler]
    assert first_epoch == [list(batch) for batch in TokenBatchSampler(lengths, lengths, 40, seed=0)]
    sampler.epoch = 1
    second_epoch = [list(batch) for batch in sampler]
    assert first_epoch != second_epoch
    assert len(first_epoch) == len(second_epoch)


def test_batch_size_must_hold_a_pair_per_process() -> None:
    with pytest.raises(UserError, match="too small for 2 sentence"):
        TokenBatchSampler(np.array([30]), np.array([2]), 50, num_processes=2)


def test_batch_holds_padded_inputs_and_shifted_labels() -> None:
    source = RaggedArray(np.array([5, 2, 6, 7, 2], np.uint16), np.array([2, 5]))
    target = RaggedArray(np.array([8, 9, 2, 2], np.uint16), np.array([3, 4]))
    dataset = TranslationDataset(TokenizedPairs(source, target), torch.device("cpu"), decoder_start_id=1, pad_id=0)
    sampler = TokenBatchSampler(source.lengths, target.lengths, 99, ordered=True)
    (batch,) = EpochDataLoader(dataset, batch_sampler=sampler, collate_fn=identity_collate)
    order = [0, 1] if batch["input_ids"][0, 0] == 5 else [1, 0]
    expected = {
        "input_ids": [[5, 2, 0, 0], [6, 7, 2, 0]],
        "attention_mask": [[True, True, False, False], [True, True, True, False]],
        "decoder_input_ids": [[1, 8, 9, 2], [1, 2, 0, 0]],
        "labels": [[8, 9, 2, -100], [2, -100, -100, -100]],
    }
    assert {name: tensor[order].tolist() for name, tensor in batch.items()} == expected
