"""The most memory that a run took."""

import sys
from typing import Any

import torch


def forget_peak() -> None:
    """From now on the GPU's peak is this run's. A process's own peak cannot be forgotten."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_memory() -> dict[str, Any] | None:
    """The peak in MiB, and of what: tensors on the GPU, or else all of the process; None where nobody counts it."""
    if torch.cuda.is_available():
        return {"peak_mib": round(torch.cuda.max_memory_allocated() / 2**20, 1), "of": "GPU, PyTorch's tensors"}
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"peak_mib": round(most / (2**20 if sys.platform == "darwin" else 2**10), 1), "of": "the whole process"}
