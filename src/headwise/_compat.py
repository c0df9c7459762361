"""Private parts of torch, Triton and transformers that headwise uses, each with a fallback to public functions.

- A private function that the installed version does not have is replaced when this module is imported.
- Launches of kernels that could give wrong results with another version of Triton are `SelfTested`: at first use on a
  GPU, a tiny problem is compared with the reference.

Each fallback is reported by one warning. HEADWISE_PRIVATE_APIS=0 selects the public functions without a test.
"""

import ctypes
import os
import threading
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

#: The environment variable that turns off what is self-tested.
SWITCH = "HEADWISE_PRIVATE_APIS"

_reported: set[str] = set()


def warn_once(message: str) -> None:
    """Issue a warning, unless it was issued before."""
    if message not in _reported:
        _reported.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def find_private(owner: Any, path: str, fallback: Any, consequence: str) -> Any:
    """Return a private attribute, or the fallback with a warning if this version does not have it.

    Args:
        owner: the module that has it.
        path: its name, with dots.
        fallback: what to use instead.
        consequence: what the fallback means for the user.
    """
    try:
        return attrgetter(path)(owner)
    except AttributeError:
        name = getattr(owner, "__name__", type(owner).__name__)
        warn_once(f"{name} {getattr(torch, '__version__', '')} has no {path}: {consequence}")
        return fallback


# torch: the state of the dispatcher. The fallbacks assume that a transform, mode or hook is active.

_SLOWER = "attention uses the code path of compiled code, which is slower for short sequences"
functorch_is_active: Callable[[], bool] = find_private(
    torch._C, "_are_functorch_transforms_active", lambda: True, _SLOWER
)
num_dispatch_modes: Callable[[], int] = find_private(torch._C, "_len_torch_dispatch_stack", lambda: 1, _SLOWER)
is_functorch_tensor: Callable[[Tensor], bool] = find_private(
    torch._C, "_functorch.is_functorch_wrapped_tensor", lambda _: True, "values of arguments are not checked"
)
# The public attribute takes five times as long. torch.get_float32_matmul_precision raises an error if the precision was
# set by torch.backends, as transformers does.
_fp32_precision: Callable[[str, str], str] = find_private(
    torch._C,
    "_get_fp32_precision_getter",
    lambda *_: torch.backends.cuda.matmul.fp32_precision,
    "launches of kernels take longer",
)


def uses_tf32() -> bool:
    """Return whether torch may compute matrix products of float32 in TensorFloat-32 on NVIDIA GPUs."""
    return _fp32_precision("cuda", "matmul") == "tf32"


def is_forward_ad_active() -> bool:
    """Return whether code runs within `torch.autograd.forward_ad.dual_level`."""
    return bool(getattr(forward_ad, "_current_level", 0) >= 0)


_has_global_hooks: Callable[[], bool] = find_private(
    nn.modules.module, "_has_any_global_hook", lambda: False, "hooks for all modules may not see position schemes"
)


