"""Additive pooling is its formula; padding has no say."""

import math

import torch

from headwise.models import AdditivePooling

DIM = 6


def by_formula(pooling: AdditivePooling, states: list[list[float]]) -> list[float]:
    """α = softmax(qᵀ tanh(W h + b)), Σ α h, in plain Python."""
    w, b, q = pooling.projection.weight.tolist(), pooling.projection.bias.tolist(), pooling.query.weight[0].tolist()
    scores = []
    for h in states:
        hidden = [math.tanh(sum(x * y for x, y in zip(row, h, strict=True)) + c) for row, c in zip(w, b, strict=True)]
        scores.append(sum(x * y for x, y in zip(q, hidden, strict=True)))
    powers = [math.exp(score) for score in scores]
    return [sum(p / sum(powers) * h[d] for p, h in zip(powers, states, strict=True)) for d in range(DIM)]


def test_equals_the_formula() -> None:
    pooling = AdditivePooling(DIM).double()
    states = torch.randn(2, 5, DIM, dtype=torch.float64)
    real = torch.tensor([[True] * 5, [True, False, True, False, False]])
    expected = [by_formula(pooling, states[0].tolist()), by_formula(pooling, states[1, [0, 2]].tolist())]
    torch.testing.assert_close(pooling(states, real), torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(pooling.weights(states, real).sum(-1), torch.ones(2, dtype=torch.float64))


def test_a_text_without_tokens_is_zero_and_passes_no_gradient() -> None:
    pooling = AdditivePooling(DIM)
    states = torch.randn(2, 3, DIM, requires_grad=True)
    pooled = pooling(states, torch.tensor([[True] * 3, [False] * 3]))
    assert not pooled[1].any()
    pooled.sum().backward()
    assert states.grad is not None
    assert states.grad.isfinite().all()
    assert not states.grad[1].any()
