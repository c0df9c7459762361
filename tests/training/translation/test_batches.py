"""Batches of tokens: each pair once, no batch too large, the same for any number of processes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise.errors import UserError
from headwise.training.translation.batches import Batched, Loader, TokenBatches
from headwise.training.translation.tokens import Ragged, Tokens

LENGTHS = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=60)


@given(LENGTHS, st.integers(60, 200), st.integers(1, 3), st.integers(0, 3))
def test_each_pair_once_and_no_batch_too_large(
    lengths: list[tuple[int, int]], size: int, processes: int, epoch: int
) -> None:
    source, target = map(np.array, zip(*lengths, strict=True))
    shares = [TokenBatches(source, target, size, seed=1, process=i, processes=processes) for i in range(processes)]
    for share in shares:
        share.epoch = epoch
    found = [[list(batch) for batch in share] for share in shares]
    assert len({len(share) for share in found}) == 1
    assert len(found[0]) == len(shares[0])
    together = [[row for part in batch for row in part] for batch in zip(*found, strict=True)]
    assert sorted(row for batch in together for row in batch) == list(range(len(lengths)))
    widest = [max(max(source[row], target[row]) for row in batch) * len(batch) for batch in together]
    joined = sorted(widest)[:-1] if processes > 1 else widest  # one may have taken in a last one that was too small
    assert all(tokens <= size for tokens in joined)


def test_epochs_differ_and_seeds_repeat() -> None:
    lengths = np.arange(1, 101) % 7 + 1
    batches = TokenBatches(lengths, lengths, 40, seed=0)
    first = [list(batch) for batch in batches]
    assert first == [list(batch) for batch in TokenBatches(lengths, lengths, 40, seed=0)]
    batches.epoch = 1
    second = [list(batch) for batch in batches]
    assert first != second
    assert len(first) == len(second)


def test_no_room() -> None:
    with pytest.raises(UserError, match="no room for 2"):
        TokenBatches(np.array([30]), np.array([2]), 50, processes=2)


def test_what_a_batch_holds() -> None:
    source = Ragged(np.array([5, 2, 6, 7, 2], np.uint16), np.array([2, 5]))
    target = Ragged(np.array([8, 9, 2, 2], np.uint16), np.array([3, 4]))
    batched = Batched(Tokens(source, target), torch.device("cpu"), start=1, padding=0)
    (batch,) = Loader(batched, TokenBatches(source.lengths, target.lengths, 99, ordered=True))
    order = [0, 1] if batch["input_ids"][0, 0] == 5 else [1, 0]
    expected = {
        "input_ids": [[5, 2, 0, 0], [6, 7, 2, 0]],
        "attention_mask": [[True, True, False, False], [True, True, True, False]],
        "decoder_input_ids": [[1, 8, 9, 2], [1, 2, 0, 0]],
        "labels": [[8, 9, 2, -100], [2, -100, -100, -100]],
    }
    assert {name: table[order].tolist() for name, table in batch.items()} == expected