def has_hooks(module: nn.Module) -> bool:
    """Return whether a module has forward or backward hooks, or its own method `forward`, such as accelerate's."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
        or _has_global_hooks()
    )


def storage_id(x: Tensor) -> int:
    """Return a number that tensors have in common if they share memory."""
    storage = x.untyped_storage()
    return int(storage._cdata) if hasattr(storage, "_cdata") else storage.data_ptr()


def mark_constant(function: Any) -> Any:
    """Return a function whose result the compiler treats as a constant.

    `torch.compiler.assume_constant_result` does the same, but imports the compiler, which takes seconds.
    """
    function._dynamo_marked_constant = True
    return function


def _public_stream(device_index: int) -> int:
    return int(torch.cuda.current_stream(device_index).cuda_stream)


#: Returns the handle of the current stream of a device. The private function takes a tenth of the time.
current_stream: Callable[[int], int] = (
    find_private(torch._C, "_cuda_getCurrentRawStream", _public_stream, "launches of kernels take longer")
    if torch.version.cuda or torch.version.hip
    else _public_stream
)


# Triton


class SelfTested:
    """A fast path that relies on private parts. It is used on a device once its self-test has passed there.

    Args:
        name: what it is, for the warning.
        fallback: what is used instead, for the warning.
        self_test: a function of a device that raises an exception if the fast path does not work there.
    """

    def __init__(self, name: str, fallback: str, self_test: Callable[[torch.device], None]) -> None:
        self.name, self.fallback, self.self_test = name, fallback, self_test
        self._results: dict[torch.device, bool] = {}
        self._lock = threading.RLock()
        self._is_testing = False

    def works(self, device: torch.device) -> bool:
        """Return whether the fast path works on a device. The first call runs the self-test."""
        result = self._results.get(device)
        return self._test(device) if result is None else result

    def has_passed(self, device: torch.device) -> bool:
        """Return whether the self-test has passed on a device. It is not run, and False while it runs."""
        return self._results.get(device, False)

    def _test(self, device: torch.device) -> bool:
        with self._lock:
            if self._is_testing:  # the self-test itself
                return True
            if device in self._results:
                return self._results[device]
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                return False  # a test would wait for the GPU, which a captured graph cannot
            if os.environ.get(SWITCH) == "0":
                self._results[device] = False
                return False
            self._is_testing = True
            try:
                self.self_test(device)
                self._results[device] = True
            except torch.OutOfMemoryError:
                return False  # the next use tests again
            except Exception as error:
                self._results[device] = False
                reason = (str(error).splitlines() or [""])[0]
                warn_once(
                    f"{self.name} did not pass the self-test on {device} ({type(error).__name__}: {reason:.200}); "
                    f"{self.fallback}. Please report this with the versions of torch and triton"
                )
            finally:
                self._is_testing = False
            return self._results[device]


def _run_self_test(name: str, device: torch.device) -> None:
    getattr(import_module("headwise.attention.self_test"), name)(device)


#: Launches of compiled kernels with raw pointers, without Triton's inspection of the arguments.
direct_launches = SelfTested(
    "the direct launch of compiled Triton kernels",
    "kernels are launched by Triton, which takes longer for short sequences",
    partial(_run_self_test, "check_direct_launches"),
)

#: Shared memory that kernels reserve by inline assembly, in addition to Triton's own.
reserved_shared_memory = SelfTested(
    "shared memory reserved by inline assembly",
    "kernels are used without it, which are slower",
    partial(_run_self_test, "check_reserved_shared_memory"),
)


#: Launches of compiled kernels by the CUDA driver, from C++.
native_launches = SelfTested(
    "the launch of Triton kernels by the CUDA driver",
    "kernels are launched from Python, which takes longer for short sequences",
    partial(_run_self_test, "check_native_launches"),
)


def direct_launcher(compiled: Any, grid: tuple[int, int, int], device: torch.device) -> Any:
    """Return a function that launches a compiled kernel with its arguments and `stream`, or None to launch it publicly.

    Args:
        compiled: what a public launch has returned; None if Triton's interpreter has run it.
        grid: the grid.
        device: the device of the tensors.
    """
    return compiled[grid] if compiled is not None and direct_launches.works(device) else None


class CompiledKernel(NamedTuple):
    """What the CUDA driver needs to launch a kernel.

    Args:
        function: the address of the driver's function.
        num_threads: the number of threads of a program.
        shared_bytes: the dynamic shared memory of a program.
        types: Triton's types of the parameters by name, without those that were compiled in. Two null pointers follow.
    """

    function: int
    num_threads: int
    shared_bytes: int
    types: dict[str, str]


def describe_kernel(compiled: Any) -> CompiledKernel | None:
    """Describe a compiled kernel for the driver; None if it needs more than parameters, or Triton has changed."""
    try:
        metadata = compiled.metadata
        scratch = metadata.global_scratch_size, metadata.profile_scratch_size
        special = metadata.launch_cooperative_grid, metadata.launch_pdl, metadata.num_ctas != 1
        types = {name: kind for name, kind in compiled.src.signature.items() if kind != "constexpr"}
        num_threads = metadata.num_warps * metadata.target.warp_size
        if any(scratch) or any(special) or not all(isinstance(kind, str) for kind in types.values()):
            return None
        return CompiledKernel(int(compiled.function), num_threads, metadata.shared, types)
    except (AttributeError, TypeError):
        return None


def driver_addresses() -> tuple[int, int, int]:
    """Return the addresses of cuLaunchKernel, cuCtxGetCurrent and cuCtxSetCurrent."""
    driver = cuda_driver()
    functions = driver.cuLaunchKernel, driver.cuCtxGetCurrent, driver.cuCtxSetCurrent
    launch, get_context, set_context = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
    return launch, get_context, set_context


def cuda_driver() -> ctypes.CDLL:
    """Return the CUDA driver's library."""
    return ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")


