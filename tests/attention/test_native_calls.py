"""Cached calls in C++, with a driver that runs on the CPU.

The kernels of these tests are functions of this file: the addresses of parameters reach them as they would reach a GPU.
What is computed on a GPU is tested in test_cached_calls.py.
"""

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
from headwise.attention.triton_backend import native
from headwise.attention.triton_backend.native import pack

pytestmark = pytest.mark.long  # a compiler takes a minute

SCALE, SCALE_BACKWARD, FAILURE = 1, 2, 3
NUM_ROWS, NUM_COLUMNS = 3, 4
LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    *[ctypes.c_uint] * 7,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)


def read(params: Any, index: int, kind: Any) -> Any:
    return ctypes.cast(params[index], ctypes.POINTER(kind)).contents.value


def array(params: Any, index: int, size: int) -> Any:
    return (ctypes.c_float * size).from_address(read(params, index, ctypes.c_uint64))


@LAUNCH  # type: ignore[untyped-decorator]
def launch(
    function: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int, stream: int, params: Any, _: Any
) -> int:
    """Compute y = factor · w · x for rows x, or dx and the parts of dw, as kernels would."""
    if function == FAILURE:
        return 700
    assert (gx, gy, gz, bx, shared, stream) == (NUM_ROWS, 1, 1, 128, 64, 5)
    size, factor = read(params, 3, ctypes.c_int32), read(params, 4, ctypes.c_float)
    x, w = array(params, 0, size), array(params, 1, 2)
    if function == SCALE:
        y = array(params, 2, size)
        for i in range(size):
            y[i] = factor * w[0] * x[i]
    else:
        d_output, dx, dw = array(params, 2, size), array(params, 5, size), array(params, 6, NUM_ROWS)
        for i in range(size):
            dx[i] = factor * w[0] * d_output[i]
            dw[i // NUM_COLUMNS] += factor * x[i] * d_output[i]
    return 0


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    directory = tmp_path_factory.mktemp("native")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(native.DIRECTORY_VARIABLE, str(directory))
        native.load.cache_clear()
        assert native.load() is None, "nothing was built yet"
        try:
            module = native.build()
        except RuntimeError as error:
            if "compiler" in str(error) or "Ninja" in str(error):
                pytest.skip(f"no C++ compiler: {error}")
            raise
        assert native.build() is module, "built once"
        module.set_driver(ctypes.cast(launch, ctypes.c_void_p).value, 0, 0)
        yield module
    # A process loads the module once, also from two paths: tests that follow need the real driver.
    for function in (native.load, native.load_for_gpu):
        function.cache_clear()
    native.load_for_gpu()


def add_launch(program: Any, function: int, slots: dict[int, int], num_params: int, offsets: dict[int, int]) -> None:
    params = [0] * num_params
    params[3:5] = pack("i32", NUM_ROWS * NUM_COLUMNS), pack("fp32", 0.5)
    addresses = [(param, slot, offsets.get(param, 0)) for param, slot in slots.items()]
    program.add_launch(function, (NUM_ROWS, 1, 1), 128, 64, params, addresses)


class Call:
    """y = factor · w[1] · x, whose backward pass C++ learns after the first time."""

    def __init__(self, module: Any, scale: float = 0.0) -> None:
        self.module, self.scale, self.num_calls = module, scale, 0
        forward = module.Program()
        add_launch(forward, SCALE, {0: 0, 1: 1, 2: 2}, 5, {1: 4})  # the second element of w
        forward.add_buffer(True, [NUM_ROWS, NUM_COLUMNS], [NUM_COLUMNS, 1], torch.float32, False, 0, 1)
        forward.add_buffer(False, [], [], torch.float32, False, 0, 1)
        self.native = module.NativeCall(
            forward, 2, False, [[NUM_COLUMNS, 1], [1], [NUM_COLUMNS, 1]], self.compute_gradients
        )

    def __call__(self, x: Tensor, w: Tensor) -> Tensor:
        outputs: list[Tensor] = self.module.attend(self.native, (x, w), 5)
        return outputs[0]

    def compute_gradients(
        self, call: Any, saved: list[Tensor | None], d_outputs: list[Tensor], needs: tuple[bool, ...]
    ) -> Any:
        self.num_calls += 1
        (d_output,) = d_outputs
        x, w, y, absent = saved
        assert x is not None
        assert w is not None
        assert y is not None
        assert absent is None
        if not torch.is_grad_enabled():
            call.add_backward(
                list(needs), list(d_output.stride()), d_output.data_ptr() % 16, self.backward_program(needs)
            )
        dw = torch.stack([torch.zeros(()), (0.5 * x * d_output).sum()])
        return [0.5 * w[1] * d_output if needs[0] else None, dw if needs[1] else None]

    def backward_program(self, needs: tuple[bool, ...]) -> Any:
        program = self.module.Program()
        # The tensors are x, w, y, an absent one, the gradient, then the buffers.
        add_launch(program, SCALE_BACKWARD, {0: 0, 1: 1, 2: 4, 5: 5, 6: 6}, 7, {1: 4, 6: 4 * NUM_ROWS})
        program.add_buffer(True, [NUM_ROWS, NUM_COLUMNS], [], torch.float32, False, 0, 1)
        program.add_buffer(True, [2, NUM_ROWS, 1], [], torch.float32, True, 0, 1)
        program.add_gradient(needs[0], 5, [], -1, self.scale, torch.float32)
        program.add_gradient(needs[1], 6, [1, 2], -1, 0.0, torch.float32)
        return program


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(NUM_ROWS, NUM_COLUMNS, requires_grad=True), torch.tensor([9.0, 3.0], requires_grad=True)


def test_outputs_and_gradients(module: Any) -> None:
    call = Call(module)
    for repetition in range(3):
        x, w = inputs()
        output = call(x, w)
        torch.testing.assert_close(output, 1.5 * x)
        d_output = torch.randn_like(output)
        dx, dw = torch.autograd.grad(output, (x, w), d_output)
        torch.testing.assert_close(dx, 1.5 * d_output)
        torch.testing.assert_close(dw, torch.stack([torch.zeros(()), (0.5 * x * d_output).sum()]).detach())
        assert call.num_calls == 1, f"Python computes the first gradients only, not those of call {repetition}"


def test_multiples_of_gradients(module: Any) -> None:
    call = Call(module, scale=2.0)
    x, w = inputs()
    grads = [torch.autograd.grad(call(x, w).sum(), x)[0] for _ in range(2)]
    torch.testing.assert_close(grads, [torch.full_like(x, 1.5), torch.full_like(x, 3.0)])


def test_inputs_without_gradients(module: Any) -> None:
    call = Call(module)
    x, w = inputs()
    with torch.no_grad():
        assert not call(x, w).requires_grad
    assert not call(x.detach(), w.detach()).requires_grad
    for _ in range(2):
        output = call(x, w.detach())
        torch.testing.assert_close(torch.autograd.grad(output.sum(), x)[0], torch.full_like(x, 1.5))
    assert call.num_calls == 1


def test_other_layouts_of_the_gradient(module: Any) -> None:
    call = Call(module)
    x, w = inputs()
    for grads in (torch.ones(NUM_COLUMNS, NUM_ROWS).T, torch.ones(()).expand(NUM_ROWS, NUM_COLUMNS)):
        for _ in range(2):
            torch.testing.assert_close(torch.autograd.grad(call(x, w), x, grads)[0], torch.full_like(x, 1.5))
    assert call.num_calls == 1, "rows that are not contiguous are copied"


def test_second_derivatives_take_the_way_of_python(module: Any) -> None:
    call = Call(module)
    x, w = inputs()
    (dx,) = torch.autograd.grad(call(x, w).sum(), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(dx.sum(), w)[0], torch.tensor([0.0, 0.5 * x.numel()]))
    assert call.num_calls == 1


def test_changed_layouts_of_saved_tensors(module: Any) -> None:
    call = Call(module)
    x, w = inputs()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: t.clone(), lambda t: t.mT.contiguous().mT if t.dim() == 2 else t
    ):
        output = call(x, w)
    torch.testing.assert_close(torch.autograd.grad(output.sum(), x)[0], torch.full_like(x, 1.5))
    assert call.num_calls == 1


