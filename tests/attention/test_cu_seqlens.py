"""Sequences concatenated without padding (`cu_seqlens`) give the results of separate calls."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from headwise import Plain, attend, explain
from headwise.attention.attend import Backend
from tests.attention.cases import RETURN_ALL, SCHEMES, VARIANTS, make_scheme

HEADS, WIDTH = 2, 8
CU_SEQLENS = [0, 3, 3, 10, 11, 24]


@pytest.mark.short_form("pairs")
@pytest.mark.parametrize("backend", ["auto", "reference", "blockwise"])
@pytest.mark.parametrize("causal", [False, True], ids=["both-ways", "causal"])
@pytest.mark.parametrize("name", VARIANTS)
def test_cu_seqlens_equals_separate_calls(name: str, causal: bool, backend: Backend) -> None:
    scheme = make_scheme(name, HEADS, WIDTH)
    inputs = [torch.randn(1, HEADS, CU_SEQLENS[-1], WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    leaves = [*inputs, *scheme.parameters()]
    options: dict[str, Any] = {"scheme": scheme, "causal": causal, **RETURN_ALL, "return_weights": False}

    concatenated = attend(*inputs, cu_seqlens=CU_SEQLENS, backend=backend, **options)[:4]
    sequences = [
        attend(*(x[:, :, start:end] for x in inputs), backend="reference", **options)[:4]
        for start, end in pairwise(CU_SEQLENS)
        if end > start
    ]
    separate = [torch.cat(parts, dim=2) for parts in zip(*sequences, strict=True)]

    torch.testing.assert_close(list(concatenated), separate, atol=1e-10, rtol=1e-10)
    output_grads = [torch.randn_like(x) for x in separate]
    gradients, expected = (
        torch.autograd.grad(results, leaves, output_grads, allow_unused=True, materialize_grads=True)
        for results in (concatenated, separate)
    )
    torch.testing.assert_close(gradients, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(
    ("cu_seqlens", "options", "message"),
    [
        ([0, 4, 9], {}, r"increase from 0 to the number of tokens, 10; got \[0, 4, 9\]"),
        ([0, 7, 4, 10], {}, "increase from 0"),
        ([1, 10], {}, "increase from 0"),
        (torch.tensor([0.0, 10.0]), {}, "must be cumulative lengths, integers"),
        ([0], {}, "must be cumulative lengths"),
        ([0, 10], {"key_padding": torch.tensor([10])}, "cu_seqlens cannot be combined with key_padding"),
        ([0, 10], {"offset": 2, "return_weights": True}, "cannot be combined with offset, return_weights"),
    ],
)
def test_invalid_cu_seqlens(cu_seqlens: Any, options: dict[str, Any], message: str) -> None:
    x = torch.randn(1, HEADS, 10, WIDTH)
    with pytest.raises(ValueError, match=message):
        attend(x, x, x, scheme=Plain(), cu_seqlens=cu_seqlens, **options)


def test_cu_seqlens_needs_a_batch_of_one() -> None:
    x = torch.randn(2, HEADS, 10, WIDTH)
    with pytest.raises(ValueError, match="in a batch of one, got batch 2"):
        attend(x, x, x, scheme=Plain(), cu_seqlens=[0, 10])


def test_explain_refers_to_the_longest_sequence() -> None:
    x = torch.randn(1, HEADS, 24, WIDTH)
    choice = explain(x, x, x, scheme=Plain(), cu_seqlens=CU_SEQLENS)
    assert choice.backend == "sdpa"
    assert choice.reason.startswith("sequence by sequence")


@pytest.mark.parametrize("backend", ["auto", "reference", "blockwise"])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (2, 1)}], ids=str)
@pytest.mark.parametrize("name", SCHEMES)
def test_different_lengths_of_queries_and_keys(name: str, options: dict[str, Any], backend: Backend) -> None:
    scheme = make_scheme(name, HEADS, WIDTH)
    bounds, key_bounds = [0, 2, 2, 5, 9], [0, 4, 6, 9, 18]
    q, k, v = (torch.randn(1, HEADS, n, WIDTH, dtype=torch.float64, requires_grad=True) for n in (9, 18, 18))
    packed = attend(
        q,
        k,
        v,
        scheme=scheme,
        cu_seqlens=bounds,
        cu_seqlens_k=key_bounds,
        return_received=True,
        backend=backend,
        **options,
    )
    sequences = [
        attend(q[:, :, a:b], k[:, :, c:d], v[:, :, c:d], scheme=scheme, return_received=True, **options)
        for (a, b), (c, d) in zip(pairwise(bounds), pairwise(key_bounds), strict=True)
    ]
    for name_of_result in ("output", "received"):
        expected = torch.cat([getattr(sequence, name_of_result) for sequence in sequences], dim=2)
        torch.testing.assert_close(getattr(packed, name_of_result), expected)


def test_invalid_pairs_of_cu_seqlens() -> None:
    q, k = torch.randn(1, HEADS, 5, WIDTH), torch.randn(1, HEADS, 8, WIDTH)
    with pytest.raises(ValueError, match=r"as many keys as queries, .* unless cu_seqlens_k is given"):
        attend(q, k, k, scheme=Plain(), cu_seqlens=[0, 5])
    with pytest.raises(ValueError, match="equally many sequences, got 1 and 2"):
        attend(q, k, k, scheme=Plain(), cu_seqlens=[0, 5], cu_seqlens_k=[0, 4, 8])
    with pytest.raises(ValueError, match="cu_seqlens_k needs cu_seqlens"):
        attend(q, k, k, scheme=Plain(), cu_seqlens_k=[0, 8])
    with pytest.raises(ValueError, match="cu_seqlens_k must increase from 0 to the number of tokens, 8"):
        attend(q, k, k, scheme=Plain(), cu_seqlens=[0, 5], cu_seqlens_k=[0, 7])


@pytest.mark.parametrize("backend", ["auto", "reference", "blockwise"])
@pytest.mark.parametrize("name", SCHEMES)
def test_sequences_without_any_token(name: str, backend: Backend) -> None:
    scheme, x = make_scheme(name, HEADS, WIDTH), torch.randn(1, HEADS, 0, WIDTH, dtype=torch.float64)
    result = attend(
        x, x, x, scheme=scheme, cu_seqlens=[0, 0, 0], cu_seqlens_k=[0, 0, 0], return_received=True, backend=backend
    )
    assert result.output.shape == x.shape
    assert result.received is not None
    assert result.received.shape == x.shape[:3]
