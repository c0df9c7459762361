"""`reference` and `blockwise` give the same values and gradients for random inputs and block sizes."""

from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise import attend
from headwise.attention.blockwise import block
from tests.attention.cases import RETURN_ALL, VARIANTS, make_scheme
from tests.short_form import choose_size, scale_examples

LSE = 3  # index among the outputs; −∞ for queries without any key


@st.composite
def attention_cases(draw: st.DrawFn) -> dict[str, Any]:
    torch.manual_seed(draw(st.integers(0, 2**31)))
    batch, key_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    n, m, d = draw(st.integers(1, 9)), draw(st.integers(1, 9)), 2 * draw(st.integers(1, 4))
    heads = key_heads * group
    options: dict[str, Any] = {"causal": draw(st.booleans()), "offset": draw(st.integers(0, 5))}
    if draw(st.booleans()):
        options["window"] = (draw(st.integers(-1, 4)), draw(st.integers(-1, 4)))
    if draw(st.booleans()):
        options["softcap"] = draw(st.sampled_from([0.5, 3.0]))
    if draw(st.booleans()):
        options["sinks"] = torch.randn(heads, dtype=torch.float64, requires_grad=True)
    if draw(st.booleans()):
        options["key_padding"] = torch.rand(batch, m) > 0.4
    if draw(st.booleans()):
        options["query_padding"] = torch.randint(0, n + 1, (batch,))
    if draw(st.booleans()):
        shape = [draw(st.sampled_from([1, size])) for size in (batch, heads, n, m)]
        options["mask"] = torch.rand(shape) > 0.4
    if draw(st.booleans()):
        shape = [draw(st.sampled_from([1, size])) for size in (batch, heads, n, m)]
        bias = torch.randn(shape, dtype=torch.float64)
        if draw(st.booleans()):
            bias[torch.rand(shape) > 0.7] = -torch.inf
        options["position_bias"] = bias.requires_grad_()
    return {
        "scheme": make_scheme(draw(st.sampled_from(sorted(VARIANTS))), heads, d),
        "q": torch.randn(batch, heads, n, d, dtype=torch.float64, requires_grad=True),
        "k": torch.randn(batch, key_heads, m, d, dtype=torch.float64, requires_grad=True),
        "v": torch.randn(batch, key_heads, m, d, dtype=torch.float64, requires_grad=True),
        "options": options,
        "block_size": {"BLOCK_PAIRS": draw(st.integers(1, 60)), "MAX_BLOCK_ROWS": draw(st.integers(1, 5))},
    }


@settings(max_examples=scale_examples(choose_size(short=2, long=4)))
@given(attention_cases())
def test_backends_agree(case: dict[str, Any]) -> None:
    scheme, q, k, v, options = (case[name] for name in ("scheme", "q", "k", "v", "options"))
    leaves = [q, k, v, *scheme.parameters(), *(options[x] for x in ("position_bias", "sinks") if x in options)]
    results: list[list[torch.Tensor]] = []
    output_grads: list[torch.Tensor] = []
    with mock.patch.multiple(block, MIN_BLOCK_ROWS=1, **case["block_size"]):
        for backend in ("reference", "blockwise"):
            outputs = attend(q, k, v, scheme=scheme, backend=backend, **RETURN_ALL, **options)
            output_grads = output_grads or [torch.randn_like(x) for x in outputs]
            gradients = torch.autograd.grad(outputs, leaves, output_grads, allow_unused=True, materialize_grads=True)
            results.append([*outputs, *gradients])
    for index, (reference, blockwise) in enumerate(zip(*results, strict=True)):
        assert reference.isfinite().all() or index == LSE
        torch.testing.assert_close(blockwise, reference, atol=1e-9, rtol=1e-9)


def test_queries_without_keys_get_zeros_and_no_gradient() -> None:
    for name in sorted(VARIANTS):
        for backend in ("reference", "blockwise"):
            q, k, v = (torch.randn(1, 2, 3, 4, requires_grad=True) for _ in range(3))
            mask = torch.ones(3, 3, dtype=torch.bool)
            mask[1] = False
            scheme = make_scheme(name, 2, 4, dtype=torch.float32)
            output, received, weight_norms, lse, weights = attend(
                q, k, v, scheme=scheme, mask=mask, backend=backend, **RETURN_ALL
            )
            sum(x.sum() for x in (output, received, weight_norms, lse, weights)).backward()
            assert all(x[:, :, 1].eq(0).all() for x in (output, weight_norms, weights)), (name, backend)
            assert lse[:, :, 1].eq(-torch.inf).all(), (name, backend)
            assert lse[:, :, [0, 2]].isfinite().all(), (name, backend)
            assert q.grad is not None
            assert q.grad[:, :, 1].eq(0).all(), (name, backend)
            assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v)), (name, backend)


@pytest.mark.short_form("pairs")
@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize(("batch", "n", "m"), [(0, 3, 3), (2, 0, 3), (2, 3, 0), (2, 0, 0)])
@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_empty_batch_queries_or_keys(name: str, batch: int, n: int, m: int, backend: Any) -> None:
    scheme = make_scheme(name, 2, 4)
    q, k = (torch.randn(batch, 2, length, 4, dtype=torch.float64, requires_grad=True) for length in (n, m))
    output, received, weight_norms, _, weights = attend(q, k, k, scheme=scheme, backend=backend, **RETURN_ALL)
    assert output.shape == (batch, 2, n, 4)
    assert received.shape == (batch, 2, m)
    assert weights.shape == (batch, 2, n, m)
    assert not any(x.any() for x in (output, received, weight_norms))
    leaves, total = [q, k, *scheme.parameters()], output.sum() + received.sum()
    for grad in torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True):
        assert not grad.any()
