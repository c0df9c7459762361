"""What tokens receive, from queries and keys alone, in several layers at once.

A model whose layers attend by torch's kernels need not be slowed down by Python: what its tokens receive can be found
afterwards, and to find it for many layers takes as few launches as for one.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headwise.attention.triton_backend.launch import Launch, on_device
from headwise.attention.triton_backend.operator import MOST, WIDEST, missing
from headwise.attention.triton_backend.plan import Plan, described, plan_of


class LayerQK(NamedTuple):
    """How one layer looks: queries (B, H, N, d), keys (B, G, N, d), and the real tokens (B, N); None if all are."""

    q: Tensor
    k: Tensor
    scale: float
    causal: bool
    padding: Tensor | None

    @property
    def kind(self) -> Any:
        """What layers have in common that are found at once."""
        padding = None if self.padding is None else (self.padding.data_ptr(), described(self.padding))
        return self.q.device, described(self.q), described(self.k), self.scale, self.causal, padding


def why_unsupported(look: LayerQK) -> str | None:
    """Why the kernels cannot do it, or None if they can."""
    batch, heads, n, width = look.q.shape
    lacking: str | None = missing(look.q.device)
    if lacking is not None:
        return lacking
    if look.q.dtype not in (torch.float32, torch.float16, torch.bfloat16) or look.k.dtype != look.q.dtype:
        return "the kernels compute in float32, float16 and bfloat16"
    if look.k.shape[2] != n:
        return "the kernels are for a text that looks at itself"
    if not 0 < batch <= MOST or not 0 < heads <= MOST or not 0 < width <= WIDEST or not n:
        return "there are too many texts or heads, too wide ones, or none"
    if any(x.stride(3) != 1 or x.data_ptr() % 16 for x in (look.q, look.k)):
        return "the kernels want rows in one piece of memory, at addresses that are multiples of 16 bytes"
    if any(x.stride(axis) == 0 and x.shape[axis] > 1 for x in (look.q, look.k) for axis in range(3)):
        return "the kernels' tensors are not expanded"
    return None


def multi_layer_received(looks: Sequence[LayerQK]) -> list[Tensor]:
    """What each token receives from all real tokens, (B, H, N) in float32, for layers of one kind without obstacle."""
    first, most = looks[0], MOST // looks[0].q.shape[0]
    found: list[Tensor] = []
    for start in range(0, len(looks), most):
        some = looks[start : start + most]
        tensors = [look.q for look in some] + [look.k for look in some]
        found += _Received.apply(first.scale, first.causal, first.padding, *tensors).unbind()
    return found


class _Received(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scale: float, causal: bool, padding: Tensor | None, *tensors: Tensor) -> Any:
        layers, q = len(tensors) // 2, tensors[0]
        arguments = _arguments(q, tensors[layers], padding, scale, causal)
        plan = plan_of(*arguments)
        lse, found = (q.new_empty((layers, *plan.rows), dtype=torch.float32) for _ in range(2))
        places = _places(tensors[:layers], tensors[layers:])
        given = plan.tensors(arguments, places=places, lse_ptr=lse, received_ptr=found)
        run = plan.launches(_forward_launches, layers)
        with on_device(q):
            run["lse"](given)
            run["received"](given)
        ctx.save_for_backward(lse, padding, *tensors)
        ctx.plan, ctx.settings, ctx.kinds = plan, (scale, causal), (described(q), described(tensors[layers]))
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_received: Tensor) -> tuple[Tensor | None, ...]:
        lse, padding, *tensors = ctx.saved_tensors
        plan, layers = ctx.plan, len(tensors) // 2
        tensors = [_as(ctx.kinds[place // layers], x) for place, x in enumerate(tensors)]
        q, lse = tensors[0], lse.contiguous()
        dq, dk = ([q.new_empty_strided(*plan.lying[name]) for _ in range(layers)] for name in ("dq", "dk"))
        given = plan.tensors(
            _arguments(q, tensors[layers], padding, *ctx.settings),
            places=_places(tensors[:layers], tensors[layers:], dq, dk),
            lse_ptr=lse,
            g_ptr=d_received.contiguous(),
            delta_ptr=torch.empty_like(lse),
            dq_ptr=dq[0],
            dk_ptr=dk[0],
        )
        run = plan.launches(_backward_launches, layers)
        with on_device(q):
            run["queries"](given)
            run["keys"](given)
        return None, None, None, *dq, *dk


def _arguments(q: Tensor, k: Tensor, padding: Tensor | None, scale: float, causal: bool) -> tuple[Any, ...]:
    """The operator's arguments for one layer, in which keys stand for values."""
    return (
        *(q, k, k, None, None, None, None, None, None, None, padding, None, None, None, None),
        *(scale, 0, causal, False, 0, False, 0.0, True, False),
    )


def _forward_launches(plan: Plan, layers: int) -> dict[str, Launch]:
    return {
        "lse": plan.launch("multi_layer_lse_kernel", "sums", plan.heads, layers=layers),
        "received": plan.launch("bunched_received", "sums", plan.heads, layers=layers, per_key=True),
    }


def _backward_launches(plan: Plan, layers: int) -> dict[str, Launch]:
    return {
        "queries": plan.launch("bunched_query_gradients", "queries", plan.heads, layers=layers),
        "keys": plan.launch("bunched_key_gradients", "keys", plan.groups, layers=layers, per_key=True),
    }


_known: dict[Any, Tensor] = {}


def _places(*tensors: Sequence[Tensor]) -> Tensor:
    """How far each layer's q, k, and if given dq and dk, lie behind those of the first layer, in elements: (layers, 4).

    From step to step they mostly lie where they lay, so tables are kept, for the stream that they are copied on.
    """
    starts = [[x.data_ptr() for x in of_layers] for of_layers in tensors]
    first = tensors[0][0]
    stream = torch.cuda.current_stream(first.device).cuda_stream if first.is_cuda else None
    key = (first.device, stream, first.dtype, *map(tuple, starts))
    found = _known.get(key)
    if found is None:
        if len(_known) >= 1000:
            _known.clear()
        size = first.element_size()
        columns = [[(start - own[0]) // size for start in own] for own in starts]
        columns += [[0] * len(starts[0])] * (4 - len(columns))
        rows = torch.tensor(list(zip(*columns, strict=True)), pin_memory=first.is_cuda)
        found = _known[key] = rows.to(first.device, non_blocking=True)
    return found


def _as(kind: Any, x: Tensor) -> Tensor:
    """A saved tensor as it lay in the forward pass, should hooks have laid it out anew."""
    _, shape, steps, _ = kind
    return x if described(x) == kind else x.new_empty_strided(shape, steps).copy_(x)
