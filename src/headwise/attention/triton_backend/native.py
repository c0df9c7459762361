"""Cached calls in C++: `native_calls.cpp` runs their programs.

For short sequences, the Python code of a pass takes longer than its kernels. `build` compiles the C++ code once for a
version of torch. From then on, cached calls use it. Without it they run in Python, with the same kernels and results.
"""

import hashlib
import importlib.util
import os
import shutil
import struct
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise import _compat
from headwise.attention.triton_backend.cached_passes import BoundCall
from headwise.attention.triton_backend.programs import BoundLaunch, Program
from headwise.attention.types import AttentionOutput

SOURCE = Path(__file__).with_name("native_calls.cpp")
NAME = "headwise_native_calls"

#: The environment variable that turns off the C++ code (0), or names the directory of what was built.
DIRECTORY_VARIABLE = "HEADWISE_NATIVE"

#: How Python packs parameters of these types of Triton.
FORMATS = {
    "i1": "<?",
    "i8": "<b",
    "i16": "<h",
    "i32": "<i",
    "i64": "<q",
    "u32": "<I",
    "u64": "<Q",
    "fp32": "<f",
    "fp64": "<d",
}


def is_turned_off() -> bool:
    """Return whether the user has turned off the C++ code."""
    return os.environ.get(DIRECTORY_VARIABLE) == "0"


def build_directory() -> Path:
    """Return the directory of what is built for this source, version of torch and Python."""
    versions = f"{torch.__version__} {torch.compiled_with_cxx11_abi()} {sys.implementation.cache_tag}"
    name = hashlib.sha256(SOURCE.read_bytes() + versions.encode()).hexdigest()[:16]
    root = os.environ.get(DIRECTORY_VARIABLE) or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "headwise" / f"native-{name}"


def build() -> Any:
    """Compile the C++ code, unless that has been done, and load it.

    Raises:
        RuntimeError: the code is turned off, there is no C++ compiler, or it failed.
        OSError: the cache cannot be written.
    """
    if is_turned_off():
        raise RuntimeError(f"{DIRECTORY_VARIABLE}=0 turns it off")
    module = load()
    if module is None:
        from torch.utils.cpp_extension import load as compile_and_load

        directory = build_directory()
        directory.mkdir(parents=True, exist_ok=True)
        compile_and_load(NAME, [str(SOURCE)], extra_cflags=["-O2"], build_directory=str(directory))
        load.cache_clear()
        module = load()
    return module


def remove() -> None:
    """Delete what was built, so that it is not used."""
    shutil.rmtree(build_directory(), ignore_errors=True)
    load.cache_clear()


@cache
def load() -> Any:
    """Return the compiled module, or None if it was not built or is turned off."""
    path = build_directory() / f"{NAME}.so"
    if is_turned_off() or not path.is_file():
        return None
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        _compat.warn_once(f"{path} cannot be loaded ({error}): kernels are launched from Python")
        return None
    return module


@cache
def load_for_gpu() -> Any:
    """Return the compiled module with the CUDA driver, or None."""
    module = load() if torch.version.cuda else None
    if module is not None:
        try:
            module.set_driver(*_compat.driver_addresses())
        except (OSError, AttributeError) as error:
            _compat.warn_once(f"the CUDA driver has no function to launch kernels ({error}): Python launches them")
            return None
    return module


class NativeCall:
    """Calls that C++ computes, like `BoundCall.attend`."""

    def __init__(self, call: BoundCall, native: Any, attend: Any) -> None:
        self.has_dropout, self.has_received = call.has_dropout, call.has_received
        self.native, self.compute = native, attend

    def attend(self, inputs: tuple[Tensor, ...]) -> Tensor | AttentionOutput:
        """Compute attention, differentiably if an input needs a gradient."""
        q = inputs[0]
        device = q.get_device()
        if device != torch.cuda.current_device():
            with torch.cuda.device(device):
                return self.attend(inputs)
        if self.has_dropout:
            inputs = (*inputs, torch.randint(2**31 - 1, (), device=q.device))
        results: list[Tensor] = self.compute(self.native, inputs, _compat.current_stream(device))
        return AttentionOutput(*results) if self.has_received else results[0]


