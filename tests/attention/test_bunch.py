"""What tokens receive in several layers at once, against the formula in float64, by the rule of `test_triton.py`."""

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
from headwise.attention.triton_backend.multi_layer_received import LayerQK, multi_layer_received, why_unsupported

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DTYPES = [torch.float32, torch.float16, torch.bfloat16] if GPU else [torch.float32, torch.float16]
BATCH, HEADS, WIDTH, LAYERS = 2, 2, 32, 2
CASES: dict[str, dict[str, Any]] = {
    "bare": {},
    "short": {"n": 20},
    "causal": {"causal": True},
    "padded": {"padded": True},
    "padded-causal": {"padded": True, "causal": True},
    "grouped": {"groups": 1, "scale": 0.3},
    "odd-width": {"width": 24, "padded": True},
    "rows-first": {"rows_first": True},
}


def formula(q: Tensor, k: Tensor, may: Tensor, scale: float) -> Tensor:
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * scale
    return torch.softmax(scores.masked_fill(~may, -torch.inf), dim=-1).nan_to_num(0.0).sum(dim=2)


def layers(
    dtype: torch.dtype, n: int, *, groups: int = HEADS, width: int = WIDTH, rows_first: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """Queries and keys; heads beside each other within a token's row, as models have them, or not."""

    def draw(heads: int) -> Tensor:
        shape = (BATCH, heads, n, width) if rows_first else (BATCH, n, heads, width)
        x = torch.randn(shape, device=DEVICE).to(dtype)
        return x if rows_first else x.transpose(1, 2)

    return [draw(HEADS) for _ in range(LAYERS)], [draw(groups) for _ in range(LAYERS)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_as_exact_as_the_precision(case: str, dtype: torch.dtype) -> None:
    options = dict(CASES[case])
    n = options.pop("n", 300 if GPU else 70)  # more than one tile, and no multiple of one
    causal, scale, padded = options.pop("causal", False), options.pop("scale", 0.2), options.pop("padded", False)
    qs, ks = layers(dtype, n, **options)
    at = torch.arange(n, device=DEVICE)
    padding = at < torch.tensor([n, n // 3], device=DEVICE)[:, None] if padded else None
    may = torch.ones(BATCH, 1, n, n, dtype=torch.bool, device=DEVICE)
    if causal:
        may = may & (at <= at[:, None])
    if padding is not None:
        may = may & padding[:, None, None, :] & padding[:, None, :, None]
    direction = torch.randn(LAYERS, BATCH, HEADS, n, dtype=torch.float64, device=DEVICE)

    def run(ours: bool, precision: torch.dtype) -> list[Tensor]:
        leaves = [x.to(precision).detach().requires_grad_() for x in (*qs, *ks)]
        pairs = list(zip(leaves[:LAYERS], leaves[LAYERS:], strict=True))
        torch.use_deterministic_algorithms(ours, warn_only=True)  # memory that a kernel should have written is NaN
        if ours:
            looks = [LayerQK(q=q, k=k, scale=scale, causal=causal, padding=padding) for q, k in pairs]
            assert [why_unsupported(look) for look in looks] == [None] * LAYERS
            assert len({look.kind for look in looks}) == 1
            outputs = multi_layer_received(looks)
        else:
            outputs = [formula(q, k, may, scale) for q, k in pairs]
        gradients = torch.autograd.grad(
            outputs, leaves, [g.to(x.dtype) for g, x in zip(direction, outputs, strict=True)]
        )
        torch.use_deterministic_algorithms(False)
        return [*outputs, *gradients]

    exact, naive, ours = run(False, torch.float64), run(False, dtype), run(True, dtype)
    for place, (mine, same, true) in enumerate(zip(ours, naive, exact, strict=True)):
        error, theirs = (mine.double() - true).abs().max(), (same.double() - true).abs().max()
        floor = 8 * torch.finfo(dtype).eps * true.abs().max()
        assert error <= (2 if place < LAYERS else 3) * theirs + floor, f"result {place}: {error:.1e}, {theirs:.1e}"
        if place >= LAYERS:
            owner = (*qs, *ks)[place - LAYERS]
            assert mine.permute(0, 2, 1, 3).is_contiguous() == owner.permute(0, 2, 1, 3).is_contiguous()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.double(), "float32, float16 and bfloat16"),
        (lambda x: x[:, :, :0], "or none"),
        (lambda x: x[..., 1:], "multiples of 16 bytes"),
        (lambda x: x.mT.contiguous().mT, "one piece of memory"),
        (lambda x: x[:, :1].expand_as(x), "not expanded"),
    ],
)
def test_what_the_kernels_cannot_do_is_said(change: Any, message: str) -> None:
    x = change(torch.randn(BATCH, HEADS, 12, WIDTH, device=DEVICE))
    found = why_unsupported(LayerQK(x, x, 0.2, False, None))
    assert found is not None
    assert message in found
