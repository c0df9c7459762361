"""Every row once an epoch, in batches that do not depend on the number of processes."""

import numpy as np
import pytest
from headwise.training.text.batches import Batches
from hypothesis import given
from hypothesis import strategies as st

from headwise.errors import UserError


@given(rows=st.integers(1, 300), size=st.integers(1, 40), processes=st.integers(1, 4), epoch=st.integers(0, 3))
def test_each_row_once(rows: int, size: int, processes: int, epoch: int) -> None:
    if processes > min(rows, size):
        with pytest.raises(UserError, match=f"{processes} processes cannot share batches of {min(rows, size)} rows"):
            Batches(np.ones(rows), size, seed=0, processes=processes)
        return
    shares = [Batches(np.ones(rows), size, seed=0, process=i, processes=processes) for i in range(processes)]
    for share in shares:
        share.epoch = epoch
    batches = list(zip(*shares, strict=True))
    assert len(batches) == len(shares[0])
    assert sorted(row for batch in batches for share in batch for row in share) == list(range(rows))
    assert all(share for batch in batches for share in batch), "no process is without rows"
    if processes == 1:
        assert max(len(batch[0]) for batch in batches) <= size


def test_two_processes_share_the_batches_of_one() -> None:
    lengths = np.arange(103) % 7
    alone = [sorted(batch) for batch in Batches(lengths, 8, seed=3)]
    halves = [Batches(lengths, 8, seed=3, process=i, processes=2) for i in (0, 1)]
    assert [sorted(a + b) for a, b in zip(*halves, strict=True)] == alone


def test_another_order_every_epoch_and_texts_of_a_length_together() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 400)
    batches = Batches(lengths, 10, seed=0)
    first = list(batches)
    assert list(batches) == first
    batches.epoch = 1
    assert list(batches) != first
    assert np.mean([np.ptp(lengths[batch]) for batch in first]) < 10
