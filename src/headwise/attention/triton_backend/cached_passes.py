"""Forward and backward pass of cached calls: the launches of all calls whose tensors have the same layouts.

The passes of a `BoundCall` are programs. A `PlannedCall` runs the passes of `passes.py` with a plan that is found once.
It covers masks, biases and dense tables.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.attention.masking import natural_lse
from headwise.attention.triton_backend.layouts import align
from headwise.attention.triton_backend.operator import run_operators
from headwise.attention.triton_backend.passes import backward_launches, forward_launches, run_backward, run_forward
from headwise.attention.triton_backend.plan import get_plan
from headwise.attention.triton_backend.problem import DIFFERENTIABLE, TENSOR_PARAMS
from headwise.attention.triton_backend.programs import BoundLaunch, Buffer, Gradient, Program
from headwise.attention.triton_backend.scheme_inputs import SchemeInputs
from headwise.attention.types import AttentionOutput

#: The output of a forward pass, what the backward pass needs besides it, and received attention if it is requested.
Results = tuple[Tensor, *tuple[Tensor | None, ...]]

#: The operators' tensors after those of a scheme.
OTHER_TENSORS = ("bias", "sinks", "mask", "key_padding", "query_padding", "seq_starts", "seq_ends", "seed")

#: Indices of the dropout probability, and of whether received attention is requested, among the operators' arguments
#: that are not tensors.
DROPOUT, RECEIVED = 9, 10


class CachedCall(ABC):
    """Calls with the same names and layouts of tensors and the same numbers.

    Args:
        names: the names of the tensors of a call, those of `SchemeInputs` and `OTHER_TENSORS` without the seed, which a
            call with dropout has as its last tensor.
        scalars: the operators' arguments that are not tensors.
        inputs: the tensors of one of these calls. Their values are not used.
        has_lse: whether lse is requested, without received attention.
    """

    def __init__(
        self, names: tuple[str, ...], scalars: tuple[Any, ...], inputs: Sequence[Tensor], *, has_lse: bool = False
    ) -> None:
        self.has_dropout, self.has_received, self.has_lse = scalars[DROPOUT] > 0, scalars[RECEIVED], has_lse
        if self.has_dropout:
            names, inputs = (*names, "seed"), [*inputs, torch.empty((), dtype=torch.int64, device=inputs[0].device)]
        self.names = names
        self.scalars = scalars
        slots = {f"{name}_ptr": slot for slot, name in enumerate(names)}
        self.operator_slots = [slots.get(name) for name in TENSOR_PARAMS]
        self.plan = get_plan(*self.operator_tensors(inputs), *scalars)
        self.strides = [*(x.stride() for x in inputs), self.plan.output_layouts["o"][1]]

    def operator_tensors(self, inputs: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """Return the tensor arguments of the operators."""
        return tuple([None if slot is None else inputs[slot] for slot in self.operator_slots])

    @abstractmethod
    def forward(self, inputs: Sequence[Tensor]) -> Results:
        """Compute the output, what the backward pass needs besides inputs and output, and received attention."""

    @abstractmethod
    def backward(
        self, saved: Sequence[Tensor], d_outputs: Sequence[Tensor], needs_grad: tuple[bool, ...]
    ) -> Sequence[Tensor | None] | None:
        """Compute the gradient of each input, or return None if these calls cannot compute those that are needed.

        Args:
            saved: the inputs, the output, and what else the forward pass returned for the backward pass.
            d_outputs: the gradients of the output and of received attention or lse if it is requested, with contiguous
                rows.
            needs_grad: which gradients are needed, of each input.
        """

    def attend(self, inputs: tuple[Tensor, ...]) -> Tensor | AttentionOutput:
        """Compute attention, differentiably if an input needs a gradient."""
        if self.has_dropout:
            inputs = (*inputs, torch.randint(2**31 - 1, (), device=inputs[0].device))
        if torch.is_grad_enabled():
            for x in inputs:
                if x.requires_grad:
                    return self.to_result(CachedAttention.apply(self, *inputs))
        output, *others = self.forward(inputs)
        if self.has_lse:
            return self.to_result((output, others[0]))
        return self.to_result((output, others[-1]) if self.has_received else output)

    def to_result(self, outputs: Any) -> Tensor | AttentionOutput:
        """Return the result of `attend` for the output, or for a pair with received attention or lse in base 2."""
        if self.has_lse:
            return AttentionOutput(outputs[0], lse=natural_lse(outputs[1]))
        return AttentionOutput(*outputs) if self.has_received else outputs

    def compute_gradients(
        self, saved: Sequence[Tensor], d_outputs: Sequence[Tensor], needs_grad: tuple[bool, ...]
    ) -> Sequence[Tensor | None]:
        """Compute the gradient of each input by the fastest supported method. The arguments are those of `backward`."""
        inputs = saved[: len(self.names)]
        grads = None
        if not torch.is_grad_enabled() and self.is_unchanged(saved):
            rows = [x if x.stride(-1) == 1 else x.contiguous() for x in d_outputs[:1]]
            rows += [align(x) for x in d_outputs[1:]]
            grads = self.backward(saved, rows, needs_grad)
        return self.recompute_gradients(inputs, d_outputs, needs_grad) if grads is None else grads

    def needed_names(self, needs_grad: tuple[bool, ...]) -> frozenset[str]:
        """Return the names of the inputs whose gradients are needed."""
        return frozenset(name for name, is_needed in zip(self.names, needs_grad, strict=True) if is_needed)

    def is_unchanged(self, saved: Sequence[Tensor]) -> bool:
        """Return whether inputs and output have their layouts; hooks on saved tensors may have copied them."""
        return [x.stride() for x in saved[: len(self.strides)]] == self.strides

    def recompute_gradients(
        self, inputs: Sequence[Tensor], d_outputs: Sequence[Tensor], needs_grad: tuple[bool, ...]
    ) -> list[Tensor | None]:
        """Compute the gradients through the operators, whatever the layouts; differentiating them raises an error."""
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            # An input may occur twice, as in attend(x, x, x). Each occurrence has its own gradient.
            inputs = [
                (x.view_as(x) if create_graph else x.detach().requires_grad_()) if is_needed else x
                for x, is_needed in zip(inputs, needs_grad, strict=True)
            ]
            tensors = dict(zip(self.names, inputs, strict=True))
            others = [tensors.pop(name, None) for name in OTHER_TENSORS]
            scheme_tensors: Any = tensors
            output, lse, received, _ = run_operators(
                SchemeInputs(**scheme_tensors), tensors["q"], *others, *self.scalars
            )
        outputs = (output, lse) if self.has_lse else (output, received) if self.has_received else (output,)
        needed = [x for x, is_needed in zip(inputs, needs_grad, strict=True) if is_needed]
        grads = iter(torch.autograd.grad(outputs, needed, d_outputs, create_graph=create_graph))
        return [next(grads) if is_needed else None for is_needed in needs_grad]


class CachedAttention(torch.autograd.Function):
    """Attention by a cached call, its first argument."""

    @staticmethod
    def forward(ctx: Any, call: CachedCall, *inputs: Tensor) -> Any:
        results = list(call.forward(inputs))
        received = results.pop() if call.has_received else None
        ctx.call = call
        ctx.save_for_backward(*inputs, *results)
        if call.has_lse:
            return results[0], results[1]
        return (results[0], received) if call.has_received else results[0]

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        call: CachedCall = ctx.call
        return None, *call.compute_gradients(ctx.saved_tensors, d_outputs, ctx.needs_input_grad[1:])


class PlannedCall(CachedCall):
    """Calls that the passes of `passes.py` compute, with a plan that is found once."""

    def forward(self, inputs: Sequence[Tensor]) -> Results:
        arguments = (*self.operator_tensors(inputs), *self.scalars)
        output, lse, *_ = run_forward(self.plan, arguments, in_eager_mode=True)
        assert output is not None
        assert lse is not None
        return output, lse

    def backward(
        self, saved: Sequence[Tensor], d_outputs: Sequence[Tensor], needs_grad: tuple[bool, ...]
    ) -> Sequence[Tensor | None]:
        return run_planned_backward(self, saved, d_outputs, needs_grad)


def run_planned_backward(
    call: CachedCall, saved: Sequence[Tensor], d_outputs: Sequence[Tensor], needs_grad: tuple[bool, ...]
) -> Sequence[Tensor | None]:
    """Compute the gradients by `passes.py`, without received attention. The arguments are those of `backward`."""
    *inputs, output, lse = saved
    (d_output,) = d_outputs
    needs = call.needed_names(needs_grad)
    arguments = (*call.operator_tensors(inputs), *call.scalars)
    results = output, lse, None, None
    grads = run_backward(call.plan, arguments, needs, *results, d_output, None, None, None, None, in_eager_mode=True)
    by_name = dict(zip(DIFFERENTIABLE, grads, strict=True))
    return [by_name[name] if is_needed else None for name, is_needed in zip(call.names, needs_grad, strict=True)]


class BoundCall(CachedCall):
    """Calls whose passes are programs."""

    def __init__(
        self, names: tuple[str, ...], scalars: tuple[Any, ...], inputs: Sequence[Tensor], *, has_lse: bool = False
    ) -> None:
        super().__init__(names, scalars, inputs, has_lse=has_lse)
        self.forward_program = self._build_forward()
        self._backward_programs: dict[Any, Program | None] = {}

    def forward(self, inputs: Sequence[Tensor]) -> Results:
        num_results = self.num_results + self.has_received
        output, *others = self.forward_program.run(inputs)[len(inputs) : len(inputs) + num_results]
        assert output is not None
        return output, *others

    def backward(
        self, saved: Sequence[Tensor], d_outputs: Sequence[Tensor], needs_grad: tuple[bool, ...]
    ) -> Sequence[Tensor | None] | None:
        program = self.find_backward(d_outputs[0], needs_grad)
        return None if program is None else program.run_backward((*saved, *d_outputs))

    def find_backward(self, d_output: Tensor, needs_grad: tuple[bool, ...]) -> Program | None:
        """Return the program of a backward pass; None if there is none for these gradients."""
        key = (d_output.stride(), needs_grad, d_output.data_ptr() % 16)
        if key not in self._backward_programs:
            self._backward_programs[key] = self._build_backward(d_output, needs_grad)
        return self._backward_programs[key]

    #: The number of the forward pass's first buffers that the backward pass needs, the output included. Received
    #: attention is the next one.
    num_results = 2

    def _build_forward(self) -> Program:
        plan = self.plan
        launches = plan.launches(forward_launches)
        kernels = ("value_block_sums", "prefix_sums", "fwd") if plan.sum_far_keys else ("fwd",)
        buffers: dict[str, Buffer | None] = {"o": self.output_buffer("o"), "lse": self.lse_buffer}
        if self.has_received:
            kernels = (*kernels, "received")
            buffers["received"] = Buffer((plan.batch, plan.heads, plan.m), torch.float32)
        if plan.sum_far_keys:
            buffers["prefix_sums"] = Buffer(plan.key_sums_shape, torch.float32, is_zero=True)
        names = (*self.names, *buffers)
        return Program([BoundLaunch(launches[kernel], names) for kernel in kernels], list(buffers.values()))

    def _build_backward(self, d_output: Tensor, needs_grad: tuple[bool, ...]) -> Program | None:
        plan = self.plan
        needs = self.needed_names(needs_grad)
        if not needs.isdisjoint(("w", "sharpness")):  # both are computed
            needs |= {"w", "sharpness"} if plan.has_distance else {"w"}
        launches = plan.launches(backward_launches, d_output, None, False, self.has_lse, needs)
        kernels = []
        has_dq_kernel = bool(needs - {"k", "v"}) or (plan.sum_far_keys and "v" in needs)
        if not plan.single_tile_backward:
            needs_delta = self.has_received and not plan.received_in_dq if has_dq_kernel else "k" in needs
            if needs_delta:  # from a kernel of its own
                kernels.append("received")
            if has_dq_kernel:
                kernels.append("dq")
        if plan.sum_far_keys:
            kernels.append("prefix_sums")
        if plan.single_tile_backward or not needs.isdisjoint(("k", "v")):
            kernels.append("dkv")
        buffers: dict[str, Buffer | None] = {
            "prefix_sums": Buffer(plan.query_sums_shape, torch.float32, is_zero=True) if plan.sum_far_keys else None,
            "delta": None if plan.single_tile_backward else self.lse_buffer,
            **self.gradient_buffers(needs),
            "d_position_q": None,
            "d_distance_partials": Buffer(self.partials_shape, torch.float32) if "w" in needs else None,
            "d_relative_bias_partials": self.bias_partials_buffer(needs),
        }
        if plan.position_q is not None and "position_q" in needs:
            buffers["d_position_q"] = Buffer(tuple(plan.position_q.shape), plan.q.dtype)
        other_gradients = ("d_received",) if self.has_received else ("d_lse",) if self.has_lse else ()
        names = (*self.names, "o", "lse", "do", *other_gradients, *buffers)
        centered = names.index("d_received") if has_dq_kernel and plan.received_in_dq else None
        gradients: dict[str, Gradient] = {
            name: Gradient(names.index(f"d{name}")) for name in ("q", "k", "v") if name in needs
        }
        if "position_q" in needs:
            gradients["position_q"] = Gradient(names.index("d_position_q"))
        for index, name in enumerate(("w", "sharpness")):
            if name in needs:
                gradients[name] = Gradient(names.index("d_distance_partials"), (1, 3), index)
        if "relative_bias" in needs:
            gradients["relative_bias"] = Gradient(names.index("d_relative_bias_partials"), (0, 1, 3))
        bound = [BoundLaunch(launches[kernel], names) for kernel in kernels]
        return Program(bound, list(buffers.values()), [gradients.get(name) for name in self.names], centered)

    def output_buffer(self, name: str) -> Buffer:
        """Return the buffer of the output or of the gradient of q, k or v."""
        shape, stride = self.plan.output_layouts[name]
        return Buffer(shape, self.plan.q.dtype, stride)

    @property
    def lse_buffer(self) -> Buffer:
        """The buffer of a number for each query."""
        return Buffer(self.plan.query_shape, torch.float32)

    @property
    def partials_shape(self) -> tuple[int, ...]:
        """The shape of partial sums, by two quantities, batch element, head and query block."""
        return 2, *self.plan.query_shape[:2], self.plan.query_blocks

    def gradient_buffers(self, needs: frozenset[str]) -> dict[str, Buffer | None]:
        """Return the buffers of the gradients of q, k and v, None for those that are not needed."""
        return {f"d{name}": self.output_buffer(f"d{name}") if name in needs else None for name in ("q", "k", "v")}

    def bias_partials_buffer(self, needs: frozenset[str]) -> Buffer | None:
        """Return the buffer of the partial sums of the gradient of a relative bias, None if it is not needed."""
        if "relative_bias" not in needs:
            return None
        return Buffer((*self.partials_shape, 2 * self.plan.max_offset + 1), torch.float32, is_zero=True)
