"""How a backend's two passes become PyTorch operators.

Each pass is a custom operator, so `torch.compile` and `torch.export` see one node, whatever the length, and
`torch.func.vmap` runs it once a model. The autograd function around them is what `torch.func` can differentiate. In
plain eager mode, where nobody looks, a leaner function calls the passes themselves: for short texts the layers around a
kernel cost more than the kernel.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Pass = Callable[..., Sequence[Tensor | None]]

LSE = 1  # of (output, log-sums, received, …); hardly anybody asks for them, and then their gradient is None


class Operators:
    """A backend's forward and backward pass as operators headwise::NAME and headwise::NAME_backward.

    Args:
        name: the operators' name.
        arguments: the schema of the forward pass's arguments: tensors first, and of these the differentiable ones
            first, the bias the last of them.
        tensors, differentiable: how many of the arguments are so.
        outputs: how many tensors the forward pass returns.
        saved: which of them the backward pass is given, besides the arguments.
        forward, backward: the passes. backward is given the forward pass's arguments, whether the bias needs a
            gradient, what was saved, and the gradients of all outputs; it returns one tensor a differentiable
            argument. Both may return None, and must take None or an empty tensor, for what is not there.
        fake_forward, fake_backward: results of the right shape, for the same arguments.
    """

    def __init__(
        self,
        name: str,
        arguments: str,
        *,
        tensors: int,
        differentiable: int,
        outputs: int,
        saved: tuple[int, ...],
        forward: Pass,
        backward: Pass,
        fake_forward: Pass,
        fake_backward: Pass,
    ) -> None:
        def results(count: int) -> str:
            return f"({', '.join(['Tensor'] * count)})"

        more = [f"Tensor saved_{i}" for i in saved] + [f"Tensor d_{i}" for i in range(outputs)]
        forward_schema = f"({arguments}) -> {results(outputs)}"
        backward_schema = f"({arguments}, bool needs_bias, {', '.join(more)}) -> {results(differentiable)}"
        self.forward: Any = torch.library.custom_op(
            f"headwise::{name}", _complete(forward), mutates_args=(), schema=forward_schema
        )
        self.backward: Any = torch.library.custom_op(
            f"headwise::{name}_backward", _complete(backward), mutates_args=(), schema=backward_schema
        )
        self.forward.register_fake(_complete(fake_forward))
        self.backward.register_fake(_complete(fake_backward))
        for operator in (self.forward, self.backward):
            operator.register_vmap(vmap_by_loop(operator))
        self._watched, self._plain = _functions(
            (name, f"{name}_backward"), forward, backward, tensors, differentiable, saved
        )

    def __call__(self, *arguments: Any) -> tuple[Tensor, ...]:
        results: tuple[Tensor, ...]
        if is_plain_eager(arguments[0]):
            results = self._plain.apply(*arguments)
        else:  # views, since the compiler refuses a function that is given one tensor twice, as in attend(x, x, x)
            results = self._watched.apply(*(x.view_as(x) if isinstance(x, Tensor) else x for x in arguments))
        return results


def _functions(
    names: tuple[str, str],
    forward_pass: Pass,
    backward_pass: Pass,
    tensors: int,
    differentiable: int,
    saved: Sequence[int],
) -> tuple[type[torch.autograd.Function], type[torch.autograd.Function]]:
    # As torch.ops has them, which the compiler can trace from a closure.
    forward_operator, backward_operator = (getattr(torch.ops.headwise, name).default for name in names)

    def remember(ctx: Any, inputs: tuple[Any, ...], outputs: Sequence[Tensor | None]) -> None:
        ctx.save_for_backward(*inputs[:tensors], *(outputs[i] for i in saved))
        ctx.settings = inputs[tensors:]

    def backward_arguments(ctx: Any, d_outputs: Sequence[Tensor | None]) -> tuple[Any, ...]:
        kept = ctx.saved_tensors
        needs_bias = ctx.needs_input_grad[differentiable - 1]
        return (*kept[:tensors], *ctx.settings, needs_bias, *kept[tensors:], *d_outputs)

    def gradients(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        present = (None if grad is None or not grad.numel() else grad for grad in grads)
        return (*present, *[None] * (len(ctx.needs_input_grad) - differentiable))

    class Watched(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*arguments: Any) -> tuple[Tensor, ...]:
            return tuple(forward_operator(*arguments))

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            remember(ctx, inputs, output)

        @staticmethod
        def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
            return gradients(ctx, _run_once(backward_operator, *backward_arguments(ctx, d_outputs)))

    class Plain(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> tuple[Tensor | None, ...]:
            results = tuple(forward_pass(*arguments))
            remember(ctx, arguments, results)
            ctx.set_materialize_grads(False)
            ctx.outputs = [x is not None and {"size": x.shape, "dtype": x.dtype, "device": x.device} for x in results]
            return results

        @staticmethod
        def backward(ctx: Any, *d_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
            twice = torch.is_grad_enabled()  # create_graph: somebody means to differentiate again
            filled = [
                torch.zeros(**like) if d is None and like and (twice or i != LSE) else d
                for i, (d, like) in enumerate(zip(d_outputs, ctx.outputs, strict=True))
            ]
            arguments = backward_arguments(ctx, filled)
            if not twice:
                return gradients(ctx, backward_pass(*arguments))
            given = len(arguments) - len(saved) - len(filled)
            empty = arguments[0].new_empty(0)
            rest = (empty if x is None else x for x in arguments[given:])
            return gradients(ctx, _run_once(backward_operator, *arguments[:given], *rest))

    return Watched, Plain


def _complete(function: Pass) -> Callable[..., tuple[Tensor, ...]]:
    """The same as an operator must be: all results are tensors, empty where there is nothing, and share no memory."""

    def complete(*arguments: Any) -> tuple[Tensor, ...]:
        results = [arguments[0].new_empty(0) if x is None else x for x in function(*arguments)]
        memory = [x.untyped_storage()._cdata for x in results]
        return tuple(x.clone() if memory[i] in memory[:i] else x for i, x in enumerate(results))

    return complete


def is_plain_eager(x: Tensor) -> bool:
    """Whether neither a compiler nor a transform, a dispatch mode or a tensor subclass needs to see an operator."""
    return (
        type(x) in (Tensor, torch.nn.Parameter)
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and torch._C._len_torch_dispatch_stack() == 0
    )


def vmap_by_loop(operator: Callable[..., Sequence[Tensor]]) -> Callable[..., Any]:
    """A vmap rule: the operator is as fast on one model as on many, so run it once for each."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        results = [
            operator(*(x if dim is None else x.select(dim, i) for x, dim in zip(arguments, in_dims, strict=True)))
            for i in range(info.batch_size)
        ]
        stacked = tuple(torch.stack(parts) for parts in zip(*results, strict=True))
        return stacked, (0,) * len(stacked)

    return rule


class _Once(torch.autograd.Function):
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


def _run_once(operator: Any, *arguments: Any) -> tuple[Tensor, ...]:
    """Run a backward operator.

    The compiler cannot trace a function inside a function's backward pass, and never differentiates it twice.
    """
    results = operator(*arguments) if torch.compiler.is_compiling() else _Once.apply(operator, *arguments)
    return tuple(results)
