"""TENER's queries: q + u, and q + v rotated by its position, in one kernel.

With torch's operators they take longer than attention over a short sequence.
Legend: B batch, H heads, N queries, E width.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headwise.attention.operators import is_plain_eager
from headwise.attention.triton_backend.launch import Launch, Tile, kernels, use_device_of
from headwise.attention.triton_backend.layouts import (
    has_contiguous_rows,
    layout_key,
    layout_like,
    named_strides,
)
from headwise.attention.triton_backend.operator import MAX_GRID_SIZE, missing_requirement
from headwise.attention.triton_backend.tile_sizes import num_blocks, power_of_two

BLOCK_ROWS = 64


@dataclass(frozen=True)
class RotationOptions:
    """Compile-time options of the kernels."""

    half_width: int
    block_half: int  # half_width, rounded up
    block_n: int = BLOCK_ROWS


def can_rotate(q: Tensor) -> bool:
    """Return whether the kernels can compute `rotate_queries` of q."""
    is_supported = q.dtype in (torch.float32, torch.float16, torch.bfloat16) and q.numel() > 0
    if not is_supported or max(q.shape[:2]) > MAX_GRID_SIZE or not is_plain_eager(q):
        return False
    return missing_requirement(q.device) is None


def rotate_queries(q: Tensor, u: Tensor, v: Tensor, embeddings: Tensor) -> tuple[Tensor, Tensor]:
    """Return q + u and rot_i(q + v), differentiably, for a q that `can_rotate`.

    Args:
        q: queries, [B, H, N, E].
        u: the bias of queries that are multiplied with keys, [H, E].
        v: the bias of queries that are rotated, [H, E].
        embeddings: the sinusoids of the queries' positions in float32, [N, E].
    """
    content_q, position_q = _RotateQueries.apply(q, u, v, embeddings)
    return content_q, position_q


class _RotateQueries(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, u: Tensor, v: Tensor, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        q = q if has_contiguous_rows(q) else q.contiguous()
        layout = layout_like(q, q.shape[3])
        content_q, position_q = (q.new_empty_strided(*layout) for _ in range(2))
        u, v = u.contiguous(), v.contiguous()
        others = (u.dtype, v.dtype, (u.data_ptr() | v.data_ptr() | embeddings.data_ptr()) % 16)
        launch = _forward_launch(layout_key(q), others, q.device)
        with use_device_of(q):
            launch(
                {
                    "q_ptr": q,
                    "u_ptr": u,
                    "v_ptr": v,
                    "embeddings_ptr": embeddings,
                    "content_q_ptr": content_q,
                    "position_q_ptr": position_q,
                }
            )
        ctx.save_for_backward(embeddings)
        ctx.layout, ctx.dtypes = layout, (u.dtype, v.dtype)
        return content_q, position_q

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_content_q: Tensor, d_position_q: Tensor) -> tuple[Tensor | None, ...]:
        (embeddings,) = ctx.saved_tensors
        d_content_q, d_position_q = (
            x if has_contiguous_rows(x) else x.contiguous() for x in (d_content_q, d_position_q)
        )
        dq = d_content_q.new_empty_strided(*ctx.layout)
        batch, heads, n, width = dq.shape
        blocks = num_blocks(n, BLOCK_ROWS)
        partials = dq.new_empty((2, batch, heads, blocks, width), dtype=torch.float32)
        layouts = [layout_key(x) for x in (d_content_q, d_position_q, dq, embeddings)]
        launch = _backward_launch(*layouts, dq.device)
        with use_device_of(dq):
            launch(
                {
                    "d_content_q_ptr": d_content_q,
                    "d_position_q_ptr": d_position_q,
                    "embeddings_ptr": embeddings,
                    "q_ptr": dq,
                    "partials_ptr": partials,
                }
            )
        du, dv = partials.sum((1, 3)).unbind()
        return dq, du.to(ctx.dtypes[0]), dv.to(ctx.dtypes[1]), None


@lru_cache(maxsize=1000)
def _forward_launch(q_layout: Any, others: Any, device: torch.device) -> Launch:
    """Build a launch. Triton compiles a kernel for the dtypes and alignments of its tensors."""
    _, shape, strides, _ = q_layout
    out_strides = layout_like(torch.empty_strided(shape, strides, device="meta"), shape[3])[1]
    arguments = {**named_strides("q", "bhn", strides), **named_strides("out", "bhn", out_strides)}
    return _launch("rotate_queries_kernel", shape, arguments)


@lru_cache(maxsize=1000)
def _backward_launch(
    d_content_layout: Any, d_position_layout: Any, dq_layout: Any, embeddings_layout: Any, device: torch.device
) -> Launch:
    arguments = {
        **named_strides("d_content_q", "bhn", d_content_layout[2]),
        **named_strides("d_position_q", "bhn", d_position_layout[2]),
        **named_strides("q", "bhn", dq_layout[2]),
        "B": dq_layout[1][0],
    }
    return _launch("bwd_rotate_queries_kernel", dq_layout[1], arguments)


def _launch(kernel: str, shape: tuple[int, ...], arguments: dict[str, Any]) -> Launch:
    batch, heads, n, width = shape
    options = RotationOptions(width // 2, power_of_two(width // 2))
    grid = (num_blocks(n, BLOCK_ROWS), heads, batch)
    return Launch(
        kernels()[kernel], grid, Tile(BLOCK_ROWS, BLOCK_ROWS), {"H": heads, "n": n, "OPT": options, **arguments}
    )
