"""Forward and backward pass of cached calls: the launches of all calls whose tensors have the same layouts.

A `BoundCall` holds everything but the addresses of its tensors, and runs in a few microseconds of Python per launch. A
`PlannedCall` runs the passes of `passes.py` with a plan that is found once. It covers masks, biases and dense tables.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise import _compat
from headwise.attention.triton_backend.launch import Launch
from headwise.attention.triton_backend.operator import run_operators
from headwise.attention.triton_backend.passes import backward_launches, forward_launches, run_backward, run_forward
from headwise.attention.triton_backend.plan import DIFFERENTIABLE, TENSOR_PARAMS, get_plan
from headwise.attention.triton_backend.scheme_inputs import SchemeInputs

BoundLaunch = Callable[[Sequence[Tensor | None], int], None]
#: The output of a forward pass, and what the backward pass needs besides it.
Results = tuple[Tensor, *tuple[Tensor | None, ...]]

#: The operators' tensors after those of a scheme.
OTHER_TENSORS = ("bias", "sinks", "mask", "key_padding", "query_padding", "seq_starts", "seq_ends", "seed")

#: Index of the dropout probability among the operators' arguments that are not tensors.
DROPOUT = 9


class CachedCall(ABC):
    """Calls with the same names and layouts of tensors and the same numbers.

    Args:
        names: the names of the tensors of a call, those of `SchemeInputs` and `OTHER_TENSORS` without the seed, which a
            call with dropout has as its last tensor.
        scalars: the operators' arguments that are not tensors.
        inputs: the tensors of one of these calls. Their values are not used.
    """

    def __init__(self, names: tuple[str, ...], scalars: tuple[Any, ...], inputs: Sequence[Tensor]) -> None:
        self.has_dropout = scalars[DROPOUT] > 0
        if self.has_dropout:
            names, inputs = (*names, "seed"), [*inputs, torch.empty((), dtype=torch.int64, device=inputs[0].device)]
        self.names = names
        self.scalars = scalars
        slots = {f"{name}_ptr": slot for slot, name in enumerate(names)}
        self.operator_slots = [slots.get(name) for name in TENSOR_PARAMS]
        self.strides = [x.stride() for x in inputs]
        self.plan = get_plan(*self.operator_tensors(inputs), *scalars)

    def operator_tensors(self, inputs: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """Return the tensor arguments of the operators."""
        return tuple([None if slot is None else inputs[slot] for slot in self.operator_slots])

    @abstractmethod
    def forward(self, inputs: Sequence[Tensor]) -> Results:
        """Compute the output, and what the backward pass needs besides inputs and output."""

    @abstractmethod
    def backward(
        self, saved: Sequence[Tensor], d_output: Tensor, needs_grad: tuple[bool, ...]
    ) -> Sequence[Tensor | None] | None:
        """Compute the gradient of each input, or return None if these calls cannot compute those that are needed.

        Args:
            saved: the inputs, the output, and what else the forward pass returned.
            d_output: the gradient of the output.
            needs_grad: which gradients are needed, of each input.
        """

    def needed_names(self, needs_grad: tuple[bool, ...]) -> frozenset[str]:
        """Return the names of the inputs whose gradients are needed."""
        return frozenset(name for name, is_needed in zip(self.names, needs_grad, strict=True) if is_needed)

    def is_unchanged(self, inputs: Sequence[Tensor]) -> bool:
        """Return whether inputs have the layouts of this call; hooks on saved tensors may have copied them."""
        return [x.stride() for x in inputs] == self.strides

    def recompute_gradients(
        self, inputs: Sequence[Tensor], d_output: Tensor, needs_grad: tuple[bool, ...]
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
            output, *_ = run_operators(SchemeInputs(**scheme_tensors), tensors["q"], *others, *self.scalars)
        needed = [x for x, is_needed in zip(inputs, needs_grad, strict=True) if is_needed]
        grads = iter(torch.autograd.grad(output, needed, d_output, create_graph=create_graph))
        return [next(grads) if is_needed else None for is_needed in needs_grad]


class CachedAttention(torch.autograd.Function):
    """Attention by a cached call, its first argument."""

    @staticmethod
    def forward(ctx: Any, call: CachedCall, *inputs: Tensor) -> Tensor:
        output, *others = call.forward(inputs)
        ctx.call = call
        ctx.save_for_backward(*inputs, output, *others)
        return output

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        call: CachedCall = ctx.call
        saved = ctx.saved_tensors
        inputs = saved[: len(call.names)]
        needs_grad = ctx.needs_input_grad[1:]
        grads = None
        if not torch.is_grad_enabled() and call.is_unchanged(inputs):
            rows = d_output if d_output.stride(-1) == 1 else d_output.contiguous()
            grads = call.backward(saved, rows, needs_grad)
        if grads is None:
            grads = call.recompute_gradients(inputs, d_output, needs_grad)
        return None, *grads


class PlannedCall(CachedCall):
    """Calls that the passes of `passes.py` compute, with a plan that is found once."""

    def forward(self, inputs: Sequence[Tensor]) -> Results:
        output, lse, *_ = run_forward(self.plan, (*self.operator_tensors(inputs), *self.scalars))
        assert output is not None
        assert lse is not None
        return output, lse

    def backward(
        self, saved: Sequence[Tensor], d_output: Tensor, needs_grad: tuple[bool, ...]
    ) -> Sequence[Tensor | None]:
        *inputs, output, lse = saved
        needs = self.needed_names(needs_grad)
        arguments = (*self.operator_tensors(inputs), *self.scalars)
        unused: tuple[None, ...] = (None, None, None)
        grads = run_backward(self.plan, arguments, needs, output, lse, None, None, d_output, None, *unused)
        by_name = dict(zip(DIFFERENTIABLE, grads, strict=True))
        return [by_name[name] if is_needed else None for name, is_needed in zip(self.names, needs_grad, strict=True)]


class BoundBackward(NamedTuple):
    """The launches of a backward pass, and the layouts of the gradients of q, k and v, None for those not needed."""

    launches: list[BoundLaunch]
    layouts: list[Any]
    needs: frozenset[str]


class BoundCall(CachedCall):
    """Calls whose launches are kept with all their arguments but the addresses of tensors."""

    def __init__(self, names: tuple[str, ...], scalars: tuple[Any, ...], inputs: Sequence[Tensor]) -> None:
        super().__init__(names, scalars, inputs)
        self.output_layout = self.plan.output_layouts["o"]
        self.query_shape = self.plan.query_shape
        self.sum_far_keys = self.plan.sum_far_keys
        self.partials_shape = (2, *self.plan.query_shape[:2], self.plan.query_blocks)
        self.forward_launches = self._bind_forward()
        self._backwards: dict[Any, BoundBackward | None] = {}

    def _bind_forward(self) -> list[BoundLaunch]:
        launches = self.plan.launches(forward_launches)
        kernels = ("value_block_sums", "prefix_sums", "fwd") if self.plan.sum_far_keys else ("fwd",)
        names = (*self.names, "o", "lse", "prefix_sums")
        return [bind(launches[kernel], names) for kernel in kernels]

    def forward(self, inputs: Sequence[Tensor]) -> Results:
        q = inputs[0]
        output = q.new_empty_strided(*self.output_layout)
        lse = q.new_empty(self.query_shape, dtype=torch.float32)
        prefix_sums = lse.new_zeros(self.plan.key_sums_shape) if self.sum_far_keys else None
        run(self.forward_launches, (*inputs, output, lse, prefix_sums))
        return output, lse

    def backward(
        self, saved: Sequence[Tensor], d_output: Tensor, needs_grad: tuple[bool, ...]
    ) -> Sequence[Tensor | None] | None:
        bound = self._find_backward(d_output, needs_grad)
        if bound is None:
            return None
        plan, needs = self.plan, bound.needs
        q, lse = saved[0], saved[-1]
        delta = None if plan.single_tile_backward else torch.empty_like(lse)
        dq, dk, dv = [None if layout is None else q.new_empty_strided(*layout) for layout in bound.layouts]
        partials = lse.new_empty(self.partials_shape) if "w" in needs else None
        bias_partials = None
        if "relative_bias" in needs:
            bias_partials = lse.new_zeros((*self.partials_shape, 2 * plan.max_offset + 1))
        prefix_sums = lse.new_zeros(plan.query_sums_shape) if plan.sum_far_keys else None
        run(bound.launches, (*saved, prefix_sums, d_output, delta, dq, dk, dv, partials, bias_partials))
        grads = [dq, dk, dv, *[None] * (len(self.names) - 3)]
        if partials is not None:
            sums = partials.sum((1, 3)).unbind()
            grads[3] = sums[0]
            if plan.has_distance:
                grads[4] = sums[1]
        if bias_partials is not None:
            grads[self.names.index("relative_bias")] = bias_partials.sum((0, 1, 3))
        return grads

    def _find_backward(self, d_output: Tensor, needs_grad: tuple[bool, ...]) -> BoundBackward | None:
        key = (d_output.stride(), needs_grad, d_output.data_ptr() % 16)
        if key not in self._backwards:
            self._backwards[key] = self._bind_backward(d_output, needs_grad)
        return self._backwards[key]

    def _bind_backward(self, d_output: Tensor, needs_grad: tuple[bool, ...]) -> BoundBackward | None:
        plan = self.plan
        needs = self.needed_names(needs_grad)
        if not needs.isdisjoint(("w", "sharpness")):  # both are computed
            needs |= {"w", "sharpness"} if plan.has_distance else {"w"}
        launches = plan.launches(backward_launches, d_output, None, False, False, needs)
        kernels = []
        if not plan.single_tile_backward:
            if needs - {"k", "v"} or (plan.sum_far_keys and "v" in needs):
                kernels.append("dq")
            elif "k" in needs:
                kernels.append("received")  # delta
        if plan.sum_far_keys:
            kernels.append("prefix_sums")
        if plan.single_tile_backward or not needs.isdisjoint(("k", "v")):
            kernels.append("dkv")
        names = (
            *self.names, "o", "lse", "prefix_sums", "do", "delta", "dq", "dk", "dv",
            "d_distance_partials", "d_relative_bias_partials",
        )  # fmt: skip
        layouts = [plan.output_layouts[f"d{name}"] if name in needs else None for name in ("q", "k", "v")]
        return BoundBackward([bind(launches[kernel], names) for kernel in kernels], layouts, needs)


def bind(launch: Launch, names: tuple[str, ...], aliases: Mapping[str, str] | None = None) -> BoundLaunch:
    """Return a function that launches a kernel with tensors in the order of `names`, on a stream.

    Args:
        launch: the launch.
        names: the names of the tensors.
        aliases: the names of the tensors for parameters of the kernel that have other names.
    """
    sources = {f"{name}_ptr": names.index(name) for name in names}
    sources |= {f"{param}_ptr": names.index(name) for param, name in (aliases or {}).items() if name in names}
    slots = [(index, sources[name]) for index, name in launch.tensor_params if name in sources]
    values = [0 if value is None else value for value in launch.values]

    def bound(tensors: Sequence[Tensor | None], stream: int) -> None:
        if launch.compiled is None:  # the first launch, or Triton's interpreter
            launch(as_kernel_tensors({name: tensors[slot] for name, slot in sources.items()}))
            return
        arguments = values.copy()
        for index, slot in slots:
            x = tensors[slot]
            if x is not None:
                arguments[index] = x.data_ptr()
        launch.compiled(*arguments, stream=stream)

    return bound


def as_kernel_tensors(tensors: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors with masks as bytes, which Triton compiles kernels for."""
    return {name: x.view(torch.uint8) if x is not None and x.dtype == torch.bool else x for name, x in tensors.items()}


def run(launches: Sequence[BoundLaunch], tensors: Sequence[Tensor | None]) -> None:
    """Run launches on the current stream of the device of the first tensor."""
    q = tensors[0]
    assert q is not None
    device = q.get_device()  # -1 for a CPU
    if device >= 0 and device != torch.cuda.current_device():
        with torch.cuda.device(device):
            run(launches, tensors)
        return
    stream = _compat.current_stream(device) if device >= 0 else 0
    for launch in launches:
        launch(tensors, stream)
