"""Extreme parameters, lengths and scores: results are finite and as accurate as the inputs."""

from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import DistanceAware, attend
from headwise.attention.schemes.distance_aware import Mapping
from headwise.attention.types import Adjust
from tests.attention.cases import ADJUSTS, RETURN_ALL, SCHEMES, make_scheme
from tests.short_form import choose_size

#: Relative rounding errors of the dtypes of inputs and outputs. Scores are at least float32.
ROUNDING = {torch.float32: 2**-24, torch.bfloat16: 2**-8, torch.float16: 2**-11}
#: Allowed error of sums, in units of float32 rounding errors.
MAX_ROUNDING_ERRORS = 512.0
EXACT = ("reference", torch.float64)


@pytest.mark.short_form("values")
@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("mapping", ["learnable-sigmoid", "sigmoid", "clip"])
def test_extreme_weights_and_lengths(mapping: Mapping, dtype: torch.dtype, backend: Any) -> None:
    """The error is within a small multiple of the change that rounding the inputs causes in float64."""
    scheme = DistanceAware(heads=8, mapping=mapping)
    with torch.no_grad():
        scheme.w.copy_(torch.tensor([100.0, -100.0, 0.0, 0.01, 100.0, -100.0, 0.0, 0.01]))
        if scheme.v is not None:
            scheme.v.copy_(torch.tensor([20.0, 20.0, -20.0, -20.0, -20.0, -20.0, 20.0, 20.0]))
    n, m = 16, 8192  # the last queries of a long sequence, at distances 0 … 8191
    inputs = [torch.randn(1, 8, length, 16).to(dtype) for length in (n, m, m)]
    output_grad = torch.randn(1, 8, n, 16).to(dtype)

    def run(precision: torch.dtype, inputs: list[Tensor], output_grad: Tensor) -> list[Tensor]:
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        scheme.to(precision)
        output = attend(*leaves, scheme=scheme, offset=m - n, backend=backend)
        parameters = [p for p in (scheme.w, scheme.v) if p is not None]
        return [output, *torch.autograd.grad(output, [*leaves, *parameters], output_grad.to(output.dtype))]

    def perturb(x: Tensor, size: float) -> Tensor:
        return x.double() * (1 + size * (2 * torch.rand_like(x, dtype=torch.float64) - 1))

    low = run(torch.float32, inputs, output_grad)
    exact = run(torch.float64, [x.double() for x in inputs], output_grad.double())
    perturbed = run(torch.float64, [perturb(x, 2**-24) for x in inputs], perturb(output_grad, ROUNDING[dtype]))
    for result, expected, moved in zip(low, exact, perturbed, strict=True):
        assert result.isfinite().all()
        rounding = MAX_ROUNDING_ERRORS * 2**-24 + ROUNDING[dtype]
        tolerance = 8 * (moved - expected).abs().max() + rounding * expected.abs().max()
        assert (result.double() - expected).abs().max() <= tolerance


@pytest.mark.parametrize("sinks", [False, True])
def test_rounding_of_large_lse_does_not_change_gradients(sinks: bool) -> None:
    """Scores are up to 10⁵ here, and their lse is rounded by up to 0.004: a query's weights still add up to 1."""
    heads = 8
    inputs = [torch.randn(1, heads, 150, 16) for _ in range(3)]
    output_grad = torch.randn(1, heads, 150, 16)

    def run(backend: Any, dtype: torch.dtype) -> list[Tensor]:
        scheme = DistanceAware(heads, w_init=0.3, w_std=0.0, v_init=10.0).to(dtype)
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        sink_scores = torch.full((heads,), 2.0, dtype=dtype) if sinks else None
        output = attend(*leaves, scheme=scheme, sinks=sink_scores, backend=backend)
        parameters = [p for p in (scheme.w, scheme.v) if p is not None]
        return list(torch.autograd.grad(output, [*parameters, *leaves], output_grad.to(dtype)))

    results, low, exact = (run(*x) for x in (("blockwise", torch.float32), ("reference", torch.float32), EXACT))
    for result, rounded, expected in zip(results, low, exact, strict=True):
        tolerance = 16 * (rounded - expected).abs().max() + 1e-3 * expected.abs().max()
        assert (result - expected).abs().max() <= tolerance


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", SCHEMES)
def test_half_precision_error_is_that_of_rounding(name: str, dtype: torch.dtype, backend: Any) -> None:
    """The error is at most twice that of rounding the exact output, because scores and sums are float32."""
    scheme = make_scheme(name, 4, 16, dtype=torch.float32).requires_grad_(False)
    q, k, v = (torch.randn(2, 4, 100, 16).to(dtype) for _ in range(3))
    output, *others = attend(q, k, v, scheme=scheme, backend=backend, **RETURN_ALL)
    expected, *expected_others = attend(
        q.double(), k.double(), v.double(), scheme=scheme.double(), backend="reference", **RETURN_ALL
    )
    assert output.dtype == dtype
    assert {x.dtype for x in others} == {torch.float32}
    rounding = (expected.to(dtype).double() - expected).abs().max()
    assert (output.double() - expected).abs().max() <= 2 * rounding
    torch.testing.assert_close([x.double() for x in others], expected_others, atol=1e-3, rtol=1e-3)


def test_large_scores_do_not_overflow() -> None:
    x = 100 * torch.randn(1, 2, 8, 64)
    for name in SCHEMES:
        for backend in ("reference", "blockwise"):
            scheme = make_scheme(name, 2, 64, dtype=torch.float32)
            results = attend(x, x, x, scheme=scheme, backend=backend, **RETURN_ALL)
            assert all(result.isfinite().all() for result in results), name


@pytest.mark.parametrize("adjust", ADJUSTS)
@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_exponent_mapping_of_long_sequences_is_finite(adjust: Adjust, backend: Any) -> None:
    scheme = DistanceAware(heads=8, mapping="exponent", adjust=adjust)
    leaves = [torch.randn(1, 8, choose_size(short=256, long=1024), 16, requires_grad=True) for _ in range(3)]
    results = attend(*leaves, scheme=scheme, backend=backend, **RETURN_ALL)
    assert all(x.isfinite().all() for x in results if x is not None)
    for grad in torch.autograd.grad(results.output.sum(), [*leaves, scheme.w]):
        assert grad.isfinite().all()