def test_changed_layout_of_the_saved_output(module: Any) -> None:
    call = Call(module)
    x, w = inputs()
    torch.autograd.grad(call(x, w).sum(), x)
    hooks = (lambda t: t if t is x or t.dim() == 1 else t.mT.contiguous().mT), (lambda t: t)
    with torch.autograd.graph.saved_tensors_hooks(*hooks):
        output = call(x, w)
    torch.testing.assert_close(torch.autograd.grad(output.sum(), x)[0], torch.full_like(x, 1.5))
    assert call.num_calls == 2, "Python computes gradients of other layouts"


def test_gradients_outlive_the_call(module: Any) -> None:
    x, w = inputs()
    output = Call(module)(x, w)
    torch.testing.assert_close(torch.autograd.grad(output.sum(), x)[0], torch.full_like(x, 1.5))


def test_errors_of_the_driver(module: Any) -> None:
    program = module.Program()
    program.add_launch(FAILURE, (1, 1, 1), 32, 0, [], [])
    program.add_buffer(True, [1], [], torch.float32, False, 0, 1)
    call = module.NativeCall(program, 1, False, [[1], [1]], None)
    with pytest.raises(RuntimeError, match=r"could not be launched \(CUDA error 700\)"):
        module.attend(call, (torch.zeros(1),), 5)


