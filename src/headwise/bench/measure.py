"""Measurement of time, with interleaved samples, and of the peak memory of one call."""

import gc
import multiprocessing
import os
import re
import resource
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

Workload = Callable[[], object]

#: Minimum duration of a sample, so that timer resolution and single interruptions matter little.
SAMPLE_SECONDS = 0.02
MEBIBYTE = 2**20

#: How long a fresh process may take to end after it has sent its result.
EXIT_SECONDS = 60.0

#: Modules that torch imports on first use, imported once for all fresh processes.
PRELOADED_MODULES = ("torch._dynamo", "torch._inductor.compile_fx")

#: Environment that makes allocators (mimalloc, glibc) return freed memory at once. Otherwise memory that they keep from
#: the first call would hide the memory of the measured one.
ALLOCATOR_ENVIRONMENT = {
    "MIMALLOC_PURGE_DELAY": "0",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
}

#: Parts of error messages, and the short reasons for them.
SHORT_REASONS = {
    "can't allocate memory": "out of memory",
    "out of memory": "out of memory",
    "not enough memory": "out of memory",
    "unable to allocate": "out of memory",
    "cxxcompiler": "no C++ compiler",
    "c++ compiler": "no C++ compiler",
    "current platform is not supported for cpu": "not supported on this CPU",
    "only supports inference": "no backward on CPU",
    "not support backward on cpu": "no backward on CPU",
    "out of resource": "needs more shared memory than the GPU has",
    "no valid triton configs": "needs more shared memory than the GPU has",
}


class NotMeasurable(Exception):  # noqa: N818
    """A short reason why something could not be measured."""


def shorten_error(error: BaseException) -> str:
    """Return a short reason for an error, for a table cell."""
    if isinstance(error, NotMeasurable):
        return str(error)
    if isinstance(error, MemoryError):
        return "out of memory"
    message = f"{type(error).__name__}: {error}"
    for pattern, short_reason in SHORT_REASONS.items():
        if pattern in message.lower():
            return short_reason
    unsupported = re.search("cannot compute this: ([^;,]+)", message)  # raised by headwise.attend
    return unsupported[1] if unsupported else f"{message.splitlines()[0]:.80}"


def resolve_device(name: str) -> torch.device:
    """Return the device of a `--device` option; `auto` is the GPU if there is one."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def time_interleaved(workloads: Mapping[str, Workload], repeats: int, device: torch.device) -> dict[str, list[float]]:
    """Measure seconds per call, `repeats` samples for each workload.

    Each repeat runs all workloads, so that changes of the machine's speed affect all of them. Every second repeat runs
    them in reverse order, so that none gains from its place. Python's garbage collector runs between repeats only,
    because it would interrupt single samples. The workloads must have run once before.
    """
    calls = {name: 1 + int(SAMPLE_SECONDS / seconds_per_call(work, 1, device)) for name, work in workloads.items()}
    samples: dict[str, list[float]] = {name: [] for name in workloads}
    with without_garbage_collection():
        for repeat in range(repeats):
            gc.collect()
            for name in reversed(list(workloads)) if repeat % 2 else workloads:
                samples[name].append(seconds_per_call(workloads[name], calls[name], device))
    return samples


def quartiles_of_ratios(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[float, float, float]:
    """Return the quartiles of the ratios of two implementations, round by round."""
    ratios = [x / y for x, y in zip(numerators, denominators, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return low, median, high


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Turn Python's garbage collector off. `gc.collect()` ignores the objects that exist now, so it is fast."""
    was_enabled = gc.isenabled()
    gc.disable()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def capture_cuda_graph(workload: Workload) -> Workload:
    """Return the workload as a CUDA graph, which replays its kernels without Python."""
    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):  # warm-up, which torch requires before a capture
        workload()
    torch.cuda.current_stream().wait_stream(side_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        workload()

    def replay() -> Workload:
        graph.replay()
        return workload  # keeps the tensors alive that the graph reads

    return replay


def seconds_per_call(workload: Workload, calls: int, device: torch.device) -> float:
    """Return the mean time of one call."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        workload()
    synchronize(device)
    return (time.perf_counter() - start) / calls


def synchronize(device: torch.device) -> None:
    """Wait for the kernels on a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def cuda_kernel_ms(workload: Workload, device: torch.device) -> float:
    """Return the total time of a call's kernels and copies on the GPU, in milliseconds."""
    from torch.profiler import ProfilerActivity, profile

    calls = 3
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        for _ in range(calls):
            workload()
        synchronize(device)
    return float(sum(event.device_time_total for event in profiler.key_averages())) / calls / 1000


def cuda_peak_mib(workload: Workload, device: torch.device) -> float:
    """Return the peak memory of one call beyond the memory allocated before, in MiB."""
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    workload()
    synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / MEBIBYTE


def cpu_peak_mib(build: Callable[..., Workload], *arguments: Any) -> float | None:
    """Return the peak memory of one call of `build(*arguments)` in a fresh process, in MiB.

    The first call compiles, starts threads and fills caches; the second call is measured. If the system runs out of
    memory, it ends the fresh process and not this one.

    Returns:
        The peak memory, or None if the system does not report it.

    Raises:
        NotMeasurable: the workload failed.
    """
    start_forkserver(build.__module__)
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_peak_mib, args=(sender, build, arguments), daemon=True)
    process.start()
    sender.close()
    try:
        peak = receiver.recv()
        process.join(EXIT_SECONDS)  # a process that is killed leaves its semaphores behind, such as that of tqdm
    except EOFError:
        process.join()
        killed = process.exitcode == -signal.SIGKILL
        raise NotMeasurable("out of memory" if killed else f"crashed, exit code {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
    if isinstance(peak, str):
        raise NotMeasurable(peak)
    return float(peak) if peak is not None else None


def start_forkserver(module: str) -> None:
    """Start the server process from which fresh processes are forked, unless it is running.

    It has all modules imported, and ignores Ctrl-C, which a terminal sends to all processes.
    """
    environment, previous_handler = dict(os.environ), signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(ALLOCATOR_ENVIRONMENT)
    try:
        forkserver.set_forkserver_preload([module, *PRELOADED_MODULES])
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, previous_handler)
        os.environ.clear()
        os.environ.update(environment)


def _send_peak_mib(sender: Connection, build: Callable[..., Workload], arguments: tuple[Any, ...]) -> None:
    """Send the peak memory of a workload, or the reason why it failed."""
    result: float | str | None
    try:
        _limit_memory()
        workload = build(*arguments)
        workload()
        result = _peak_mib(workload)
    except Exception as error:
        result = shorten_error(error)
    with suppress(BrokenPipeError):  # the receiver may have stopped waiting
        sender.send(result)


def _peak_mib(workload: Workload) -> float | None:
    """Measure with the high-water mark of resident memory, which Linux can reset."""
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    before = _max_resident_bytes()
    workload()
    return (_max_resident_bytes() - before) / MEBIBYTE


def _max_resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _limit_memory() -> None:
    """Let allocations fail above three quarters of the machine's memory, before it starts swapping."""
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
