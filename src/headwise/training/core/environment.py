"""The environment of a run: library versions, device, precision, determinism and peak memory."""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import transformers

import headwise
from headwise import _compat
from headwise.errors import UserError, first_line
from headwise.training.core.config import RunConfig


def get_versions() -> dict[str, str]:
    """Return the versions that results may depend on."""
    return {
        "headwise": headwise.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": sys.version.split()[0],
    }


def get_device() -> str:
    """Return the device type that models run on."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def describe_device() -> str:
    """Return the name of the GPU, or "CPU"."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def uses_bfloat16(config: RunConfig) -> bool:
    """Return whether a run computes in bfloat16."""
    is_supported = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    return config.precision == "bfloat16" or (config.precision == "auto" and is_supported)


def autocast(config: RunConfig, device_type: str) -> AbstractContextManager[Any]:
    """Return a context manager that sets a run's precision."""
    return torch.autocast(device_type, torch.bfloat16) if uses_bfloat16(config) else nullcontext()


@contextmanager
def float32_products(config: RunConfig) -> Iterator[None]:
    """Compute matrix products of float32 in TensorFloat-32 if the run does so.

    Raises:
        UserError: the GPU has no TensorFloat-32.
    """
    if config.precision != "tf32":
        yield
        return
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
        raise UserError(
            "--precision tf32 needs an NVIDIA GPU of compute capability 8.0 or newer; use float32 on this device "
            f"({describe_device()})"
        )
    before = "high" if _compat.uses_tf32() else "highest"
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def deterministic_algorithms(enabled: bool) -> Iterator[None]:
    """Make torch use deterministic algorithms only.

    Raises:
        UserError: an operation has no deterministic algorithm.
    """
    was_deterministic, was_benchmark = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    if enabled:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at the first use of the GPU
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    try:
        yield
    except RuntimeError as error:
        if not enabled or "deterministic" not in str(error):
            raise
        raise UserError(f"--deterministic: {first_line(error)}") from None
    finally:
        torch.use_deterministic_algorithms(was_deterministic)
        torch.backends.cudnn.benchmark = was_benchmark


def reset_peak_memory() -> None:
    """Reset the peak of the GPU's memory. The peak of the process itself cannot be reset."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def get_peak_memory() -> dict[str, Any] | None:
    """Return the peak memory in MiB: of tensors on the GPU, else of the whole process; None if unknown."""
    if torch.cuda.is_available():
        return {"peak_mib": round(torch.cuda.max_memory_allocated() / 2**20, 1), "of": "PyTorch tensors on the GPU"}
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"peak_mib": round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1), "of": "the whole process"}
