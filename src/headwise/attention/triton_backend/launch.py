"""Kernel launches: compile-time options, tile sizes, and a fast path for repeated launches."""

import inspect
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headwise import _compat


@dataclass(frozen=True)
class Tile:
    """Tile size in queries (block_n) and keys (block_m), warps and pipeline stages."""

    block_n: int
    block_m: int
    num_warps: int = 4
    num_stages: int = 1

    @property
    def compile_options(self) -> dict[str, Any]:
        """Triton's options. Fused multiplications and additions are its default up to 3.9 only."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, "enable_fp_fusion": True}


@dataclass(frozen=True)
class Options:
    """Compile-time options of a kernel."""

    half: bool  # queries, keys and values are float16 or bfloat16
    width: int  # of queries and keys
    value_width: int
    block_e: int  # width, rounded up
    block_d: int  # value_width, rounded up
    block_n: int
    block_m: int
    regions: int  # bit mask of the regions in which a tile's keys can lie; see `tiles.py`
    one_region: bool  # all keys count as keys near the diagonal, so that there is one loop
    single_tile: bool  # one tile holds all queries and keys
    single_tile_backward: bool  # and bwd_dkv_kernel computes all gradients
    causal: bool
    distance: bool  # distance-aware attention
    staged_distance: bool  # its factors are kept in shared memory
    num_staged: int  # for this many relative positions
    slopes: bool  # ALiBi
    rectify: bool
    sum_far_keys: bool  # far keys that score 0 enter as one prefix sum
    relative_scores: bool  # scores with a clipped table are added
    offset_sums: bool  # weights are summed by relative position, for a clipped table of values
    sums_in_output: bool  # and the output contains their products with it
    relative_bias: bool  # biases by clipped relative position are added
    clipped_table: bool  # any of the three
    staged_tables: bool  # products with clipped tables of keys and values are computed in the kernels
    stores_products: bool  # and stored, because bwd_dkv_kernel looks them up in global memory
    block_r: int  # rows of such a table, rounded up to a power of two
    table_columns: int  # and to a multiple of 8
    product_pitch: int  # bytes between rows of products in shared memory
    pairs_pitch: int  # and between rows of 32-bit numbers
    relative_shift: bool  # scores with a dense table are added
    query_table: bool  # and the keys' products with another one
    position_width: int  # of position_q and position_k, whose products are added; 0 without them
    block_p: int  # position_width, rounded up
    window: bool
    softcap: bool
    sinks: bool
    skip_tiles: bool  # only tiles of `visited_tiles` are visited
    key_padding: bool
    query_padding: bool
    mask: bool
    bias: bool
    store_d_scores: str  # store the gradient of each pair's score: "after-softcap", "before-softcap", or "";
    # or "dz", whole tiles of dz (`transformer_xl.py`)
    cu_seqlens: bool
    cu_seqlens_k: bool  # and the keys' sequences have other lengths than the queries'
    dropout: bool
    received: bool
    received_in_dq: bool  # and bwd_dq_kernel computes its part of delta
    weight_norms: bool
    has_d_lse: bool  # lse has a gradient
    even_n: bool  # the number of queries is a multiple of block_n
    even_m: bool  # the number of keys is a multiple of block_m
    needs_dq: bool  # gradients that kernels of the backward pass compute
    needs_dk: bool
    needs_dv: bool
    needs_position_q: bool
    needs_distance: bool  # those of w and v
    needs_relative: bool  # those of scores with a clipped table
    needs_relative_bias: bool
    fast: bool  # inline assembly for NVIDIA GPUs
    precision: str  # tl.dot's input_precision

    @property
    def reserves_smem(self) -> bool:
        """Whether the kernel reserves shared memory (`shared_memory.py`)."""
        return self.fast and (self.relative_shift or self.staged_distance or self.staged_tables)


class Launch:
    """A kernel with its grid and all arguments that are not tensors.

    Triton inspects each argument of a launch to find the compiled kernel. This takes longer than attention over a short
    sequence, so from the second call on a Launch calls the compiled kernel directly, if the self-test of
    `_compat.direct_launches` passes.

    Args:
        kernel: the Triton kernel.
        grid: number of programs along each axis.
        tile: the tile whose warps and stages are used.
        arguments: scalar arguments by name; those that are not parameters of the kernel are ignored.
    """

    def __init__(self, kernel: Any, grid: tuple[int, int, int], tile: Tile, arguments: dict[str, Any]) -> None:
        self.kernel, self.grid, self.tile = kernel, grid, tile
        self.parameter_names = names = parameter_names(kernel)
        self.arguments = {name: arguments[name] for name in names if name in arguments}
        self.values = [arguments.get(name) for name in names]
        self.tensor_params = [(index, name) for index, name in enumerate(names) if name not in arguments]
        self.compiled: Any = None
        self.compiled_kernel: Any = None  # Triton's

    def __call__(self, tensors: dict[str, Any]) -> None:
        """Launch the kernel with tensors by name. Missing ones and None must not be read by the kernel."""
        if self.compiled is None:
            present = {name: x for name, x in tensors.items() if x is not None}
            kwargs = {name: present.get(name, tensors["q_ptr"]) for _, name in self.tensor_params}
            options = self.tile.compile_options
            options_of_kernel = self.arguments["OPT"]
            if getattr(options_of_kernel, "reserves_smem", False):
                _compat.allow_shared_memory(self.kernel.warmup(**self.arguments, **kwargs, **options, grid=self.grid))
            self.compiled_kernel = self.kernel[self.grid](**self.arguments, **kwargs, **options)
            self.compiled = _compat.direct_launcher(self.compiled_kernel, self.grid, tensors["q_ptr"].device)
            return
        values = self.values.copy()
        for index, name in self.tensor_params:
            x = tensors.get(name)
            values[index] = 0 if x is None else x.data_ptr()  # a raw address spares Triton's lookup and checks
        self.compiled(*values, stream=_compat.current_stream(tensors["q_ptr"].get_device()))


@cache
def parameter_names(kernel: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(kernel.fn).parameters)


def use_device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Make the tensor's device the current one, on which kernels run."""
    is_other_device = x.is_cuda and x.device.index != torch.cuda.current_device()
    return torch.cuda.device(x.device) if is_other_device else nullcontext()


@cache
def kernels() -> Any:
    """Return all kernels by name, or None if Triton is not installed."""
    try:
        from headwise.attention.triton_backend import (
            backward_delta_kernel,
            backward_dkv_kernel,
            backward_kernels,
            decode_kernels,
            forward_kernels,
            rotation_kernels,
            table_product_kernels,
            transformer_xl_kernels,
        )
    except ImportError:
        return None
    modules = (
        forward_kernels,
        decode_kernels,
        backward_delta_kernel,
        backward_kernels,
        backward_dkv_kernel,
        transformer_xl_kernels,
        rotation_kernels,
        table_product_kernels,
    )
    return {name: x for module in modules for name, x in vars(module).items() if name.endswith("_kernel")}
