"""Cached calls: a repeated call of `attend` goes from its arguments straight to the kernels.

For short sequences, checking the arguments, evaluating the scheme and planning the launches takes longer than the
kernels. All of these depend only on layouts and options. The first call with some layouts and options takes the usual
way; if the Triton backend computed it, its launches are kept, and later calls with the same key use them.

Cached calls cover `Plain` and `DistanceAware` with the learnable sigmoid, with or without `key_padding`, `causal` and
`dropout`, on plain tensors in eager mode. Everything else takes the usual way.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from headwise import _compat
from headwise.attention.operators import is_plain_eager, run_backward_operator
from headwise.attention.schemes import DistanceAware, Plain, Scheme
from headwise.attention.triton_backend.launch import Launch, on_device
from headwise.attention.triton_backend.operator import operators
from headwise.attention.triton_backend.passes import backward_launches, forward_launches
from headwise.attention.triton_backend.plan import DIFFERENTIABLE, TENSOR_PARAMS, Plan, get_plan
from headwise.attention.types import AttentionInputs

#: Tensors of the launches, in the order in which cached calls hold them.
FORWARD_TENSORS = (
    "q_ptr", "k_ptr", "v_ptr", "w_ptr", "sharpness_ptr", "key_padding_ptr", "seed_ptr",
    "o_ptr", "lse_ptr", "prefix_sums_ptr",
)  # fmt: skip
BACKWARD_TENSORS = (
    *FORWARD_TENSORS, "do_ptr", "delta_ptr", "dq_ptr", "dk_ptr", "dv_ptr", "d_distance_partials_ptr",
)  # fmt: skip

MAX_CACHED_CALLS = 1000

PLAIN_TYPES = (Tensor, Parameter)

BoundLaunch = Callable[[Sequence[Tensor | None], int], None]


class CachedCall:
    """The launches of all calls with one key.

    Args:
        plan: the plan of these calls.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.has_distance = plan.has_distance
        launches = plan.launches(forward_launches)
        names = ("value_block_sums", "prefix_sums", "fwd") if plan.sum_far_keys else ("fwd",)
        self.forward_launches = [bind(launches[name], FORWARD_TENSORS) for name in names]
        self.layouts = plan.output_layouts
        self.input_strides = (plan.q.stride(), plan.k.stride(), plan.v.stride())
        self.delta_shape = None if plan.single_tile_backward else plan.query_shape
        self.partials_shape = (2, *plan.query_shape[:2], plan.query_blocks) if self.has_distance else None
        self._backward_launches: dict[tuple[int, ...], list[BoundLaunch]] = {}

    def forward(self, inputs: tuple[Tensor | None, ...]) -> tuple[Tensor, Tensor]:
        """Compute the output and lse."""
        q = inputs[0]
        assert q is not None
        output = q.new_empty_strided(*self.layouts["o"])
        lse = q.new_empty(self.plan.query_shape, dtype=torch.float32)
        prefix_sums = lse.new_zeros(self.plan.key_sums_shape) if self.plan.sum_far_keys else None
        run(self.forward_launches, (*inputs, output, lse, prefix_sums))
        return output, lse

    def backward(
        self, inputs: tuple[Tensor | None, ...], output: Tensor, lse: Tensor, d_output: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Compute the gradients of q, k, v, w and v of the scheme."""
        q = inputs[0]
        assert q is not None
        launches = self._backward_launches.get(d_output.stride())
        if launches is None:
            launches = self._backward_launches[d_output.stride()] = self._bind_backward(d_output)
        delta = None if self.delta_shape is None else torch.empty_like(lse)
        partials = None if self.partials_shape is None else lse.new_empty(self.partials_shape)
        dq, dk, dv = (q.new_empty_strided(*self.layouts[name]) for name in ("dq", "dk", "dv"))
        prefix_sums = lse.new_zeros(self.plan.query_sums_shape) if self.plan.sum_far_keys else None
        run(launches, (*inputs, output, lse, prefix_sums, d_output, delta, dq, dk, dv, partials))
        dw, d_sharpness = (None, None) if partials is None else partials.sum((1, 3)).unbind()
        return dq, dk, dv, dw, d_sharpness

    def _bind_backward(self, d_output: Tensor) -> list[BoundLaunch]:
        needs = frozenset(DIFFERENTIABLE[: 5 if self.has_distance else 3])
        launches = self.plan.launches(backward_launches, d_output, None, False, False, needs)
        names = ["dkv"] if self.plan.single_tile_backward else ["dq", "dkv"]
        if self.plan.sum_far_keys:
            names.insert(1, "prefix_sums")
        return [bind(launches[name], BACKWARD_TENSORS) for name in names]


class CachedAttention(torch.autograd.Function):
    """Attention by a cached call, its first argument."""

    @staticmethod
    def forward(ctx: Any, call: CachedCall, *inputs: Tensor | None) -> Tensor:
        output, lse = call.forward(inputs)
        ctx.call = call
        ctx.save_for_backward(*inputs, output, lse)
        return output

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, output, lse = ctx.saved_tensors
        call: CachedCall = ctx.call
        needs_grad = ctx.needs_input_grad[1:6]
        is_unchanged = tuple(x.stride() for x in inputs[:3]) == call.input_strides  # hooks on saved tensors may copy
        needs_all = all(needs_grad) if call.has_distance else all(needs_grad[:3])
        if needs_all and is_unchanged and d_output.stride(-1) == 1 and not torch.is_grad_enabled():
            grads = call.backward(tuple(inputs), output, lse, d_output)
        else:
            grads = compute_gradients(call.plan, inputs, output, lse, d_output, needs_grad)
        return None, *grads, None, None


def compute_gradients(
    plan: Plan,
    inputs: Sequence[Tensor | None],
    output: Tensor,
    lse: Tensor,
    d_output: Tensor,
    needs_grad: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Compute the gradients of q, k, v, w and v of the scheme the usual way, by the backend's operator."""
    scalars = (plan.scale, 0.0, plan.q_offset, plan.causal, -1, -1, plan.rectify, 0, False, plan.dropout, False, False)
    needs = [*needs_grad, *[False] * (len(DIFFERENTIABLE) - len(needs_grad))]
    empty = lse.new_empty(0)
    arguments = (*operator_tensors(inputs), *scalars, needs, output, lse, empty, empty)
    d_outputs = (d_output, torch.zeros_like(lse), empty, empty, empty)
    grads = run_backward_operator(operators.backward, *arguments, *d_outputs)[: len(needs_grad)]
    return tuple(grad if grad.numel() else None for grad in grads)


def bind(launch: Launch, names: tuple[str, ...]) -> BoundLaunch:
    """Return a function that launches a kernel with tensors in the order of `names`, on a stream."""
    slots = [(index, names.index(name)) for index, name in launch.tensor_params if name in names]
    values = [0 if value is None else value for value in launch.values]

    def bound(tensors: Sequence[Tensor | None], stream: int) -> None:
        if launch.compiled is None:  # the first launch, or Triton's interpreter
            launch(dict(zip(names, tensors, strict=True)))
            return
        arguments = values.copy()
        for index, slot in slots:
            x = tensors[slot]
            if x is not None:
                arguments[index] = x.data_ptr()
        launch.compiled(*arguments, stream=stream)

    return bound


def run(launches: Sequence[BoundLaunch], tensors: Sequence[Tensor | None]) -> None:
    """Run launches on the current stream of the device of the first tensor."""
    q = tensors[0]
    assert q is not None
    with on_device(q):
        stream = _compat.current_stream(q.get_device()) if q.is_cuda else 0
        for launch in launches:
            launch(tensors, stream)


_calls: dict[Any, CachedCall] = {}


def call_key(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scheme: Scheme,
    key_padding: Tensor | None,
    causal: bool,
    offset: int | None,
    dropout: float,
    scale: float | None,
    backend: object,
) -> Any:
    """Return everything that the launches of a call depend on, or None if such calls are not cached.

    The arguments are those of `attend`, before they are checked.
    """
    if not (backend == "triton" or (backend == "auto" and type(q) in PLAIN_TYPES and q.is_cuda)):
        return None
    if type(scheme) is DistanceAware:
        if scheme.v is None or scheme.adjust != "early-multiply" or type(scheme.w) is not Parameter:
            return None
        scheme_key: Any = (scheme.rectify, scheme.heads, scheme.w.dtype, scheme.w.device)
    elif type(scheme) is Plain:
        scheme_key = None
    else:
        return None
    tensors = (q, k, v) if key_padding is None else (q, k, v, key_padding)
    if not all(type(x) in PLAIN_TYPES for x in tensors) or not is_plain_eager(q) or _compat.is_forward_ad_active():
        return None
    if _compat.has_hooks(scheme):
        return None
    device, dtype = q.device, q.dtype
    if torch.is_autocast_enabled(device.type) and dtype != torch.get_autocast_dtype(device.type):
        return None
    padding_key: Any = None
    if key_padding is not None:
        if key_padding.dtype != torch.bool or key_padding.dim() != 2 or not key_padding.is_contiguous():
            return None
        padding_key = (key_padding.shape, key_padding.device)
    return (
        scheme_key, dtype, k.dtype, v.dtype, device, k.device, v.device,
        q.shape, q.stride(), k.shape, k.stride(), v.shape, v.stride(),
        (q.data_ptr() | k.data_ptr() | v.data_ptr()) % 16, padding_key, causal, offset, dropout, scale, backend,
        torch.get_float32_matmul_precision(),
    )  # fmt: skip


def attend_cached(
    key: Any, q: Tensor, k: Tensor, v: Tensor, scheme: Scheme, key_padding: Tensor | None
) -> Tensor | None:
    """Compute attention by the cached call of this key; None if there is none."""
    call = _calls.get(key)
    if call is None:
        return None
    seed = torch.randint(2**31 - 1, (), device=q.device) if call.plan.dropout > 0 else None
    inputs = (q, k, v, *distance_parameters(scheme), key_padding, seed)
    output: Tensor
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs[:5]):
        output = CachedAttention.apply(call, *inputs)
    else:
        output, _ = call.forward(inputs)
    return output


