"""Texts of different lengths without padding: the same as each text on its own."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from headwise import Plain, attend, explain
from headwise.attention.attend import Backend
from tests.attention.cases import ALL, EVERYTHING, make

HEADS, WIDTH = 2, 8
ENDS = [0, 3, 3, 10, 11, 24]


@pytest.mark.parametrize("backend", ["auto", "reference", "blockwise"])
@pytest.mark.parametrize("causal", [False, True], ids=["both-ways", "causal"])
@pytest.mark.parametrize("name", ALL)
def test_packed_equals_each_text_on_its_own(name: str, causal: bool, backend: Backend) -> None:
    scheme = make(name, HEADS, WIDTH)
    inputs = [torch.randn(1, HEADS, ENDS[-1], WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    leaves = [*inputs, *scheme.parameters()]
    options: dict[str, Any] = {"scheme": scheme, "causal": causal, **EVERYTHING, "return_weights": False}

    cu_seqlens = attend(*inputs, cu_seqlens=ENDS, backend=backend, **options)
    texts = [
        attend(*(x[:, :, start:end] for x in inputs), backend="reference", **options)
        for start, end in pairwise(ENDS)
        if end > start
    ]
    alone = [torch.cat(parts, dim=2) for parts in zip(*texts, strict=True)]

    directions = [torch.randn_like(x) for x in alone]
    torch.testing.assert_close(list(cu_seqlens), alone, atol=1e-10, rtol=1e-10)
    mine, true = (
        torch.autograd.grad(found, leaves, directions, allow_unused=True, materialize_grads=True)
        for found in (cu_seqlens, alone)
    )
    torch.testing.assert_close(mine, true, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(
    ("cu_seqlens", "options", "message"),
    [
        ([0, 4, 9], {}, r"rise from 0 to the 10 tokens there are, got \[0, 4, 9\]"),
        ([0, 7, 4, 10], {}, "rise from 0"),
        ([1, 10], {}, "rise from 0"),
        (torch.tensor([0.0, 10.0]), {}, "must be cumulative lengths, integers"),
        ([0], {}, "must be cumulative lengths"),
        ([0, 10], {"key_padding": torch.tensor([10])}, "packed does not go with key_padding"),
        ([0, 10], {"offset": 2, "return_weights": True}, "does not go with offset, return_weights"),
    ],
)
def test_mistakes_are_named(cu_seqlens: Any, options: dict[str, Any], message: str) -> None:
    x = torch.randn(1, HEADS, 10, WIDTH)
    with pytest.raises(ValueError, match=message):
        attend(x, x, x, scheme=Plain(), cu_seqlens=cu_seqlens, **options)


def test_packed_texts_are_a_batch_of_one() -> None:
    x = torch.randn(2, HEADS, 10, WIDTH)
    with pytest.raises(ValueError, match="in a batch of one, with as many keys as queries; got batch 2"):
        attend(x, x, x, scheme=Plain(), cu_seqlens=[0, 10])


def test_explain_tells_of_the_longest_text() -> None:
    x = torch.randn(1, HEADS, 24, WIDTH)
    choice = explain(x, x, x, scheme=Plain(), cu_seqlens=ENDS)
    assert choice.backend == "sdpa"
    assert choice.reason.startswith("each text on its own")
