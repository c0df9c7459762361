"""How a kernel is launched: what it is told at compile time, its tile, and a short way for launches seen before."""

import ctypes
import inspect
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tile:
    """Queries and keys in a tile, warps and pipeline stages."""

    rows: int
    columns: int
    warps: int = 4
    stages: int = 1


@dataclass(frozen=True)
class Options:
    """What a kernel knows when it is compiled."""

    width: int
    value_width: int
    block_e: int
    block_d: int
    block_n: int
    block_m: int
    sides: int  # where a tile's keys may lie, a bit each; see `tiles.py`
    single: bool  # one tile is all there is
    alone: bool  # and one kernel computes all gradients
    causal: bool
    distance: bool
    rectify: bool
    skips: bool  # far keys that score 0 enter as one sum
    relative: bool  # numbers for relative positions are added to the scores
    bins: bool  # weights are summed by relative position, for the values' table
    table: bool  # either of them
    askew: bool  # a table has a row for every relative position
    key_padding: bool
    query_padding: bool
    mask: bool
    bias: bool
    d_pairs: bool  # the gradient of each pair's score is stored
    cu_seqlens: bool
    dropout: bool
    received: bool
    weight_norms: bool
    d_log_sums: bool  # the log-sums have a gradient
    even_m: bool
    fast: bool
    precision: str


class Launch:
    """A kernel, its grid and every argument that is not a tensor.

    Triton looks at each argument of a launch to find the compiled kernel, which takes longer than a short text's
    attention. The second launch of a kind goes to the kernel that the first one found.
    """

    def __init__(self, kernel: Any, grid: tuple[int, int, int], tile: Tile, arguments: dict[str, Any]) -> None:
        self.kernel, self.grid, self.tile = kernel, grid, tile
        names = parameters(kernel)
        self.arguments = {name: arguments[name] for name in names if name in arguments}
        self.values = [arguments.get(name) for name in names]
        self.tensors = [(place, name) for place, name in enumerate(names) if name not in arguments]
        self.compiled: Any = None

    def __call__(self, tensors: dict[str, Any]) -> None:
        if self.compiled is None:
            some = tensors["q_ptr"]  # for one that is not there, which the kernel does not read
            given = {name: some if tensors.get(name) is None else tensors[name] for _, name in self.tensors}
            options = {"num_warps": self.tile.warps, "num_stages": self.tile.stages}
            if self.arguments["OPT"].fast and self.arguments["OPT"].askew:
                allow_shared_memory(self.kernel.warmup(**self.arguments, **given, **options, grid=self.grid))
            compiled = self.kernel[self.grid](**self.arguments, **given, **options)
            self.compiled = None if compiled is None else compiled[self.grid]  # the interpreter compiles nothing
            return
        values = self.values.copy()
        for place, name in self.tensors:
            x = tensors.get(name)
            values[place] = 0 if x is None else x.data_ptr()  # which Triton would look up, and check, itself
        # On the current stream, which Triton would look up in a longer way.
        self.compiled(*values, stream=torch._C._cuda_getCurrentRawStream(tensors["q_ptr"].get_device()))


def allow_shared_memory(compiled: Any) -> None:
    """Let a kernel have shared memory of its own (`askew.py`) besides Triton's.

    A program that uses more than 48 KiB must be allowed to, and Triton sees to that only where its own are more.
    """
    compiled._init_handles()
    driver = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    most_dynamic, size = 8, compiled.metadata.shared  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    if size <= 48 * 1024 and driver.cuFuncSetAttribute(ctypes.c_void_p(compiled.function), most_dynamic, size):
        raise RuntimeError("the CUDA driver refused shared memory for Transformer-XL's kernels")


@cache
def parameters(kernel: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(kernel.fn).parameters)


def on_device(x: Tensor) -> AbstractContextManager[Any]:
    """Kernels run on the current device: let that be the tensor's."""
    elsewhere = x.is_cuda and x.device.index != torch.cuda.current_device()
    return torch.cuda.device(x.device) if elsewhere else nullcontext()