def remember(key: Any, inputs: AttentionInputs, scheme: Scheme) -> None:
    """Keep the launches of a call that the Triton backend has computed. Decoding, whose lengths grow, is not kept."""
    terms, v = inputs.terms, inputs.v
    if not (v.numel() and terms.q.numel()) or terms.q.shape[2] == 1:
        return
    seed = torch.empty((), dtype=torch.int64, device=v.device) if inputs.dropout > 0 else None
    tensors = (terms.q, terms.k, v, *distance_parameters(scheme), inputs.key_padding, seed)
    plan = get_plan(*operator_tensors(tensors), inputs.scale, 0.0, inputs.offset, inputs.causal, -1, -1,
                    terms.rectify, 0, False, inputs.dropout, False, False)  # fmt: skip
    if plan.non_contiguous:
        return
    if len(_calls) >= MAX_CACHED_CALLS:
        _calls.clear()
    _calls[key] = CachedCall(plan)


def distance_parameters(scheme: Scheme) -> tuple[Tensor | None, Tensor | None]:
    """Return w and v of the learnable sigmoid, or neither."""
    if isinstance(scheme, DistanceAware) and scheme.v is not None:
        return scheme.w.float(), scheme.v.float()
    return None, None


def operator_tensors(inputs: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Return the tensor arguments of the operators, given those of a cached call."""
    present = dict(zip(FORWARD_TENSORS, inputs, strict=False))
    return tuple(present.get(name) for name in TENSOR_PARAMS)


def num_calls() -> int:
    """Return how many calls are cached."""
    return len(_calls)


def clear_calls() -> None:
    """Forget all cached calls."""
    _calls.clear()
