"""Length-grouped batches: each row once per epoch, for any number of processes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.errors import UserError
from headwise.training.core.batches import LengthGroupedSampler, TokenBatchSampler, compute_boundaries


@given(rows=st.integers(1, 300), batch_size=st.integers(1, 40), processes=st.integers(1, 4), epoch=st.integers(0, 3))
def test_each_row_is_sampled_once(rows: int, batch_size: int, processes: int, epoch: int) -> None:
    smallest = min(rows, batch_size)
    if processes > smallest:
        with pytest.raises(UserError, match=f"{processes} processes cannot share batches of {smallest} rows"):
            LengthGroupedSampler(np.ones(rows), batch_size, seed=0, num_processes=processes)
        return
    samplers = [
        LengthGroupedSampler(np.ones(rows), batch_size, seed=0, process=i, num_processes=processes)
        for i in range(processes)
    ]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    batches = list(zip(*samplers, strict=True))
    assert len(batches) == len(samplers[0])
    assert sorted(row for batch in batches for share in batch for row in share) == list(range(rows))
    assert all(share for batch in batches for share in batch), "a process has no rows"
    if processes == 1:
        assert max(len(batch[0]) for batch in batches) <= batch_size


def test_processes_share_the_batches_of_a_single_process() -> None:
    lengths = np.arange(103) % 7
    single = [sorted(batch) for batch in LengthGroupedSampler(lengths, 8, seed=3)]
    halves = [LengthGroupedSampler(lengths, 8, seed=3, process=i, num_processes=2) for i in (0, 1)]
    assert [sorted(a + b) for a, b in zip(*halves, strict=True)] == single


def test_order_depends_on_the_epoch_and_rows_are_grouped_by_length() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 400)
    sampler = LengthGroupedSampler(lengths, 10, seed=0)
    first_epoch = list(sampler)
    assert list(sampler) == first_epoch
    sampler.set_epoch(1)
    assert list(sampler) != first_epoch
    assert np.mean([np.ptp(lengths[batch]) for batch in first_epoch]) < 10


@given(
    lengths=st.lists(st.integers(1, 60), min_size=4, max_size=200),
    batch_tokens=st.integers(240, 500),
    processes=st.integers(1, 4),
    epoch=st.integers(0, 2),
)
def test_batches_have_at_most_the_given_number_of_tokens(
    lengths: list[int], batch_tokens: int, processes: int, epoch: int
) -> None:
    sizes = np.array(lengths)
    samplers = [
        TokenBatchSampler(sizes, 30, batch_tokens=batch_tokens, seed=0, process=i, num_processes=processes)
        for i in range(processes)
    ]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    batches = [[row for share in shares for row in share] for shares in zip(*samplers, strict=True)]
    assert len(batches) == len(samplers[0])
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    assert all(share for shares in zip(*samplers, strict=True) for share in shares), "a process has no rows"
    if processes == 1:
        assert all(len(batch) * sizes[batch].max() <= batch_tokens for batch in batches)
        assert all(len(batch) <= 30 for batch in batches)


def test_token_batches_are_shuffled_and_have_the_same_sizes_in_every_epoch() -> None:
    lengths = np.random.default_rng(0).integers(1, 20, 400)
    sampler = TokenBatchSampler(lengths, 1000, batch_tokens=200, seed=0)
    first_epoch = list(sampler)
    assert list(sampler) == first_epoch
    sampler.set_epoch(1)
    second_epoch = list(sampler)
    assert sorted(map(len, second_epoch)) == sorted(map(len, first_epoch))
    assert sorted(map(sorted, second_epoch)) != sorted(map(sorted, first_epoch))
    assert len(first_epoch) < 1.3 * lengths.sum() / 200


def test_a_batch_must_hold_the_longest_text() -> None:
    with pytest.raises(UserError, match=r"--batch-tokens 50 is too small for 2 text\(s\) of 30 tokens"):
        TokenBatchSampler([30, 1, 1], 3, batch_tokens=50, seed=0, num_processes=2)


def test_a_text_above_the_limit_has_its_own_batch() -> None:
    assert compute_boundaries(np.array([3, 3, 50, 60]), 10) == [2, 3]
