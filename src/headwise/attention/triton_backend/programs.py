"""Programs: everything about a forward or backward pass but the addresses of its tensors.

A program consists of the buffers that a pass allocates, its launches, and where the gradients are. A pass then takes a
few microseconds of Python per launch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise import _compat
from headwise.attention.triton_backend.launch import Launch


class Buffer(NamedTuple):
    """A tensor that a pass allocates on the device of its first input."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...] | None = None  # None: contiguous
    is_zero: bool = False

    def allocate(self, q: Tensor) -> Tensor:
        """Return a new tensor on the device of q."""
        if self.is_zero:
            return q.new_zeros(self.shape, dtype=self.dtype)
        if self.stride is None:
            return q.new_empty(self.shape, dtype=self.dtype)
        return q.new_empty_strided(self.shape, self.stride, dtype=self.dtype)


class Gradient(NamedTuple):
    """Where a gradient is: a tensor of the pass, an element of its sum over some dimensions, or a multiple of it."""

    slot: int
    sum_dims: tuple[int, ...] = ()
    element: int | None = None
    scale: float | None = None
    dtype: torch.dtype | None = None  # of the multiple


class BoundLaunch:
    """A launch that takes its tensors by their positions (slots) among the tensors of a pass.

    Args:
        launch: the launch.
        names: the names of the tensors of the pass.
        aliases: the names of tensors for parameters of the kernel that have other names; or a name and the number of
            elements after which the parameter starts.
    """

    def __init__(
        self, launch: Launch, names: Sequence[str], aliases: Mapping[str, str | tuple[str, int]] | None = None
    ) -> None:
        sources = {f"{name}_ptr": (slot, 0) for slot, name in enumerate(names)}
        for param, source in (aliases or {}).items():
            name, offset = (source, 0) if isinstance(source, str) else source
            if name in names:
                sources[f"{param}_ptr"] = names.index(name), offset
        self.launch = launch
        self.num_tensors = len(names)
        self.sources = sources
        params = [(index, *sources[name]) for index, name in launch.tensor_params if name in sources]
        self.slots = [(index, slot) for index, slot, offset in params if not offset]
        self.shifted_slots = [param for param in params if param[2]]
        self.used_slots = {slot for _, slot, _ in params}
        self.values = [0 if value is None else value for value in launch.values]

    def __call__(self, tensors: Sequence[Tensor | None], stream: int) -> None:
        """Launch the kernel on a stream. Tensors that are None must not be read by the kernel."""
        compiled = self.launch.compiled
        if compiled is None:  # the first launch, or Triton's interpreter
            self.launch(self.kernel_tensors(tensors))
            return
        arguments = self.values.copy()
        for index, slot in self.slots:
            x = tensors[slot]
            if x is not None:
                arguments[index] = x.data_ptr()
        for index, slot, offset in self.shifted_slots:
            x = tensors[slot]
            if x is not None:
                arguments[index] = x.data_ptr() + offset * x.element_size()
        compiled(*arguments, stream=stream)

    def kernel_tensors(self, tensors: Sequence[Tensor | None]) -> dict[str, Any]:
        """Return the tensors by the names of parameters, with masks as bytes, which Triton compiles kernels for."""
        by_name: dict[str, Any] = {}
        for name, (slot, offset) in self.sources.items():
            x = tensors[slot]
            if x is not None and x.dtype == torch.bool:
                x = x.view(torch.uint8)
            if x is not None and offset:
                x = x.as_strided((1,), (1,), x.storage_offset() + offset)
            by_name[name] = x
        return by_name


@dataclass
class Program:
    """A forward or backward pass.

    Args:
        launches: the launches, in their order. Their tensors are the inputs of the pass, then the buffers.
        buffers: what the pass allocates, each before the first launch that uses it; None for tensors that it does not
            need. A backward pass frees those that are not gradients after their last launch.
        gradients: where the gradient of each input is, None for those that are not needed. Empty for a forward pass.
        centered: the slot of an input from whose rows a backward pass subtracts their mean, or None. A constant in the
            gradient of received attention has no effect, and rounding errors grow with the values.
    """

    launches: list[BoundLaunch]
    buffers: list[Buffer | None]
    gradients: list[Gradient | None] = field(default_factory=list)
    centered: int | None = None

    @cached_property
    def lifetimes(self) -> list[tuple[int, int]]:
        """The indices of each buffer's first and last launch. Those that the pass returns are kept to its end."""
        num_inputs = self.launches[0].num_tensors - len(self.buffers)
        slots = range(num_inputs, self.launches[0].num_tensors)
        end = len(self.launches)
        returned = {gradient.slot for gradient in self.gradients if gradient is not None} or set(slots)
        uses = [[index for index, x in enumerate(self.launches) if slot in x.used_slots] or [0] for slot in slots]
        return [(x[0], end if slot in returned else x[-1]) for slot, x in zip(slots, uses, strict=True)]

    @cached_property
    def _steps(self) -> list[tuple[BoundLaunch, list[tuple[int, Buffer]], list[int]]]:
        """Each launch, the buffers to allocate before it, by slot, and the slots to free after it."""
        num_inputs = self.launches[0].num_tensors - len(self.buffers)
        buffers = [
            (num_inputs + index, buffer, *lifetime)
            for index, (buffer, lifetime) in enumerate(zip(self.buffers, self.lifetimes, strict=True))
            if buffer is not None
        ]
        return [
            (
                launch,
                [(slot, buffer) for slot, buffer, first, _ in buffers if first == index],
                [slot for slot, _, _, last in buffers if last == index],
            )
            for index, launch in enumerate(self.launches)
        ]

    def run(self, inputs: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Run the pass on the current stream of the device of its first input. Return its inputs and buffers."""
        q = inputs[0]
        assert q is not None
        device = q.get_device()  # -1 for a CPU
        if device >= 0 and device != torch.cuda.current_device():
            with torch.cuda.device(device):
                return self.run(inputs)
        stream = _compat.current_stream(device) if device >= 0 else 0
        tensors = [*inputs, *[None] * len(self.buffers)]
        for launch, allocated, freed in self._steps:
            for slot, buffer in allocated:
                tensors[slot] = buffer.allocate(q)
            launch(tensors, stream)
            for slot in freed:
                tensors[slot] = None
        return tensors

    def run_backward(self, inputs: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Run the pass. Return its gradients."""
        if self.centered is not None:
            inputs = list(inputs)
            x = inputs[self.centered]
            assert x is not None
            inputs[self.centered] = x - x.mean(dim=-1, keepdim=True)
        tensors = self.run(inputs)
        sums: dict[tuple[int, tuple[int, ...]], Tensor] = {}
        grads = []
        for gradient in self.gradients:
            grad = None if gradient is None else tensors[gradient.slot]
            if gradient is not None and grad is not None and gradient.sum_dims:
                key = gradient.slot, gradient.sum_dims
                if key not in sums:
                    sums[key] = grad.sum(gradient.sum_dims)
                grad = sums[key] if gradient.element is None else sums[key][gradient.element]
            if gradient is not None and grad is not None and gradient.scale is not None:
                grad = torch.mul(grad, gradient.scale, out=torch.empty_like(grad, dtype=gradient.dtype))
            grads.append(grad)
        return grads
