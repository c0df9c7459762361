"""Received attention of several layers at once, from queries and keys only.

A model's layers can attend by torch's own kernels without Python overhead. Received attention is computed afterwards,
and for many layers it takes as few launches as for one.
Legend: B batch, H query heads, G key heads, N tokens, E head width.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headwise.attention.triton_backend.launch import Launch, Tile, kernels, on_device
from headwise.attention.triton_backend.layouts import layout_key
from headwise.attention.triton_backend.operator import MAX_GRID_SIZE, MAX_WIDTH, missing_requirement
from headwise.attention.triton_backend.plan import Plan, get_plan
from headwise.attention.triton_backend.problem import TENSOR_PARAMS
from headwise.attention.triton_backend.tile_sizes import power_of_two

MAX_CACHED_OFFSETS = 1000

#: Number of keys that a tile can hold.
MAX_ROW = 512


class LayerQK(NamedTuple):
    """Queries and keys of one self-attention layer."""

    q: Tensor  # [B, H, N, E]
    k: Tensor  # [B, G, N, E]
    scale: float
    causal: bool
    padding: Tensor | None  # [B, N], True for a real token; None: all are real

    @property
    def kind(self) -> Any:
        """The key by which layers are grouped: layers with equal keys are computed at once."""
        padding = None if self.padding is None else (self.padding.data_ptr(), layout_key(self.padding))
        return self.q.device, layout_key(self.q), layout_key(self.k), self.scale, self.causal, padding


def why_unsupported(layer: LayerQK) -> str | None:
    """Return why the kernels cannot compute this, or None if they can."""
    q, k = layer.q, layer.k
    batch, heads, n, width = q.shape
    missing: str | None = missing_requirement(q.device)
    if missing is not None:
        return missing
    if q.dtype not in (torch.float32, torch.float16, torch.bfloat16) or k.dtype != q.dtype:
        return "the Triton kernels support float32, float16 and bfloat16"
    if k.shape[2] != n:
        return "the Triton kernels need as many keys as queries"
    if not 0 < batch <= MAX_GRID_SIZE or not 0 < heads <= MAX_GRID_SIZE or not 0 < width <= MAX_WIDTH or not n:
        return "batch size, heads, head width or length is 0 or too large for the Triton kernels"
    if any(x.stride(3) != 1 or x.data_ptr() % 16 for x in (q, k)):
        return "the Triton kernels need contiguous rows at addresses that are multiples of 16 bytes"
    if any(x.stride(axis) == 0 and x.shape[axis] > 1 for x in (q, k) for axis in range(3)):
        return "the Triton kernels do not support expanded tensors"
    return None


def multi_layer_received(layers: Sequence[LayerQK]) -> list[Tensor]:
    """Compute the received attention of each layer, [B, H, N] in float32, counting real tokens only.

    Args:
        layers: layers of one kind, for which `why_unsupported` is None.
    """
    first, max_layers = layers[0], MAX_GRID_SIZE // layers[0].q.shape[0]
    received: list[Tensor] = []
    for start in range(0, len(layers), max_layers):
        chunk = layers[start : start + max_layers]
        tensors = [layer.q for layer in chunk] + [layer.k for layer in chunk]
        received += _MultiLayerReceived.apply(first.scale, first.causal, first.padding, *tensors).unbind()
    return received


class _MultiLayerReceived(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scale: float, causal: bool, padding: Tensor | None, *tensors: Tensor) -> Any:
        num_layers, q = len(tensors) // 2, tensors[0]
        qs, ks = tensors[:num_layers], tensors[num_layers:]
        arguments = operator_arguments(q, ks[0], padding, scale, causal)
        plan = get_plan(*arguments)
        lse, received = (q.new_empty((num_layers, *plan.query_shape), dtype=torch.float32) for _ in range(2))
        layer_offsets = _layer_offsets(qs, ks)
        kernel_tensors = plan.tensors(arguments, layer_offsets_ptr=layer_offsets, lse_ptr=lse, received_ptr=received)
        run = plan.launches(forward_launches, num_layers)
        with on_device(q):
            for launch in run.values():
                launch(kernel_tensors)
        ctx.save_for_backward(lse, padding, *tensors)
        ctx.plan, ctx.scale, ctx.causal, ctx.layouts = plan, scale, causal, (layout_key(q), layout_key(ks[0]))
        return received

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_received: Tensor) -> tuple[Tensor | None, ...]:
        lse, padding, *tensors = ctx.saved_tensors
        plan, num_layers = ctx.plan, len(tensors) // 2
        tensors = [_with_layout(x, ctx.layouts[i // num_layers]) for i, x in enumerate(tensors)]
        qs, ks = tensors[:num_layers], tensors[num_layers:]
        q, lse = qs[0], lse.contiguous()
        d_received = d_received - d_received.mean(dim=-1, keepdim=True)  # as in passes.py
        dqs, dks = (
            [q.new_empty_strided(*plan.output_layouts[name]) for _ in range(num_layers)] for name in ("dq", "dk")
        )
        kernel_tensors = plan.tensors(
            operator_arguments(q, ks[0], padding, ctx.scale, ctx.causal),
            layer_offsets_ptr=_layer_offsets(qs, ks, dqs, dks),
            lse_ptr=lse,
            d_received_ptr=d_received.contiguous(),
            delta_ptr=torch.empty_like(lse),
            dq_ptr=dqs[0],
            dk_ptr=dks[0],
        )
        run = plan.launches(backward_launches, num_layers)
        with on_device(q):
            run["dq"](kernel_tensors)
            run["dk"](kernel_tensors)
        return None, None, None, *dqs, *dks


def operator_arguments(q: Tensor, k: Tensor, padding: Tensor | None, scale: float, causal: bool) -> tuple[Any, ...]:
    """Return the arguments of the Triton operator for one layer, with the keys as values."""
    tensors = {"q_ptr": q, "k_ptr": k, "v_ptr": k, "key_padding_ptr": padding}
    return (
        *(tensors.get(name) for name in TENSOR_PARAMS),
        *(scale, 0.0, 0, causal, -1, -1, False, 0, False, 0.0, True, False),
    )


def forward_launches(plan: Plan, num_layers: int) -> dict[str, Launch]:
    """Return the launches of the forward pass, in their order."""
    tile = rows_tile(plan)
    if tile is not None:
        arguments = {**plan.scalar_arguments(), "OPT": plan.options(tile)}
        grid = (1, plan.heads, plan.batch * num_layers)
        return {"rows": Launch(kernels()["multi_layer_rows_kernel"], grid, tile, arguments)}
    return {
        "lse": plan.launch("multi_layer_lse_kernel", "received", plan.heads, num_layers=num_layers),
        "received": plan.launch(
            "multi_layer_received_kernel", "received", plan.heads, num_layers=num_layers, per_key=True
        ),
    }


def rows_tile(plan: Plan) -> Tile | None:
    """Return a tile that holds all keys, or None if registers cannot hold it."""
    if plan.q.dtype == torch.float32 or plan.width > 64 or plan.m > MAX_ROW:
        return None
    block_m = max(power_of_two(plan.m), 64)
    return Tile(64, block_m, max(block_m // 32, 4))


def backward_launches(plan: Plan, num_layers: int) -> dict[str, Launch]:
    return {
        "dq": plan.launch("multi_layer_bwd_dq_kernel", "dq", plan.heads, num_layers=num_layers),
        "dk": plan.launch("multi_layer_bwd_dk_kernel", "dkv", plan.groups, num_layers=num_layers, per_key=True),
    }


_offsets_cache: dict[Any, Tensor] = {}


def _layer_offsets(*tensors: Sequence[Tensor]) -> Tensor:
    """Return the offsets of each layer's q, k, dq and dk from the first layer's, in elements, [layers, 4].

    Addresses mostly repeat from step to step, so the offsets are cached, per stream on which they are copied.
    """
    addresses = [[x.data_ptr() for x in of_layers] for of_layers in tensors]
    first = tensors[0][0]
    stream = torch.cuda.current_stream(first.device).cuda_stream if first.is_cuda else None
    key = (first.device, stream, first.dtype, *map(tuple, addresses))
    offsets = _offsets_cache.get(key)
    if offsets is None:
        if len(_offsets_cache) >= MAX_CACHED_OFFSETS:
            _offsets_cache.clear()
        size = first.element_size()
        columns = [[(address - column[0]) // size for address in column] for column in addresses]
        columns += [[0] * len(addresses[0])] * (4 - len(columns))
        rows = torch.tensor(list(zip(*columns, strict=True)), pin_memory=first.is_cuda)
        offsets = _offsets_cache[key] = rows.to(first.device, non_blocking=True)
    return offsets


def _with_layout(x: Tensor, layout: Any) -> Tensor:
    """Return a saved tensor with its layout of the forward pass, which hooks on saved tensors may have changed."""
    _, shape, strides, _ = layout
    return x if layout_key(x) == layout else x.new_empty_strided(shape, strides).copy_(x)
