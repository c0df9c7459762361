"""Clipped tables with few rows, whose products the kernels compute (`staged_tables.py`), against float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import RelativePositions, attend
from headwise.attention.triton_backend import cached_calls, cached_tables, plan, problem
from tests.short_form import keep_short

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS, WIDTH = 2, 32

#: Lengths of queries and keys, options of the scheme and of `attend`.
CASES: dict[str, tuple[int, int, dict[str, Any], dict[str, Any]]] = {
    "k16": (100, 100, {"k": 16}, {}),
    "k0-one-tile": (9, 9, {"k": 0}, {}),
    "k1-causal": (70, 70, {"k": 1}, {"causal": True}),
    "k31-window": (130, 130, {"k": 31}, {"window": (40, 3)}),
    "k3-keys-softcap": (67, 67, {"k": 3, "values": False}, {"softcap": 2.0}),
    "k5-values-per-head-padded": (80, 80, {"k": 5, "keys": False, "per_head": True}, {"key_padding": True}),
    "k20-per-head-more-keys": (33, 150, {"k": 20, "per_head": True}, {"causal": True}),
    "k12-offset": (65, 40, {"k": 12}, {"offset": 7}),
    "k6-long": (90, 90, {"k": 6}, {}),
}


def tensors(n: int, m: int, dtype: torch.dtype = torch.float16) -> list[Tensor]:
    generator = torch.Generator().manual_seed(n * 1000 + m)
    shapes = ((2, HEADS, n, WIDTH), (2, HEADS, m, WIDTH), (2, HEADS, m, WIDTH))
    return [torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes]


def compute(
    inputs: list[Tensor], scheme: RelativePositions, dtype: torch.dtype, backend: Any, options: dict[str, Any]
) -> list[Tensor]:
    """Return the output and all gradients in float64."""
    leaves = [x.to(dtype).requires_grad_() for x in inputs]
    options = dict(options)
    if options.pop("key_padding", False):
        m = inputs[1].shape[2]
        options["key_padding"] = torch.arange(m, device=DEVICE) < torch.tensor([[m], [m - 5]], device=DEVICE)
    output = attend(*leaves, scheme=scheme, backend=backend, **options)
    grads = torch.autograd.grad(output.double().square().sum(), [*leaves, *scheme.parameters()])
    return [x.detach().double() for x in (output, *grads)]


@pytest.mark.parametrize("case", keep_short(CASES, "k16"))
def test_tables_in_shared_memory_are_as_exact_as_the_reference(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n, m, scheme_options, options = CASES[case]
    torch.manual_seed(1)
    scheme = RelativePositions(HEADS, WIDTH, std=0.3, **scheme_options).to(DEVICE)
    inputs = tensors(n, m)
    built: list[cached_tables.TableCall] = []

    class RecordedCall(cached_tables.TableCall):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            built.append(self)

    monkeypatch.setattr(cached_calls, "TableCall", RecordedCall)
    if case.endswith("long"):
        monkeypatch.setattr(problem, "MAX_SHORT_LENGTH", 0)
    cached_calls.clear_calls()
    plan.clear_plans()
    for _ in range(2):  # a repeated call is launched directly
        results = compute(inputs, scheme, torch.float16, "triton", options)
    assert built
    assert all(call.staged_tables for call in built)
    low = compute(inputs, scheme, torch.float16, "reference", options)
    exact = compute(inputs, scheme.double(), torch.float64, "reference", options)
    largest = max(float(x.abs().max()) for x in exact)  # with k = 0, the gradient of the key table is exactly 0
    for index, (result, rounded, expected) in enumerate(zip(results, low, exact, strict=True)):
        factor = 2 if index == 0 else 3
        tolerance = factor * float((rounded - expected).abs().max()) + 1e-3 * largest
        error = float((result - expected).abs().max())
        assert error <= tolerance, f"result {index}: error {error:.1e}, allowed {tolerance:.1e}"


def test_dropped_weights_are_those_of_tables_outside_of_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    scheme = RelativePositions(HEADS, WIDTH, k=4, std=0.3).to(DEVICE)
    inputs = tensors(70, 70)

    def run() -> list[Tensor]:
        cached_calls.clear_calls()
        plan.clear_plans()
        torch.manual_seed(2)
        return compute(inputs, scheme, torch.float16, "triton", {"dropout": 0.4})

    staged = run()
    monkeypatch.setattr(cached_tables, "MAX_STAGED_OFFSET", -1)
    for actual, expected in zip(staged, run(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-2 * float(expected.abs().max()))
