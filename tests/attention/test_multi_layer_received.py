"""Received attention of several layers at once against the formula in float64, with the tolerances of `test_triton.py`.

Legend: B batch, H query heads, N tokens, M keys.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.short_form import choose_size, keep_short

pytest.importorskip("triton")
from headwise.attention.triton_backend.multi_layer_received import LayerQK, multi_layer_received, why_unsupported

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DTYPES = [torch.float32, torch.float16, torch.bfloat16] if GPU else [torch.float32, torch.float16]
BATCH, HEADS, WIDTH, NUM_LAYERS = 2, 2, 32, 2
CASES: dict[str, dict[str, Any]] = {
    "no-options": {},
    "single-tile": {"n": 20},
    "causal": {"causal": True},
    "padded": {"padded": True},
    "padded-causal": {"padded": True, "causal": True},
    "grouped": {"key_heads": 1, "scale": 0.3},
    "odd-width": {"width": 24, "padded": True},
    "heads-first": {"heads_first": True},
    "one-key-per-query": {"scale": 3.0},
    "large-mean-gradient": {"mean_gradient": 100.0, "padded": True},
}


def reference_received(q: Tensor, k: Tensor, mask_BHNM: Tensor, scale: float) -> Tensor:
    scores_BHNM = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * scale
    return torch.softmax(scores_BHNM.masked_fill(~mask_BHNM, -torch.inf), dim=-1).nan_to_num(0.0).sum(dim=2)


def build_layers(
    dtype: torch.dtype, n: int, *, key_heads: int = HEADS, width: int = WIDTH, heads_first: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """Build queries and keys, in memory as (B, H, N, width) or, as models have them, (B, N, H, width)."""

    def build(heads: int) -> Tensor:
        shape = (BATCH, heads, n, width) if heads_first else (BATCH, n, heads, width)
        x = torch.randn(shape, device=DEVICE).to(dtype)
        return x if heads_first else x.transpose(1, 2)

    return [build(HEADS) for _ in range(NUM_LAYERS)], [build(key_heads) for _ in range(NUM_LAYERS)]


@pytest.mark.short_form("values")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "case", keep_short(CASES, "padded-causal", "grouped", "odd-width", "heads-first", "large-mean-gradient")
)
def test_error_is_within_tolerance(case: str, dtype: torch.dtype) -> None:
    options = dict(CASES[case])
    n = options.pop("n", 300 if GPU else choose_size(short=36, long=70))  # several tiles, the last one incomplete
    causal, scale, padded = options.pop("causal", False), options.pop("scale", 0.2), options.pop("padded", False)
    mean_gradient = options.pop("mean_gradient", 0.0)
    qs, ks = build_layers(dtype, n, **options)
    positions = torch.arange(n, device=DEVICE)
    padding_BN = positions < torch.tensor([n, n // 3], device=DEVICE)[:, None] if padded else None
    mask_BHNM = torch.ones(BATCH, 1, n, n, dtype=torch.bool, device=DEVICE)
    if causal:
        mask_BHNM = mask_BHNM & (positions <= positions[:, None])
    if padding_BN is not None:
        mask_BHNM = mask_BHNM & padding_BN[:, None, None, :] & padding_BN[:, None, :, None]
    d_received = torch.randn(NUM_LAYERS, BATCH, HEADS, n, dtype=torch.float64, device=DEVICE) + mean_gradient

    def run(use_kernels: bool, precision: torch.dtype) -> list[Tensor]:
        leaves = [x.to(precision).detach().requires_grad_() for x in (*qs, *ks)]
        pairs = list(zip(leaves[:NUM_LAYERS], leaves[NUM_LAYERS:], strict=True))
        torch.use_deterministic_algorithms(use_kernels, warn_only=True)  # fills new memory with NaN
        if use_kernels:
            layers = [LayerQK(q=q, k=k, scale=scale, causal=causal, padding=padding_BN) for q, k in pairs]
            assert [why_unsupported(layer) for layer in layers] == [None] * NUM_LAYERS
            assert len({layer.kind for layer in layers}) == 1
            received = multi_layer_received(layers)
        else:
            received = [reference_received(q, k, mask_BHNM, scale) for q, k in pairs]
        grad_outputs = [g.to(x.dtype) for g, x in zip(d_received, received, strict=True)]
        grads = torch.autograd.grad(received, leaves, grad_outputs)
        torch.use_deterministic_algorithms(False)
        return [*received, *grads]

    exact, same_precision, kernels = run(False, torch.float64), run(False, dtype), run(True, dtype)
    for index, (result, baseline, expected) in enumerate(zip(kernels, same_precision, exact, strict=True)):
        error = (result.double() - expected).abs().max()
        baseline_error = (baseline.double() - expected).abs().max()
        floor = 8 * torch.finfo(dtype).eps * expected.abs().max()
        factor = 2 if index < NUM_LAYERS else 3
        assert error <= factor * baseline_error + floor, f"result {index}: {error:.1e}, {baseline_error:.1e}"
        if index >= NUM_LAYERS:
            source = (*qs, *ks)[index - NUM_LAYERS]
            assert result.permute(0, 2, 1, 3).is_contiguous() == source.permute(0, 2, 1, 3).is_contiguous()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.double(), "float32, float16 and bfloat16"),
        (lambda x: x[:, :, :0], "is 0 or too large"),
        (lambda x: x[..., 1:], "multiples of 16 bytes"),
        (lambda x: x.mT.contiguous().mT, "contiguous rows"),
        (lambda x: x[:, :1].expand_as(x), "expanded tensors"),
    ],
)
def test_unsupported_layers_are_explained(change: Any, message: str) -> None:
    x = change(torch.randn(BATCH, HEADS, 12, WIDTH, device=DEVICE))
    reason = why_unsupported(LayerQK(x, x, 0.2, False, None))
    assert reason is not None
    assert message in reason
