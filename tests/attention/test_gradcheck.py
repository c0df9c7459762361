"""`torch.autograd.gradcheck` of all schemes, for inputs and parameters, in the reference and blockwise backends."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from headwise import attend
from headwise.attention.blockwise import block
from tests.attention.cases import ADJUSTS, RETURN_ALL, SCHEMES, VARIANTS, make_scheme
from tests.short_form import choose_size, keep_short


@pytest.mark.short_form("values")
@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("name", keep_short(VARIANTS, *SCHEMES, *(f"da-clip-{adjust}" for adjust in ADJUSTS)))
def test_gradcheck(name: str, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block, "MAX_BLOCK_ROWS", 2)
    scheme = make_scheme(name, 2, 2)
    names = [name for name, _ in scheme.named_parameters()]
    q, k, v = (torch.randn(1, 2, n, 2, dtype=torch.float64, requires_grad=True) for n in (3, 4, 4))
    bias = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    sinks = torch.randn(2, dtype=torch.float64, requires_grad=True)

    class AttendModule(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scheme = scheme

        def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, sinks: Tensor) -> Any:
            return attend(
                q,
                k,
                v,
                scheme=self.scheme,
                key_padding=torch.tensor([3]),
                position_bias=bias,
                sinks=sinks,
                softcap=2.0,
                window=(3, 1),
                offset=1,
                backend=backend,
                **RETURN_ALL,
            )

    module = AttendModule()

    def function(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, sinks: Tensor, *parameters: Tensor) -> Any:
        values = {f"scheme.{name}": value for name, value in zip(names, parameters, strict=True)}
        return functional_call(module, values, (q, k, v, bias, sinks))

    assert torch.autograd.gradcheck(
        function, (q, k, v, bias, sinks, *scheme.parameters()), fast_mode=choose_size(short=True, long=False)
    )


@pytest.mark.parametrize("name", SCHEMES)
def test_second_derivatives_of_the_reference(name: str) -> None:
    scheme = make_scheme(name, 1, 2).requires_grad_(False)
    q, k, v = (torch.randn(1, 1, 3, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))
    assert torch.autograd.gradgradcheck(lambda *x: attend(*x, scheme=scheme, backend="reference"), (q, k, v))


def test_second_derivatives_of_blockwise_raise() -> None:
    q = torch.randn(1, 1, 3, 2, dtype=torch.float64, requires_grad=True)
    output = attend(q, q, q, scheme=make_scheme("plain", 1, 2), backend="blockwise")
    (grad,) = torch.autograd.grad(output.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="backend='reference'"):
        grad.sum().backward()
