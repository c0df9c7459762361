"""Measurements in fresh processes."""

import multiprocessing
import subprocess
import sys
from collections.abc import Callable

from headwise.bench import measure


def build_workload_with_a_lock() -> Callable[[], object]:
    """Return a workload that keeps a lock of multiprocessing, as tqdm does when torch.compile shows its progress."""
    lock = multiprocessing.RLock()
    return lambda: lock


def print_peak_memory() -> None:
    print(measure.cpu_peak_mib(build_workload_with_a_lock) is not None)


def test_fresh_process_leaves_no_semaphores_behind() -> None:
    code = "from tests.bench import test_measure; test_measure.print_peak_memory()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout in ("True\n", "False\n")  # False where the system does not report the memory of a process
    assert result.stderr == ""
