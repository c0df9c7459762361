"""Distance-aware attention at the ends of its range: finite, and right to the precision of the inputs."""

from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import DistanceAware, attend
from headwise.attention.schemes.distance_aware import Mapping
from tests.attention.cases import EVERYTHING, FIVE, make

#: The last place of what inputs and outputs are rounded to (scores are float32 at least), with room for sums.
ROUNDING = {torch.float32: 2**-24, torch.bfloat16: 2**-8, torch.float16: 2**-11}
PLACES = 512.0


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("mapping", ["learnable-sigmoid", "sigmoid", "clip"])
def test_extreme_weights_and_lengths(mapping: Mapping, dtype: torch.dtype, backend: Any) -> None:
    """As near to float64 as the precision allows: within what rounding the inputs once does to float64's own result."""
    scheme = DistanceAware(heads=8, mapping=mapping)
    with torch.no_grad():
        scheme.w.copy_(torch.tensor([100.0, -100.0, 0.0, 0.01, 100.0, -100.0, 0.0, 0.01]))
        if scheme.v is not None:
            scheme.v.copy_(torch.tensor([20.0, 20.0, -20.0, -20.0, -20.0, -20.0, 20.0, 20.0]))
    n, m = 16, 8192  # the last queries of a long text, at distances 0 … 8191
    inputs = [torch.randn(1, 8, length, 16).to(dtype) for length in (n, m, m)]
    direction = torch.randn(1, 8, n, 16).to(dtype)

    def run(precision: torch.dtype, inputs: list[Tensor], direction: Tensor) -> list[Tensor]:
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        scheme.to(precision)
        output = attend(*leaves, scheme=scheme, offset=m - n, backend=backend)
        parameters = [p for p in (scheme.w, scheme.v) if p is not None]
        return [output, *torch.autograd.grad(output, [*leaves, *parameters], direction.to(output.dtype))]

    def moved(x: Tensor, by: float) -> Tensor:
        return x.double() * (1 + by * (2 * torch.rand_like(x, dtype=torch.float64) - 1))

    low = run(torch.float32, inputs, direction)
    exact = run(torch.float64, [x.double() for x in inputs], direction.double())
    nearby = run(torch.float64, [moved(x, 2**-24) for x in inputs], moved(direction, ROUNDING[dtype]))
    for mine, true, near in zip(low, exact, nearby, strict=True):
        assert mine.isfinite().all()
        allowed = (
            8 * (near - true).abs().max() + PLACES * 2**-24 * true.abs().max() + ROUNDING[dtype] * true.abs().max()
        )
        assert (mine.double() - true).abs().max() <= allowed


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FIVE)
def test_half_precision_costs_no_more_than_its_rounding(name: str, dtype: torch.dtype, backend: Any) -> None:
    """At most twice the error of rounding the exact output, since scores and sums are float32."""
    scheme = make(name, 4, 16, dtype=torch.float32).requires_grad_(False)
    q, k, v = (torch.randn(2, 4, 100, 16).to(dtype) for _ in range(3))
    output, *others = attend(q, k, v, scheme=scheme, backend=backend, **EVERYTHING)
    true, *true_others = attend(
        q.double(), k.double(), v.double(), scheme=scheme.double(), backend="reference", **EVERYTHING
    )
    assert output.dtype == dtype
    assert {x.dtype for x in others} == {torch.float32}
    rounding = (true.to(dtype).double() - true).abs().max()
    assert (output.double() - true).abs().max() <= 2 * rounding
    torch.testing.assert_close([x.double() for x in others], true_others, atol=1e-3, rtol=1e-3)


def test_sharp_scores_do_not_overflow() -> None:
    x = 100 * torch.randn(1, 2, 8, 64)
    for name in FIVE:
        for backend in ("reference", "blockwise"):
            scheme = make(name, 2, 64, dtype=torch.float32)
            results = attend(x, x, x, scheme=scheme, backend=backend, **EVERYTHING)
            assert all(result.isfinite().all() for result in results), name


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("name", FIVE)
@pytest.mark.parametrize(("n", "m"), [(0, 0), (0, 3), (3, 0)])
def test_nothing_to_attend(name: str, n: int, m: int, backend: Any) -> None:
    """No tokens, as in an empty batch of texts, are no mistake: nothing comes out, and nothing is learnt."""
    scheme = make(name, 4, 8)
    q, k = (torch.randn(2, 4, length, 8, dtype=torch.float64, requires_grad=True) for length in (n, m))
    output, received = attend(q, k, k, scheme=scheme, return_received=True, backend=backend)
    assert output.shape == (2, 4, n, 8)
    assert received.shape == (2, 4, m)
    (output.sum() + received.sum()).backward()
    assert not output.any()
    assert not received.any()
    assert all(p.grad is None or not p.grad.any() for p in scheme.parameters())