class NativeGradients:
    """Computes gradients that C++ does not know yet. Its program is added, so that C++ computes them the next time.

    Args:
        module: the compiled module.
        call: the call.
    """

    def __init__(self, module: Any, call: BoundCall) -> None:
        self.module, self.call = module, call

    def __call__(
        self, native: Any, saved: Sequence[Tensor], d_outputs: Sequence[Tensor], needs_grad: tuple[bool, ...]
    ) -> Sequence[Tensor | None]:
        grads = self.call.compute_gradients(saved, d_outputs, needs_grad)
        d_output = d_outputs[0]
        if not torch.is_grad_enabled() and d_output.stride(-1) == 1 and self.call.is_unchanged(saved):
            program = self.call.find_backward(d_output, needs_grad)
            native_program = None if program is None else to_native(self.module, program)
            if native_program is not None:
                alignment = d_output.data_ptr() % 16
                native.add_backward(list(needs_grad), list(d_output.stride()), alignment, native_program)
        return grads


def native_call(call: BoundCall, device: torch.device) -> NativeCall | None:
    """Return a call in C++ whose forward pass has run in Python, or None if there is none."""
    module = load_for_gpu() if device.type == "cuda" and not call.has_lse else None
    # Its self-test computes gradients in another thread. That thread must not wait for the other self-test.
    if module is None or not (_compat.direct_launches.works(device) and _compat.direct_launches.has_passed(device)):
        return None
    if not _compat.native_launches.works(device):
        return None
    program = to_native(module, call.forward_program)
    if program is None:
        return None
    strides = [list(stride) for stride in call.strides]
    native = module.NativeCall(program, call.num_results, call.has_received, strides, NativeGradients(module, call))
    return NativeCall(call, native, module.attend)


def to_native(module: Any, program: Program) -> Any:
    """Return a program for C++, or None if a kernel was not compiled or needs more than parameters."""
    native = module.Program()
    for buffer, lifetime in zip(program.buffers, program.lifetimes, strict=True):
        if buffer is None:
            native.add_buffer(False, [], [], torch.float32, False, *lifetime)
        else:
            layout = list(buffer.shape), list(buffer.stride or ())
            native.add_buffer(True, *layout, buffer.dtype, buffer.is_zero, *lifetime)
    for launch in program.launches:
        arguments = launch_arguments(launch)
        if arguments is None:
            return None
        native.add_launch(*arguments)
    for gradient in program.gradients:
        if gradient is None:
            native.add_gradient(False, 0, [], -1, 1.0, torch.float32)
        else:
            element = -1 if gradient.element is None else gradient.element
            scale, dtype = (0.0 if gradient.scale is None else gradient.scale), gradient.dtype or torch.float32
            native.add_gradient(True, gradient.slot, list(gradient.sum_dims), element, scale, dtype)
    if program.centered is not None:
        native.center(program.centered)
    return native


def launch_arguments(bound: BoundLaunch) -> tuple[Any, ...] | None:
    """Return the arguments of `Program.add_launch`, or None if the kernel cannot be launched by the driver."""
    launch = bound.launch
    kernel = None if launch.compiled is None else _compat.describe_kernel(launch.compiled_kernel)
    if kernel is None:
        return None
    params: list[int] = []
    addresses = []
    names = launch.parameter_names
    if list(kernel.types) != [name for name in names if name in kernel.types]:
        return None
    for name, kind in kernel.types.items():
        if kind.startswith("*"):
            if name in bound.sources:
                slot, offset = bound.sources[name]
                addresses.append((len(params), slot, offset * ELEMENT_SIZES[kind[1:]]))
            params.append(0)
        elif kind in FORMATS:
            params.append(pack(kind, bound.values[names.index(name)]))
        else:
            return None
    return kernel.function, launch.grid, kernel.num_threads, kernel.shared_bytes, [*params, 0, 0], addresses


#: Bytes of the elements that Triton's pointers point to.
ELEMENT_SIZES = {"fp32": 4, "i32": 4, "fp16": 2, "bf16": 2, "i8": 1, "u8": 1, "i64": 8, "fp64": 8}


def pack(kind: str, value: Any) -> int:
    """Return the bits of a parameter.

    >>> hex(pack("fp32", 1.0)), pack("i32", 7)
    ('0x3f800000', 7)
    """
    return int.from_bytes(struct.pack(FORMATS[kind], value), "little")
