"""Distance-aware attention in half precision by the kernels: all regions, and factors in shared memory."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headwise import DistanceAware, attend
from headwise.attention.triton_backend import cached_calls, plan, problem
from tests.short_form import keep_short

pytest.importorskip("triton")
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
WIDTH = 32

#: w and v of the heads: no distance, far keys with a constant and with score 0, steep, and large scores.
W = (0.0, 1e-3, 0.4, -0.3, -0.02, 0.5)
V = (0.5, -1.0, 0.3, 1.0, 0.0, 4.0)

#: The number of queries and keys, whether scores are rectified, and options of `attend`. 128 and 192 are multiples of
#: all tile sizes.
CASES: dict[str, tuple[int, bool, dict[str, Any]]] = {
    "even": (192, True, {}),
    "odd": (165, False, {}),
    "even-causal": (128, False, {"causal": True}),
    "odd-causal": (150, True, {"causal": True}),
    "sinks": (150, True, {"sinks": True}),
    "window": (192, True, {"window": (70, 30)}),
    "key-padding": (192, False, {"key_padding": True}),
    "no-keys": (128, True, {"key_padding": False}),
}


def compute(dtype: torch.dtype, backend: Any, n: int, rectify: bool, options: dict[str, Any]) -> list[Tensor]:
    """Return the output, the norms of the weights and all gradients in float64."""
    generator = torch.Generator().manual_seed(n)
    inputs = [torch.randn(2, len(W), n, WIDTH, generator=generator).half().to(DEVICE, dtype) for _ in range(3)]
    leaves = [x.requires_grad_() for x in inputs]
    parameter_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    scheme = DistanceAware(len(W), rectify=rectify).to(DEVICE, parameter_dtype)
    with torch.no_grad():
        for parameter, values in zip(scheme.parameters(), (W, V), strict=True):
            parameter.copy_(torch.tensor(values))
    options = dict(options)
    if "key_padding" in options:
        options["key_padding"] = (torch.arange(n) < torch.tensor([[n], [n - 100 if options["key_padding"] else 0]])).to(
            DEVICE
        )
    if options.pop("sinks", False):
        options["sinks"] = torch.linspace(-2.0, 2.0, len(W), device=DEVICE, dtype=parameter_dtype)
    result = attend(*leaves, scheme=scheme, backend=backend, return_weight_norms=True, **options)
    assert result.weight_norms is not None
    loss = result.output.double().square().sum() + result.weight_norms.double().sum()
    grads = torch.autograd.grad(loss, [*leaves, *scheme.parameters()])
    return [x.detach().double() for x in (result.output, result.weight_norms, *grads)]


def check(*case: Any) -> None:
    """Check that the kernels are as exact as the same formula in float16: twice its error, gradients three times."""
    cached_calls.clear_calls()
    plan.clear_plans()
    results = compute(torch.float16, "triton", *case)
    low = compute(torch.float16, "reference", *case)
    exact = compute(torch.float64, "reference", *case)
    for index, (result, rounded, expected) in enumerate(zip(results, low, exact, strict=True)):
        # The gradients of w and v are sums over all pairs. Those of rounded weights do not sum to 0.
        floor = 2**-7 * float(expected.abs().max()) if index >= 5 else 1e-5
        tolerance = (2 if index < 2 else 3) * float((rounded - expected).abs().max()) + floor
        error = float((result - expected).abs().max())
        assert error <= tolerance, f"result {index}: error {error:.1e}, allowed {tolerance:.1e}"
    assert results[-1][0] == 0.0, "without distance, the gradient of v is exactly 0"


@pytest.mark.parametrize("case", keep_short(CASES, "odd-causal", "key-padding"))
def test_regions_are_as_exact_as_the_reference(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for long sequences, which have a loop for each region."""
    monkeypatch.setattr(problem, "MAX_SHORT_LENGTH", 0)
    monkeypatch.setattr(problem, "MAX_STAGED_LENGTH", 0)
    check(*CASES[case])


class SharedMemory:
    """Shared memory of a program in Triton's interpreter, which has no inline assembly."""

    def __init__(self) -> None:
        self.words = np.zeros(8192, dtype=np.float32)
        self.num_loads = 0

    def reserve_smem(self, options: Any) -> Any:
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        return tl.core.tensor(TensorHandle(np.zeros(1, dtype=np.int32), tl.int32), tl.int32)

    def store_word(self, address: Any, value: Any) -> None:
        self.words[address.handle.data // 4] = value.handle.data

    def load_staged(self, address: Any, dtype: Any) -> Any:
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        self.num_loads += 1
        words = self.words[address.handle.data // 4]
        return tl.core.tensor(TensorHandle(words, tl.float32), tl.core.block_type(tl.float32, list(address.shape)))


@pytest.mark.parametrize("case", ["odd-causal", pytest.param("even", marks=pytest.mark.long)])
def test_factors_in_shared_memory_are_as_exact_as_the_reference(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from headwise.attention.triton_backend import backward_dkv_kernel, backward_kernels, distance_tiles, forward_kernels

    smem = SharedMemory()
    if not GPU:
        monkeypatch.setattr(plan.Plan, "can_stage_distance", True)
        monkeypatch.setattr(distance_tiles, "barrier", lambda: 0)
        monkeypatch.setattr(distance_tiles, "store_word", smem.store_word)
        monkeypatch.setattr(distance_tiles, "load_staged", smem.load_staged)
        for module in (forward_kernels, backward_kernels, backward_dkv_kernel):
            monkeypatch.setattr(module, "reserve_smem", smem.reserve_smem)
    check(*CASES[case])
    assert GPU or smem.num_loads
