"""torch.autograd.gradcheck for every scheme, its inputs and its parameters, in both backends."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from headwise import attend
from headwise.attention.blockwise import block
from tests.attention.cases import ALL, EVERYTHING, FIVE, make


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("name", ALL)
def test_gradients(name: str, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block, "MOST_ROWS", 2)
    scheme = make(name, 2, 2)
    names = [name for name, _ in scheme.named_parameters()]
    q, k, v = (torch.randn(1, 2, n, 2, dtype=torch.float64, requires_grad=True) for n in (3, 4, 4))
    bias = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    class Attending(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scheme = scheme

        def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Any:
            return attend(
                q,
                k,
                v,
                scheme=self.scheme,
                key_padding=torch.tensor([3]),
                position_bias=bias,
                offset=1,
                backend=backend,
                **EVERYTHING,
            )

    module = Attending()

    def function(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, *parameters: Tensor) -> Any:
        values = {f"scheme.{name}": value for name, value in zip(names, parameters, strict=True)}
        return functional_call(module, values, (q, k, v, bias))

    assert torch.autograd.gradcheck(function, (q, k, v, bias, *scheme.parameters()))


@pytest.mark.parametrize("name", FIVE)
def test_second_derivatives_of_the_reference(name: str) -> None:
    scheme = make(name, 1, 2).requires_grad_(False)
    q, k, v = (torch.randn(1, 1, 3, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))
    assert torch.autograd.gradgradcheck(lambda *x: attend(*x, scheme=scheme, backend="reference"), (q, k, v))


def test_second_derivatives_of_blockwise_are_refused() -> None:
    q = torch.randn(1, 1, 3, 2, dtype=torch.float64, requires_grad=True)
    output = attend(q, q, q, scheme=make("plain", 1, 2), backend="blockwise")
    (grad,) = torch.autograd.grad(output.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="backend='reference'"):
        grad.sum().backward()
