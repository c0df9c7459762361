"""Wraps the forward and backward pass of a backend as PyTorch operators.

Each pass is a custom operator, so that `torch.compile` and `torch.export` see one node for all lengths and
`torch.func.vmap` runs it once per element of the mapped axis. An autograd function around the operators makes them
differentiable, also by `torch.func`. In plain eager mode a leaner autograd function calls the passes directly, because
for short sequences the dispatch of custom operators takes longer than the kernels.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise import _compat

Pass = Callable[..., Sequence[Tensor | None]]

#: Index of lse among the outputs. It is rarely used, and its gradient is then None in plain eager mode.
LSE = 1


class Operators:
    """The operators headwise::NAME and headwise::NAME_backward of a backend. Calling it runs the forward pass.

    Args:
        name: name of the operators.
        schema: schema of the forward pass's arguments. Tensors come first, the differentiable ones before the
            others.
        num_tensors: number of tensor arguments.
        num_differentiable: number of differentiable arguments.
        num_outputs: number of tensors that the forward pass returns.
        saved_outputs: indices of the outputs that the backward pass receives.
        forward: the forward pass.
        backward: the backward pass. It receives the forward pass's arguments, a list that states which of the
            differentiable arguments need a gradient, the saved outputs and the gradients of all outputs. It returns one
            gradient per differentiable argument. Both passes may return None for absent or unneeded tensors, and must
            accept None or an empty tensor for them.
        fake_forward: returns tensors of the forward pass's shapes, for tracing.
        fake_backward: returns tensors of the backward pass's shapes, for tracing.
    """

    def __init__(
        self,
        name: str,
        schema: str,
        *,
        num_tensors: int,
        num_differentiable: int,
        num_outputs: int,
        saved_outputs: tuple[int, ...],
        forward: Pass,
        backward: Pass,
        fake_forward: Pass,
        fake_backward: Pass,
    ) -> None:
        def results(count: int) -> str:
            return f"({', '.join(['Tensor'] * count)})"

        backward_only = [f"Tensor saved_{i}" for i in saved_outputs] + [f"Tensor d_{i}" for i in range(num_outputs)]
        forward_schema = f"({schema}) -> {results(num_outputs)}"
        backward_schema = f"({schema}, bool[] needs_grad, {', '.join(backward_only)}) -> {results(num_differentiable)}"
        # torch.library.custom_op would run another Python function in each call, for autograd.
        self._library = torch.library.Library("headwise", "FRAGMENT")
        self.forward = self._define(name, forward_schema, forward, fake_forward)
        self.backward = self._define(f"{name}_backward", backward_schema, backward, fake_backward)
        self._traced_function, self._eager_function = _autograd_functions(
            (self.forward, self.backward), forward, backward, num_tensors, num_differentiable, saved_outputs
        )

    def _define(self, name: str, schema: str, run: Pass, fake: Pass) -> Any:
        """Register an operator for all devices, with its shapes for tracing and its rule for vmap. Return it."""
        self._library.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
        self._library.impl(name, _return_tensors(run), "CompositeExplicitAutograd")
        torch.library.register_fake(f"headwise::{name}", _return_tensors(fake), lib=self._library)
        operator = getattr(torch.ops.headwise, name).default
        torch.library.register_vmap(f"headwise::{name}", vmap_by_loop(operator), lib=self._library)
        return operator

    def __call__(self, *arguments: Any) -> tuple[Tensor, ...]:
        results: tuple[Tensor, ...]
        if is_plain_eager(arguments[0]):
            results = self._eager_function.apply(*arguments)
        else:  # The compiler rejects functions that receive one tensor twice, as in attend(x, x, x), but accepts views.
            results = self._traced_function.apply(*(x.view_as(x) if isinstance(x, Tensor) else x for x in arguments))
        return results


def _autograd_functions(
    operators: tuple[Any, Any],
    forward_pass: Pass,
    backward_pass: Pass,
    num_tensors: int,
    num_differentiable: int,
    saved: Sequence[int],
) -> tuple[type[torch.autograd.Function], type[torch.autograd.Function]]:
    """Return the autograd function for traced and transformed code and the one for plain eager mode."""
    forward_operator, backward_operator = operators  # the compiler can trace operators of torch.ops from a closure

    def save_for_backward(ctx: Any, inputs: tuple[Any, ...], outputs: Sequence[Tensor | None]) -> None:
        ctx.save_for_backward(*inputs[:num_tensors], *(outputs[i] for i in saved))
        ctx.options = inputs[num_tensors:]

    def backward_arguments(ctx: Any, d_outputs: Sequence[Tensor | None]) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # checkpointing lets them be read once
        tensors, saved_outputs = saved[:num_tensors], saved[num_tensors:]
        needs_grad = list(ctx.needs_input_grad[:num_differentiable])
        return (*tensors, *ctx.options, needs_grad, *saved_outputs, *d_outputs)

    def input_gradients(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        non_empty = (None if grad is None or not grad.numel() else grad for grad in grads)
        return (*non_empty, *[None] * (len(ctx.needs_input_grad) - num_differentiable))

    class TracedFunction(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*arguments: Any) -> tuple[Tensor, ...]:
            return tuple(forward_operator(*arguments))

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            save_for_backward(ctx, inputs, output)

        @staticmethod
        def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
            return input_gradients(ctx, run_backward_operator(backward_operator, *backward_arguments(ctx, d_outputs)))

    class EagerFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> tuple[Tensor | None, ...]:
            outputs = tuple(forward_pass(*arguments))
            save_for_backward(ctx, arguments, outputs)
            ctx.set_materialize_grads(False)
            ctx.outputs = [x is not None and {"size": x.shape, "dtype": x.dtype, "device": x.device} for x in outputs]
            return outputs

        @staticmethod
        def backward(ctx: Any, *d_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
            create_graph = torch.is_grad_enabled()
            materialized = [
                torch.zeros(**like) if d is None and like and (create_graph or i != LSE) else d
                for i, (d, like) in enumerate(zip(d_outputs, ctx.outputs, strict=True))
            ]
            arguments = backward_arguments(ctx, materialized)
            if not create_graph:
                return input_gradients(ctx, backward_pass(*arguments))
            num_forward = len(arguments) - len(saved) - len(materialized)  # forward arguments and needs_grad
            empty = arguments[0].new_empty(0)
            rest = (empty if x is None else x for x in arguments[num_forward:])
            grads = run_backward_operator(backward_operator, *arguments[:num_forward], *rest)
            return input_gradients(ctx, grads)

    return TracedFunction, EagerFunction


def _return_tensors(function: Pass) -> Callable[..., tuple[Tensor, ...]]:
    """Adapt a pass to the rules for operators: results are tensors, empty instead of None, and share no memory."""

    def operator(*arguments: Any) -> tuple[Tensor, ...]:
        results = [arguments[0].new_empty(0) if x is None else x for x in function(*arguments)]
        storages = [_compat.storage_id(x) for x in results]
        return tuple(x.clone() if storages[i] in storages[:i] else x for i, x in enumerate(results))

    return operator


def is_plain_eager(x: Tensor) -> bool:
    """Return whether no compiler, function transform, dispatch mode, tensor subclass or meta tensor is involved."""
    return (
        type(x) in (Tensor, torch.nn.Parameter)
        and not x.is_meta
        and not torch.compiler.is_compiling()
        and not _compat.functorch_is_active()
        and _compat.num_dispatch_modes() == 0
    )


def vmap_by_loop(operator: Callable[..., Sequence[Tensor]]) -> Callable[..., Any]:
    """Return a vmap rule that runs the operator once per element of the mapped axis."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        results = [
            operator(*(x.select(dim, i) if type(dim) is int else x for x, dim in zip(arguments, in_dims, strict=True)))
            for i in range(info.batch_size)
        ]
        stacked = tuple(torch.stack(parts) for parts in zip(*results, strict=True))
        return stacked, (0,) * len(stacked)

    return rule


class _OnceDifferentiable(torch.autograd.Function):
    """Runs an operator, its first argument, whose results cannot be differentiated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(operator: Callable[..., Sequence[Tensor]], *arguments: Any) -> tuple[Tensor, ...]:
        return tuple(operator(*arguments))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None: ...

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError("this backend has no second derivatives; use backend='reference'")


def run_backward_operator(operator: Any, *arguments: Any) -> tuple[Tensor, ...]:
    """Run a backward operator so that differentiating its results raises an error.

    The compiler cannot trace an autograd function inside a backward pass, and never differentiates one twice.
    """
    compiling = torch.compiler.is_compiling()
    results = operator(*arguments) if compiling else _OnceDifferentiable.apply(operator, *arguments)
    return tuple(results)
