"""Cached calls of the Triton backend: a repeated call gives what the first one gave."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import DistanceAware, Plain, Scheme, attend
from headwise.attention.triton_backend import cached_calls, plan
from tests.short_form import choose_size, keep_short

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.float16 if DEVICE == "cuda" else torch.float32  # tiles of float32 are smaller
HEADS = 2
LENGTH = 70 if DEVICE == "cuda" else choose_size(short=12, long=40)  # one or two tiles

SCHEMES: dict[str, Callable[[], Scheme]] = {
    "plain": Plain,
    "distance-aware": lambda: DistanceAware(HEADS, v_std=1.0),
    "distance-aware-unrectified": lambda: DistanceAware(HEADS, rectify=False),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "no-options": {},
    "causal": {"causal": True},
    "padded": {"key_padding": True},
    "dropout": {"dropout": 0.3, "key_padding": True, "scale": 0.2},
}


@pytest.fixture(autouse=True)
def empty_caches() -> Iterator[None]:
    plan.clear_plans()
    cached_calls.clear_calls()
    yield
    plan.clear_plans()
    cached_calls.clear_calls()


def inputs(n: int, m: int, *, key_heads: int = HEADS, transposed: bool = False) -> list[Tensor]:
    generator = torch.Generator().manual_seed(n + m)
    tensors = []
    for heads, length in ((HEADS, n), (key_heads, m), (key_heads, m)):
        shape = (2, length, heads, 16) if transposed else (2, heads, length, 16)
        x = torch.randn(shape, generator=generator).to(DEVICE, DTYPE)
        tensors.append((x.transpose(1, 2) if transposed else x).requires_grad_())
    return tensors


def run(tensors: list[Tensor], scheme: Scheme, **options: Any) -> list[Tensor]:
    """Return the output and all gradients."""
    if options.pop("key_padding", False):
        lengths = torch.tensor([[tensors[1].shape[2]], [tensors[1].shape[2] - 5]], device=DEVICE)
        options["key_padding"] = torch.arange(tensors[1].shape[2], device=DEVICE) < lengths
    torch.manual_seed(3)
    output = attend(*tensors, scheme=scheme, backend="triton", **options)
    parameters = [*tensors, *scheme.parameters()]
    return [output.detach(), *torch.autograd.grad(output.float().square().sum(), parameters)]


@pytest.mark.short_form("values")
@pytest.mark.parametrize("max_short_length", [0, 512])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_repeated_calls_give_the_same_bits(
    scheme: str, options: str, max_short_length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MAX_SHORT_LENGTH", max_short_length)
    layer, tensors = SCHEMES[scheme]().to(DEVICE), inputs(LENGTH, LENGTH)
    first = run(tensors, layer, **OPTIONS[options])
    num_calls = cached_calls.num_calls()  # on a GPU, the first call of a process also runs the self-test
    assert num_calls in (1, 2)
    again = run(tensors, layer, **OPTIONS[options])
    assert cached_calls.num_calls() == num_calls
    for expected, actual in zip(first, again, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize("scheme", keep_short(SCHEMES, "distance-aware"))
def test_calls_with_other_layouts_or_options_are_not_confused(scheme: str) -> None:
    layer = SCHEMES[scheme]().to(DEVICE)
    n = LENGTH if DEVICE == "cuda" else 12  # one tile is interpreted faster
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"n": n, "m": n}, {}),
        ({"n": n, "m": n}, {"causal": True}),
        ({"n": n, "m": n}, {"scale": 0.5}),
        ({"n": n, "m": n}, {"key_padding": True}),
        ({"n": n, "m": n, "transposed": True}, {}),
        ({"n": n, "m": n, "key_heads": 1}, {}),
        ({"n": 20, "m": 20}, {}),
        ({"n": 20, "m": 33}, {}),
    ]
    expected = [run(inputs(**shape), layer, **options) for shape, options in cases]
    for (shape, options), first in zip(cases, expected, strict=True):
        for value, again in zip(first, run(inputs(**shape), layer, **options), strict=True):
            torch.testing.assert_close(again, value, rtol=0, atol=0)
    assert cached_calls.num_calls() == len(cases)


def test_a_cached_call_reads_the_parameters_of_now() -> None:
    layer, tensors = DistanceAware(HEADS).to(DEVICE), inputs(LENGTH, LENGTH)
    run(tensors, layer)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(-0.7)
    cached = run(tensors, layer)
    expected = attend(*tensors, scheme=layer, backend="reference")
    torch.testing.assert_close(cached[0], expected.detach(), rtol=1e-2, atol=1e-2)


def test_hooks_of_the_scheme_are_called() -> None:
    layer, tensors, calls = DistanceAware(HEADS).to(DEVICE), inputs(20, 20), []
    run(tensors, layer)
    layer.register_forward_hook(lambda *_: calls.append(1))
    run(tensors, layer)
    assert calls == [1]


def test_wrong_arguments_are_found_after_right_ones() -> None:
    layer, (q, k, v) = DistanceAware(HEADS).to(DEVICE), inputs(20, 20)
    attend(q, k, v, scheme=layer, backend="triton")
    with pytest.raises(ValueError, match="dropout"):
        attend(q, k, v, scheme=layer, backend="triton", dropout=1.5)
    with pytest.raises(ValueError, match="same heads and length"):
        attend(q, k, v[:, :, :10], scheme=layer, backend="triton")
    with pytest.raises(ValueError, match="heads=3"):
        attend(q, k, v, scheme=DistanceAware(3).to(DEVICE), backend="triton")


def test_gradients_do_not_depend_on_the_layout_of_the_outputs_gradient() -> None:
    layer, tensors = DistanceAware(HEADS).to(DEVICE), inputs(20, 20)
    run(tensors, layer)
    grads = []
    for order in ((0, 1, 2, 3), (0, 2, 1, 3), (3, 2, 1, 0)):
        output = attend(*tensors, scheme=layer, backend="triton")
        d_output = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE, DTYPE)
        inverse = [order.index(axis) for axis in range(4)]
        d_output = d_output.permute(order).contiguous().permute(inverse)
        grads.append(torch.autograd.grad(output, [*tensors, *layer.parameters()], d_output))
    for other in grads[1:]:
        for expected, actual in zip(grads[0], other, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)  # the order of sums may differ


def test_saved_tensors_may_be_copied() -> None:
    layer, tensors = DistanceAware(HEADS).to(DEVICE), inputs(20, 20, transposed=True)
    expected = run(tensors, layer)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.cpu().contiguous(), lambda x: x.to(DEVICE)):
        actual = run(tensors, layer)
    for x, y in zip(expected, actual, strict=True):
        torch.testing.assert_close(y, x, rtol=1e-3, atol=1e-3)


def test_second_derivatives_are_refused() -> None:
    layer, tensors = Plain(), inputs(20, 20)
    run(tensors, layer)
    output = attend(*tensors, scheme=layer, backend="triton")
    (dq,) = torch.autograd.grad(output.float().sum(), tensors[0], create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(dq.float().sum(), tensors[1])


def test_calls_without_gradients_record_nothing() -> None:
    layer, tensors = DistanceAware(HEADS).to(DEVICE), inputs(20, 20)
    expected = run(tensors, layer)[0]
    with torch.no_grad():
        output = attend(*tensors, scheme=layer, backend="triton")
    assert not output.requires_grad
    torch.testing.assert_close(output, expected, rtol=0, atol=0)
