"""Dropout: the right share, unbiased, and the same mask in the backward pass."""

from typing import Any

import pytest
import torch

from headwise import RelativePositions, attend
from headwise.attention.blockwise import block
from tests.attention.cases import EVERYTHING, FIVE, make


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block, "BLOCK_PAIRS", 40)
    monkeypatch.setattr(block, "LEAST_ROWS", 1)


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("name", FIVE)
def test_backward_drops_what_forward_dropped(name: str, backend: Any) -> None:
    """With identity values the output is the dropped map itself; the values' gradient must use the same map."""
    n = 12
    scheme = make(name, 2, n)
    if isinstance(scheme, RelativePositions) and scheme.value_table is not None:
        torch.nn.init.zeros_(scheme.value_table)
    q, k = (torch.randn(1, 2, n, n, dtype=torch.float64, requires_grad=True) for _ in range(2))
    v = torch.eye(n, dtype=torch.float64).expand(1, 2, n, n).clone().requires_grad_()

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(7)
        output, weights = attend(q, k, v, scheme=scheme, dropout=0.4, return_weights=True, backend=backend)
        return output, weights

    dropped, weights = run()
    kept = dropped != 0
    torch.testing.assert_close(dropped, torch.where(kept, weights / 0.6, 0.0))
    direction = torch.randn_like(dropped)
    output, weights = run()
    dq, dk, dv = torch.autograd.grad((output * direction).sum(), (q, k, v), retain_graph=True)
    torch.testing.assert_close(dv, dropped.mT @ direction)
    through_map = torch.autograd.grad((weights * torch.where(kept, direction / 0.6, 0.0)).sum(), (q, k))
    torch.testing.assert_close((dq, dk), through_map)


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_share_and_mean(backend: Any) -> None:
    n = 64
    q = torch.randn(4, 4, n, 8)
    v = torch.eye(n).expand(4, 4, n, n)
    scheme = make("plain", 4, 8, dtype=torch.float32)
    dropped, weights = attend(q, q, v, scheme=scheme, dropout=0.25, return_weights=True, backend=backend)
    share = dropped.eq(0).float().mean()
    assert abs(share - 0.25) < 0.01
    assert abs(dropped.sum() / weights.sum() - 1) < 0.02
    again = attend(q, q, v, scheme=scheme, dropout=0.25, backend=backend)
    assert not torch.equal(again, dropped)


def test_all_but_the_output_is_before_dropout() -> None:
    q = torch.randn(1, 2, 9, 4)
    scheme = make("distance-aware", 2, 4, dtype=torch.float32)
    for backend in ("reference", "blockwise"):
        _, *without = attend(q, q, q, scheme=scheme, backend=backend, **EVERYTHING)
        _, *with_dropout = attend(q, q, q, scheme=scheme, dropout=0.5, backend=backend, **EVERYTHING)
        torch.testing.assert_close(with_dropout, without)
