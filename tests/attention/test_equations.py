"""Values and gradients of all schemes and options against loops over the papers' equations (oracle.py)."""

from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import attend
from headwise.attention.blockwise import block
from tests.attention.cases import RETURN_ALL, VARIANTS, make_scheme
from tests.attention.oracle import oracle

B, H, N, M, D = 2, 2, 4, 5, 4

OPTIONS: dict[str, dict[str, Any]] = {
    "bare": {},
    "masked": {"key_padding": True, "query_padding": True, "mask": True, "position_bias": True},
    "causal-offset": {"causal": True, "offset": 2, "scale": 0.7},
    "grouped": {"key_heads": 1, "causal": True, "lengths": True},
    "window": {"window": (1, 2), "offset": 0},
    "window-causal-softcap-sinks": {"window": (2, -1), "causal": True, "softcap": 0.7, "sinks": True},
    "masked-sinks": {"key_padding": True, "sinks": True, "softcap": 1.5},
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the blockwise backend several blocks along every axis."""
    monkeypatch.setattr(block, "BLOCK_PAIRS", 2 * 3 * M)
    monkeypatch.setattr(block, "MIN_BLOCK_ROWS", 1)
    monkeypatch.setattr(block, "MAX_BLOCK_ROWS", 3)


def allowed_pairs(options: dict[str, Any], heads: int) -> Tensor:
    """Combine the masks of the options, pair by pair."""
    allowed = torch.ones(B, heads, N, M, dtype=torch.bool)
    left, right = options.get("window", (-1, -1))
    for b in range(B):
        for i in range(N):
            for j in range(M):
                position = i + options.get("offset", M - N)  # by default, the last query has the last key's position
                is_allowed = not (options.get("causal") and j > position)
                is_allowed = is_allowed and (left < 0 or j >= position - left) and (right < 0 or j <= position + right)
                for name, index in (("key_padding", j), ("query_padding", i)):
                    padding = options.get(name)
                    if padding is not None:
                        is_real = index < padding[b] if padding.dim() == 1 else padding[b, index]
                        is_allowed = is_allowed and bool(is_real)
                allowed[b, :, i, j] = is_allowed
    return allowed if options.get("mask") is None else allowed & options["mask"]


@pytest.mark.short_form("values")
@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", VARIANTS)
def test_scheme_matches_its_equation(name: str, option: str, backend: Any) -> None:
    torch.manual_seed(0)
    options = dict(OPTIONS[option])
    key_heads = options.pop("key_heads", H)
    if options.pop("lengths", False):
        options["key_padding"] = torch.tensor([M, M - 2])
    if options.get("key_padding") is True:
        options["key_padding"] = torch.tensor([[1, 1, 0, 1, 1], [1, 1, 1, 0, 0]], dtype=torch.bool)
        options["query_padding"] = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]], dtype=torch.bool)
        options["mask"] = torch.rand(B, H, N, M) > 0.3
        options["mask"][0, :, 1] = False  # a query without any key
        options["position_bias"] = torch.randn(1, H, N, M, dtype=torch.float64, requires_grad=True)
    q, k, v = (
        torch.randn(B, heads, length, D, dtype=torch.float64, requires_grad=True)
        for heads, length in ((H, N), (key_heads, M), (key_heads, M))
    )
    scheme = make_scheme(name, H, D)
    if options.get("sinks"):
        options["sinks"] = torch.randn(H, dtype=torch.float64, requires_grad=True)
    leaves = [q, k, v, *scheme.parameters(), *(options[x] for x in ("position_bias", "sinks") if x in options)]

    actual = attend(q, k, v, scheme=scheme, backend=backend, **RETURN_ALL, **options)
    oracle_names = ("position_bias", "offset", "scale", "softcap", "sinks")
    oracle_options = {name: options[name] for name in oracle_names if name in options}
    if options.get("causal") or options.get("window"):
        oracle_options.setdefault("offset", M - N)
    oracle_options["real_queries"] = options.get("query_padding")
    expected = oracle(q, k, v, scheme=scheme, allowed=allowed_pairs(options, H), **oracle_options)

    for result, expected_result in zip(actual, expected, strict=True):
        torch.testing.assert_close(result, expected_result, atol=1e-10, rtol=1e-10)
    output_grads = [torch.randn_like(x) for x in actual]
    gradients = [
        torch.autograd.grad(
            sum((x * grad).sum() for x, grad in zip(results, output_grads, strict=True)),
            leaves,
            allow_unused=True,
            materialize_grads=True,
        )
        for results in (actual, expected)
    ]
    for gradient, expected_gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", VARIANTS)
def test_only_requested_results_are_returned(name: str) -> None:
    q, k, v = (torch.randn(B, H, N, D, dtype=torch.float64) for _ in range(3))
    scheme = make_scheme(name, H, D)
    output_only = attend(q, k, v, scheme=scheme)
    output, received, *others = attend(q, k, v, scheme=scheme, return_received=True)
    assert received is not None
    assert others == [None] * 3
    weights = attend(q, k, v, scheme=scheme, return_weights=True).weights
    assert weights is not None
    torch.testing.assert_close(output_only, output, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(received, weights.sum(dim=2), atol=1e-12, rtol=1e-12)
    _, _, weight_norms, lse, _ = attend(q, k, v, scheme=scheme, return_weight_norms=True, return_lse=True)
    assert weight_norms is not None
    assert lse is not None
    torch.testing.assert_close(weight_norms, weights.square().sum(dim=3), atol=1e-12, rtol=1e-12)
    assert lse.shape == weight_norms.shape
