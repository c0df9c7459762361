"""Dropout in the Triton kernels: results against float64 with the same pairs, and which pairs are dropped.

The error may be at most twice that of the same computation in the same precision, three times for gradients.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from headwise import Plain, attend
from tests.attention.triton_cases import DEVICE, GPU, HEADS, SCHEMES, WIDTH
from tests.short_form import choose_size

pytest.importorskip("triton")
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if GPU else [])]
COLUMNS = 64


def find_kept_pairs(shape: tuple[int, int, int, int], dropout: float, seed: int) -> Tensor:
    """Return which pairs [B, H, N, M] are kept: equal scores, and parts of the identity matrix as values."""
    batch, heads, n, m = shape
    q, k = (torch.zeros(batch, heads, length, 1, device=DEVICE) for length in (n, m))
    parts = []
    for values in torch.eye(m, device=DEVICE).split(COLUMNS, dim=1):
        torch.manual_seed(seed)
        v = values.expand(batch, heads, *values.shape)
        parts.append(attend(q, k, v, scheme=Plain(), dropout=dropout, backend="triton") != 0)
    return torch.cat(parts, dim=-1)


@pytest.mark.short_form("values")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", SCHEMES)
def test_error_with_dropout_is_within_tolerance(
    name: str, causal: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, m = (300, 330) if GPU else (70, 90)
    dropout = 0.3
    kept = find_kept_pairs((2, HEADS, n, m), dropout, seed=5)
    scheme = SCHEMES[name].to(DEVICE)
    inputs = [torch.randn(2, HEADS, length, WIDTH, device=DEVICE).mul(0.7).to(dtype) for length in (n, m, m)]
    d_output = torch.randn(2, HEADS, n, WIDTH, dtype=torch.float64, device=DEVICE)

    def run(backend: Any, precision: torch.dtype) -> list[Tensor]:
        leaves = [x.to(precision).detach().requires_grad_() for x in inputs]
        owner = scheme.to(torch.float64 if precision == torch.float64 else torch.float32)
        torch.manual_seed(5)
        output = attend(*leaves, scheme=owner, causal=causal, dropout=dropout, backend=backend)
        return [output, *torch.autograd.grad(output, [*leaves, *owner.parameters()], d_output.to(precision))]

    kernels = run("triton", dtype)
    monkeypatch.setattr(F, "dropout", lambda weights, p: torch.where(kept, weights, 0.0) / (1 - p))
    exact, same_precision = run("reference", torch.float64), run("reference", dtype)
    for index, (result, baseline, expected) in enumerate(zip(kernels, same_precision, exact, strict=True)):
        error, baseline_error = ((x.double() - expected).abs().max() for x in (result, baseline))
        num_terms = 2 * n * m if index >= 4 else 1  # the gradient of a parameter is a sum over all pairs
        floor = 8 * num_terms**0.5 * torch.finfo(dtype).eps * expected.abs().max()
        assert error <= (2 if index == 0 else 3) * baseline_error + floor, f"result {index}"


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_dropped_pairs_have_the_rate_and_no_pattern(dropout: float) -> None:
    """Means over pairs are within five standard errors of those of independent draws."""
    n, m = choose_size((256, 192), (512, 384))
    kept = find_kept_pairs((2, 3, n, m), dropout, seed=1).double()
    rate_error = (1 - dropout) * dropout / kept.numel()
    assert abs(kept.mean() - (1 - dropout)) < 5 * rate_error**0.5
    x = (kept - kept.mean()) / kept.std()

    def check(products: Tensor) -> None:
        assert abs(products.mean()) < 5 / products.numel() ** 0.5

    for distance in (1, 2, 3, 4, 8, 16, 24, 32, 64):
        check(x[..., distance:, :] * x[..., :-distance, :])
        check(x[..., distance:] * x[..., :-distance])
        check(x[..., distance:, distance:] * x[..., :-distance, :-distance])
        check(x[..., distance:, :-distance] * x[..., :-distance, distance:])
    heads = x.flatten(0, 1)
    for first in range(len(heads)):
        for second in range(first):
            check(heads[first] * heads[second])
    for axis in (-1, -2):  # the sums of rows and columns have the variance of independent draws
        sums = x.sum(axis)
        variance = sums.square().mean() / x.shape[axis]
        assert abs(variance - 1) < 5 * (2 / sums.numel()) ** 0.5


def test_the_seed_chooses_the_pairs() -> None:
    first, same, other = (find_kept_pairs((1, 2, 64, 64), 0.5, seed) for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert 0.4 < (first == other).double().mean() < 0.6


@pytest.mark.parametrize("dropout", [1e-9, 1 - 1e-6])
def test_rates_near_0_and_1_keep_or_drop_nearly_all(dropout: float) -> None:
    kept = find_kept_pairs((1, 2, 64, 64), dropout, seed=1)
    assert kept.float().mean().item() == pytest.approx(1 - dropout, abs=1e-3)