def allow_shared_memory(compiled: Any) -> None:
    """Raise the shared memory limit of a kernel that reserves memory in addition to Triton's (`reserve_smem`).

    CUDA requires this for programs that use more than 48 KiB. Triton does it only if its own memory exceeds 48 KiB.
    """
    compiled._init_handles()
    driver = cuda_driver()
    max_dynamic_size, size = 8, compiled.metadata.shared  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    if size <= 48 * 1024 and driver.cuFuncSetAttribute(ctypes.c_void_p(compiled.function), max_dynamic_size, size):
        raise RuntimeError("the CUDA driver refused the shared memory that the kernels need")


def is_interpreted(kernel: Any) -> bool:
    """Return whether Triton's interpreter (TRITON_INTERPRET=1) runs a kernel."""
    return type(kernel).__name__ == "InterpretedFunction"


# transformers


def get_attn_implementation(config: Any) -> str | None:
    """Return the attention implementation of a configuration."""
    implementation: str | None = get_config_entry(config, "_attn_implementation_internal")
    return getattr(config, "_attn_implementation", None) if implementation is None else implementation


def get_config_entry(config: Any, name: str) -> Any:
    """Return an entry of a configuration, or None.

    Layers ask in every pass. transformers' configurations look up attributes in Python, which takes microseconds.
    """
    if torch.compiler.is_compiling() or config is None:
        return getattr(config, name, None)
    return object.__getattribute__(config, "__dict__").get(name)


def can_set_attn_implementation(model: Any) -> bool:
    """Return whether a model accepts another attention implementation; otherwise its method only warns."""
    can_set = getattr(model, "_can_set_attn_implementation", None)
    return can_set is None or bool(can_set())


def set_attn_implementation(config: Any, name: str | None) -> None:
    """Set the attention implementation of one configuration. transformers' own method also checks and sets others."""
    config._attn_implementation_internal = name
    if getattr(config, "_attn_implementation", None) != name:
        del config._attn_implementation_internal  # `get_attn_implementation` would read it
        warn_once(
            "this version of transformers stores attention implementations in a form that headwise does not support: "
            "those of a model's parts are set together with the model's"
        )
        config._attn_implementation = name


def find_active_collector() -> Any:
    """Return the variable with the outputs that transformers collects in the current forward pass, or None."""
    try:
        from transformers.utils.output_capturing import _active_collector
    except ImportError:
        warn_once(
            "this version of transformers does not state which outputs it collects: with output_attentions=True, "
            "models that do not pass it on to their layers, such as GPT-2, return no maps"
        )
        return None
    return _active_collector


def keep_in_float32(model: Any, name: str) -> None:
    """Load the parameters of submodules of this name in float32, whatever the dtype of the model."""
    model._keep_in_fp32_modules_strict = {*(getattr(model, "_keep_in_fp32_modules_strict", None) or ()), name}


def register_fusion(module: Any, name: str) -> None:
    """Make transformers accept the name of a fusion that is never used.

    Args:
        module: transformers' module `fusion_mapping`.
        name: the name.
    """
    module._FUSION_REGISTRY[name] = module.ModuleFusionSpec()


def has_inner_training_loop(trainer_class: type) -> bool:
    """Return whether a Trainer has the method around which guides are active; otherwise they are around `train`."""
    if hasattr(trainer_class, "_inner_training_loop"):
        return True
    warn_once(
        f"{trainer_class.__name__} has no _inner_training_loop: guides are active during the whole of train(), and "
        "auto_find_batch_size and hyperparameter_search cannot be used with guides"
    )
    return False