def test_buffers_live_from_their_first_to_their_last_launch(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    program = module.Program()
    add_launch(program, SCALE, {0: 0, 1: 1, 2: 5}, 5, {1: 4})
    add_launch(program, SCALE_BACKWARD, {0: 0, 1: 1, 2: 4, 5: 6, 6: 7}, 7, {1: 4, 6: 4 * NUM_ROWS})
    shape = [NUM_ROWS, NUM_COLUMNS]
    program.add_buffer(True, shape, [], torch.float32, False, 0, 0)
    program.add_buffer(True, shape, [], torch.float32, False, 1, 2)
    program.add_buffer(True, [2, NUM_ROWS, 1], [], torch.float32, True, 1, 2)
    program.add_gradient(True, 6, [], -1, 0.0, torch.float32)
    program.add_gradient(True, 7, [1, 2], -1, 0.0, torch.float32)
    call = Call(module)
    monkeypatch.setattr(call, "backward_program", lambda needs: program)
    x, w = inputs()
    for _ in range(2):
        d_output = torch.randn(NUM_ROWS, NUM_COLUMNS)
        dx, dw = torch.autograd.grad(call(x, w), (x, w), d_output)
        torch.testing.assert_close(dx, 1.5 * d_output)
        torch.testing.assert_close(dw, torch.stack([torch.zeros(()), (0.5 * x * d_output).sum()]).detach())
    assert call.num_calls == 1


def test_received_attention_is_a_second_output(module: Any) -> None:
    """Its gradient reaches the kernel without the mean of its rows."""
    forward, backward = module.Program(), module.Program()
    add_launch(forward, SCALE, {0: 0, 1: 1, 2: 2}, 5, {1: 4})
    add_launch(forward, SCALE, {0: 0, 1: 1, 2: 3}, 5, {1: 4})
    for _ in range(2):
        forward.add_buffer(True, [NUM_ROWS, NUM_COLUMNS], [NUM_COLUMNS, 1], torch.float32, False, 0, 2)
    # The tensors are x, w, y, both gradients, then the buffers.
    add_launch(backward, SCALE_BACKWARD, {0: 0, 1: 1, 2: 4, 5: 5, 6: 6}, 7, {1: 4, 6: 4 * NUM_ROWS})
    backward.add_buffer(True, [NUM_ROWS, NUM_COLUMNS], [], torch.float32, False, 0, 1)
    backward.add_buffer(True, [2, NUM_ROWS, 1], [], torch.float32, True, 0, 1)
    backward.add_gradient(True, 5, [], -1, 0.0, torch.float32)
    backward.add_gradient(False, 0, [], -1, 0.0, torch.float32)
    backward.center(4)
    x, w = inputs()
    call = module.NativeCall(forward, 1, True, [[NUM_COLUMNS, 1], [1], [NUM_COLUMNS, 1]], None)
    call.add_backward([True, False], [NUM_COLUMNS, 1], 0, backward)
    output, received = module.attend(call, (x, w.detach()), 5)
    torch.testing.assert_close((output, received), (1.5 * x, 1.5 * x))
    d_output, d_received = torch.zeros(NUM_ROWS, NUM_COLUMNS), torch.randn(NUM_COLUMNS, NUM_ROWS).T
    (dx,) = torch.autograd.grad((output, received), x, (d_output, d_received))
    torch.testing.assert_close(dx, 1.5 * (d_received - d_received.mean(dim=1, keepdim=True)))
