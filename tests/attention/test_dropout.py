"""Dropout of attention weights: its rate, its mean, and the same mask in the backward pass."""

from typing import Any

import pytest
import torch

from headwise import RelativePositions, attend
from headwise.attention.blockwise import block
from tests.attention.cases import RETURN_ALL, SCHEMES, make_scheme


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block, "BLOCK_PAIRS", 40)
    monkeypatch.setattr(block, "MIN_BLOCK_ROWS", 1)


@pytest.mark.short_form("values")
@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("name", SCHEMES)
def test_backward_uses_the_dropout_mask_of_forward(name: str, backend: Any) -> None:
    """With identity values the output is the map after dropout; the gradient of the values must use the same map."""
    n = 12
    scheme = make_scheme(name, 2, n)
    if isinstance(scheme, RelativePositions) and scheme.value_table is not None:
        torch.nn.init.zeros_(scheme.value_table)
    q, k = (torch.randn(1, 2, n, n, dtype=torch.float64, requires_grad=True) for _ in range(2))
    v = torch.eye(n, dtype=torch.float64).expand(1, 2, n, n).clone().requires_grad_()

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(7)
        output, *_, weights = attend(q, k, v, scheme=scheme, dropout=0.4, return_weights=True, backend=backend)
        assert weights is not None
        return output, weights

    dropped, weights = run()
    is_kept = dropped != 0
    torch.testing.assert_close(dropped, torch.where(is_kept, weights / 0.6, 0.0))
    output_grad = torch.randn_like(dropped)
    output, weights = run()
    dq, dk, dv = torch.autograd.grad((output * output_grad).sum(), (q, k, v), retain_graph=True)
    torch.testing.assert_close(dv, dropped.mT @ output_grad)
    map_grads = torch.autograd.grad((weights * torch.where(is_kept, output_grad / 0.6, 0.0)).sum(), (q, k))
    torch.testing.assert_close((dq, dk), map_grads)


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_dropout_rate_and_mean(backend: Any) -> None:
    n = 64
    q = torch.randn(4, 4, n, 8)
    v = torch.eye(n).expand(4, 4, n, n)
    scheme = make_scheme("plain", 4, 8, dtype=torch.float32)
    dropped, *_, weights = attend(q, q, v, scheme=scheme, dropout=0.25, return_weights=True, backend=backend)
    assert weights is not None
    rate = dropped.eq(0).float().mean()
    assert abs(rate - 0.25) < 0.01
    assert abs(dropped.sum() / weights.sum() - 1) < 0.02
    second = attend(q, q, v, scheme=scheme, dropout=0.25, backend=backend)
    assert not torch.equal(second, dropped)


def test_extra_results_are_before_dropout() -> None:
    q = torch.randn(1, 2, 9, 4)
    scheme = make_scheme("distance-aware", 2, 4, dtype=torch.float32)
    for backend in ("reference", "blockwise"):
        _, *without = attend(q, q, q, scheme=scheme, backend=backend, **RETURN_ALL)
        _, *with_dropout = attend(q, q, q, scheme=scheme, dropout=0.5, backend=backend, **RETURN_ALL)
        torch.testing.assert_close(with_dropout, without)
