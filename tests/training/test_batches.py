"""Length-grouped batches: each row once per epoch, for any number of processes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.errors import UserError
from headwise.training.core.batches import LengthGroupedSampler


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
