"""The Triton kernels with extreme parameters.

Distance-aware kernels are tested with extreme w and v, head by head against float64.
Weights can be those of a single key here, and their gradients exactly 0. The error of a head may be at most three times
that of the same computation in float32, plus rounding: weights are exp(score − lse), so that the rounding of lse is a
relative error of the weights.
"""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import DistanceAware, TransformerXL, attend
from tests.short_form import choose_size

pytest.importorskip("triton")
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
WIDTH = 32
LENGTH = 150 if GPU else choose_size(short=80, long=150)
ISSUE = [(-1.0, -20.0), (0.3, 10.0)]  # heads whose gradients were wrong
SWEEP = list(product((1e-6, -1e-6, 0.02, -0.1, 0.29, -1.0, 10.0, -10.0), (-30.0, -6.0, 2.0, 9.0, 30.0)))


def formula(scheme: DistanceAware, inputs: list[Tensor], causal: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Compute output, received attention and lse by the paper's equations, every step in the inputs' precision."""
    assert scheme.v is not None
    q, k, v = inputs
    n = q.shape[2]
    positions = torch.arange(n, device=q.device)
    distances = (positions[:, None] - positions).abs().to(q.dtype)
    sharpness = scheme.v[:, None, None]
    f = (1 + sharpness.exp()) * torch.sigmoid(scheme.w[:, None, None] * distances - sharpness)
    scores = (q @ k.mT * WIDTH**-0.5).relu() * f
    if causal:
        scores = scores.masked_fill(positions > positions[:, None], -torch.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp()
    return weights @ v, weights.sum(-2), lse


@pytest.mark.short_form("values")
@pytest.mark.parametrize("tile", [32, 64])
@pytest.mark.parametrize(
    ("heads", "n", "received", "causal"),
    [
        pytest.param(ISSUE, LENGTH, False, False, id="issue"),
        pytest.param(ISSUE, LENGTH, True, True, id="issue-received-causal"),
        pytest.param(ISSUE, 30, True, False, id="issue-single-tile"),
        pytest.param(
            SWEEP if GPU else SWEEP[:: choose_size(short=7, long=3)], 400 if GPU else 70, False, False, id="sweep"
        ),
    ],
)
def test_extreme_heads(
    heads: list[tuple[float, float]],
    n: int,
    received: bool,
    causal: bool,
    tile: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from headwise.attention.triton_backend import plan
    from headwise.attention.triton_backend.launch import Tile

    monkeypatch.setattr(plan, "_plan_cache", {})
    monkeypatch.setattr(plan.Plan, "_fastest_tile", lambda *_: Tile(tile, tile))
    scheme = DistanceAware(len(heads)).to(DEVICE)
    assert scheme.v is not None
    with torch.no_grad():
        for parameter, values in zip((scheme.w, scheme.v), zip(*heads, strict=True), strict=True):
            parameter.copy_(torch.tensor(values))
    inputs = [torch.randn(1, len(heads), n, WIDTH, device=DEVICE) for _ in range(3)]
    grad_outputs = [torch.randn(1, len(heads), n, WIDTH, device=DEVICE), torch.randn(1, len(heads), n, device=DEVICE)]

    def run(dtype: torch.dtype, use_kernels: bool) -> list[Tensor]:
        scheme.to(dtype)
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        outputs: Any = formula(scheme, leaves, causal)
        if use_kernels:
            flags: dict[str, Any] = {"return_received": received, "return_lse": True}
            outputs = attend(*leaves, scheme=scheme, causal=causal, backend="triton", **flags)
        outputs = outputs[: 1 + received]
        grads = [grad.to(dtype) for grad in grad_outputs[: len(outputs)]]
        gradients = torch.autograd.grad(outputs, [*leaves, *scheme.parameters()], grads)
        return [x.reshape(len(heads), -1) for x in (*outputs, *gradients)]

    lse_size = formula(scheme, inputs, causal)[2].detach().abs().amax((0, 2)).double()
    exact, baseline, kernels = run(torch.float64, False), run(torch.float32, False), run(torch.float32, True)
    for index, (result, same_precision, expected) in enumerate(zip(kernels, baseline, exact, strict=True)):
        error = (result.double() - expected).abs().amax(1)
        baseline_error = (same_precision.double() - expected).abs().amax(1)
        num_terms = n * n if index >= len(exact) - 2 else 1  # gradients of w and v are sums over all pairs
        rounding = torch.finfo(torch.float32).eps * (8 + lse_size)
        floor = num_terms**0.5 * rounding * expected.abs().amax(1) + 1e-13  # float64 rounds smaller gradients to 0
        failed = (error > 3 * baseline_error + floor).nonzero().flatten().tolist()
        details = [
            (heads[h], error[h].item(), baseline_error[h].item(), expected[h].abs().max().item()) for h in failed
        ]
        assert not failed, f"result {index}: (w, v), error, float32's error, size: {details}"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32] if GPU else [torch.float16])
def test_weights_of_large_relative_scores_are_at_most_one(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    scheme, n = TransformerXL(2, WIDTH, dim=20).to(DEVICE), 300 if GPU else 40
    with torch.no_grad():
        for parameter, std in ((scheme.u, 30.0), (scheme.v, 30.0), (scheme.projection.weight, 15.0)):
            parameter.normal_(std=std)
    q, k, v = (torch.randn(1, 2, n, WIDTH, device=DEVICE).mul(std).to(dtype) for std in (10.0, 10.0, 1.0))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    result = attend(*leaves, scheme=scheme, backend="triton", return_received=True)
    assert result.received is not None
    assert (result.received <= n * 1.001).all()
    d_output = torch.randn_like(result.output)
    grads = torch.autograd.grad(result.output, [*leaves, *scheme.parameters()], d_output)
    assert all(grad.isfinite().all() for grad in grads)
    # A value's gradient is a sum of the outputs' gradients times weights.
    assert (grads[2].float().abs() <= d_output.float().abs().sum(2, keepdim=True) * 1.01).all()
