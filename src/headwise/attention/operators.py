"""What custom operators of any backend share."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def once_a_model(operator: Callable[..., Sequence[Tensor]]) -> Callable[..., Any]:
    """A vmap rule: the operator is as fast on one model as on many, so run it once for each."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        results = [
            operator(*(x if dim is None else x.select(dim, i) for x, dim in zip(arguments, in_dims, strict=True)))
            for i in range(info.batch_size)
        ]
        stacked = tuple(torch.stack(parts) for parts in zip(*results, strict=True))
        return stacked, (0,) * len(stacked)

    return rule


class Once(torch.autograd.Function):
    """A backward pass as an operator that cannot be differentiated again: the first argument is the operator."""

    generate_vmap_rule = True

    @staticmethod
    def forward(operator: Callable[..., Sequence[Tensor]], *arguments: Any) -> tuple[Tensor, ...]:
        return tuple(operator(*arguments))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None: ...

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError("this backend can be differentiated once; for second derivatives use backend='reference'")


def run_once(operator: Any, *arguments: Any) -> tuple[Tensor, ...]:
    """Run a backward operator.

    The compiler cannot trace a function inside a function's backward pass, and never differentiates it twice.
    """
    results = operator(*arguments) if torch.compiler.is_compiling() else Once.apply(operator, *arguments)
    return tuple(results)
