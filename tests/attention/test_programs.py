"""Programs allocate a buffer before its first launch and free it after its last one."""

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
from headwise.attention.triton_backend.programs import Buffer, Gradient, Program

NUM_INPUTS = 2


class FakeLaunch:
    """A launch that uses the tensors of some slots and remembers which buffers exist when it runs."""

    def __init__(self, used_slots: set[int], num_tensors: int) -> None:
        self.used_slots, self.num_tensors = used_slots, num_tensors
        self.existing: list[int] = []

    def __call__(self, tensors: list[Tensor | None], stream: int) -> None:
        self.existing = [slot for slot in range(NUM_INPUTS, self.num_tensors) if tensors[slot] is not None]
        for slot in self.used_slots:
            x = tensors[slot]
            if x is not None:
                x.fill_(slot)


def run(uses: list[set[int]], gradients: list[Gradient | None]) -> tuple[list[list[int]], list[Tensor | None]]:
    """Return the buffers that exist during each launch, and the gradients or all tensors."""
    buffers = [Buffer((3,), torch.float32), Buffer((3,), torch.float32), None, Buffer((3,), torch.float32)]
    launches: list[Any] = [FakeLaunch(slots, NUM_INPUTS + len(buffers)) for slots in uses]
    program = Program(launches, buffers, gradients)
    inputs = [torch.zeros(3) for _ in range(NUM_INPUTS)]
    results = program.run_backward(inputs) if gradients else program.run(inputs)
    return [launch.existing for launch in launches], results


def test_a_backward_pass_frees_what_it_no_longer_needs() -> None:
    existing, grads = run([{0, 2}, {2, 3}, {1, 5}], [Gradient(3), Gradient(5)])
    assert existing == [[2], [2, 3], [3, 5]]
    torch.testing.assert_close(grads, [torch.full((3,), 3.0), torch.full((3,), 5.0)])


def test_a_forward_pass_keeps_its_buffers() -> None:
    existing, tensors = run([{0, 2}, {3}, {5}], [])
    assert existing == [[2], [2, 3], [2, 3, 5]]
    assert [x is None for x in tensors[NUM_INPUTS:]] == [False, False, True, False]


def test_gradients_that_no_launch_uses_are_allocated() -> None:
    _, grads = run([{0, 2}], [Gradient(3), None])
    assert grads[0] is not None
    assert grads[1] is None
