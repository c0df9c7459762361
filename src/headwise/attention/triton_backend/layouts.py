"""Layouts of tensors in memory: shapes and strides.

Legend: B batch, H heads, N queries, R rows of a table.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def has_contiguous_rows(x: Tensor) -> bool:
    return x.stride(-1) == 1 or x.shape[-1] == 1


def with_strides(x: Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    """Return x, copied if it does not have these strides."""
    return x if x.stride() == strides else x.new_empty_strided(shape, strides).copy_(x)


def align(x: Tensor) -> Tensor:
    """Return x, copied if it is not contiguous or does not start at a multiple of 16 bytes, as kernels assume."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() % 16 else x


def layout_like(x: Tensor, width: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return shape and strides of a dense tensor of another width, with heads and rows in the same order as x."""
    batch, heads, rows, _ = x.shape
    _, stride_h, stride_n, _ = x.stride()
    size = heads * rows * width
    strides = (size, width, heads * width, 1) if stride_h < stride_n else (size, rows * width, width, 1)
    return (batch, heads, rows, width), strides


def layout_key(x: Tensor) -> Any:
    """Return everything about a tensor that a launch depends on: all but its address and values."""
    return x.dtype, x.shape, x.stride(), x.data_ptr() % 16


def to_meta(x: Tensor) -> Tensor:
    """Return a tensor of the same layout without values."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def padded_rows(max_offset: int) -> int:
    """Return the number of rows of a clipped table, rounded up, which is the length of rows of [B, H, N, R]."""
    return (2 * max_offset + 8) // 8 * 8


def edge_columns(x: Tensor, max_offset: int) -> Tensor:
    """Return the first and last column of [B, H, N, R] without their padding, as [B, H, 2, N]."""
    return torch.stack((x[..., 0], x[..., 2 * max_offset]), dim=2)


def tensor_strides(name: str, axes: str, x: Tensor | None) -> dict[str, Any]:
    """Return a tensor's strides by the names of the kernels' parameters; 0 if there is no tensor."""
    return named_strides(name, axes, [0] * len(axes) if x is None else x.stride())


def named_strides(name: str, axes: str, strides: Sequence[int]) -> dict[str, Any]:
    return {f"stride_{name}_{axis}": stride for axis, stride in zip(axes, strides, strict=False)}
