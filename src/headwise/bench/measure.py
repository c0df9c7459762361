"""How things are measured: time with all rivals taking turns, peak memory of one call alone."""

import gc
import multiprocessing
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

Work = Callable[[], object]

#: A sample lasts at least this long, so that the clock and a single interruption weigh little.
SAMPLE_SECONDS = 0.02
MEBIBYTE = 2**20

#: What torch imports at first use; imported once for all fresh processes.
SLOW_TO_IMPORT = ("torch._dynamo", "torch._inductor.compile_fx")

#: Makes allocators (mimalloc, glibc's) give freed memory back at once; what they keep would hide what a call takes.
GIVE_BACK = {"MIMALLOC_PURGE_DELAY": "0", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


#: What a message contains, and what we call it.
REASONS = {
    "can't allocate memory": "out of memory",
    "out of memory": "out of memory",
    "not enough memory": "out of memory",
    "unable to allocate": "out of memory",
    "cxxcompiler": "no C++ compiler",
    "c++ compiler": "no C++ compiler",
    "current platform is not supported for cpu": "not on this kind of CPU",
    "only supports inference": "no backward on CPU",
    "not support backward on cpu": "no backward on CPU",
    "out of resource": "needs more shared memory than the GPU has",
    "no valid triton configs": "needs more shared memory than the GPU has",
}


class NotMeasurable(Exception):  # noqa: N818
    """Why something could not be measured, in a few words."""


def reason(error: BaseException) -> str:
    """A few words on why something could not run."""
    if isinstance(error, NotMeasurable):
        return str(error)
    if isinstance(error, MemoryError):
        return "out of memory"
    message = f"{type(error).__name__}: {error}"
    for pattern, short in REASONS.items():
        if pattern in message.lower():
            return short
    ours = re.search("cannot do this: ([^;,]+)", message)
    return ours[1] if ours else f"{message.splitlines()[0]:.80}"


def time_interleaved(works: Mapping[str, Work], repeats: int, device: torch.device) -> dict[str, list[float]]:
    """Seconds a call, `repeats` samples each. Every repeat runs all works, so that a change in the machine's speed
    meets all of them alike. They have run once before."""
    calls = {name: 1 + int(SAMPLE_SECONDS / seconds(work, 1, device)) for name, work in works.items()}
    samples: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            samples[name].append(seconds(work, calls[name], device))
    return samples


def captured(work: Work) -> Work:
    """The work as a CUDA graph, which replays its kernels without asking Python for them."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # as torch asks for before a capture
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()

    def replay() -> Work:
        graph.replay()
        return work  # which holds the tensors that the graph reads

    return replay


def seconds(work: Work, calls: int, device: torch.device) -> float:
    """Mean time of one call."""
    wait(device)
    start = time.perf_counter()
    for _ in range(calls):
        work()
    wait(device)
    return (time.perf_counter() - start) / calls


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def busy_on_cuda(work: Work, device: torch.device) -> float:
    """Milliseconds that a call's kernels and copies take on the GPU, added up: its time but for waiting for Python."""
    from torch.profiler import ProfilerActivity, profile

    calls = 3
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:
        for _ in range(calls):
            work()
        wait(device)
    return float(sum(event.device_time_total for event in profiled.key_averages())) / calls / 1000


def peak_on_cuda(work: Work, device: torch.device) -> float:
    """MiB that one call takes at its peak beyond what was there before."""
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    wait(device)
    return (torch.cuda.max_memory_allocated(device) - before) / MEBIBYTE


def peak_on_cpu(make: Callable[..., Work], *arguments: Any) -> float | None:
    """The same for `make(*arguments)()` in a fresh process, or None where the system cannot tell.

    The first call there compiles, starts threads and fills caches; the second one is measured. An operating system
    that has no more memory ends that process, not this one.
    """
    start_server(make.__module__)
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_report_peak, args=(sender, make, arguments), daemon=True)
    process.start()
    sender.close()
    try:
        peak = receiver.recv()
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


def start_server(module: str) -> None:
    """Start the process, unless it runs already, from which fresh ones are forked: all is imported there, and Ctrl-C,
    which reaches every process of a terminal, goes unheard."""
    environment, on_interrupt = dict(os.environ), signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(GIVE_BACK)
    try:
        forkserver.set_forkserver_preload([module, *SLOW_TO_IMPORT])
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, on_interrupt)
        os.environ.clear()
        os.environ.update(environment)


def _report_peak(sender: Connection, make: Callable[..., Work], arguments: tuple[Any, ...]) -> None:
    told: float | str | None
    try:
        _keep_within_memory()
        work = make(*arguments)
        work()
        told = _peak(work)
    except Exception as error:
        told = reason(error)
    with suppress(BrokenPipeError):  # nobody waits any more
        sender.send(told)


def _peak(work: Work) -> float | None:
    """By the high-water mark of resident memory, which Linux sets back on request."""
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    before = _high_water()
    work()
    return (_high_water() - before) / MEBIBYTE


def _high_water() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _keep_within_memory() -> None:
    """Past three quarters of the machine's memory an allocation fails, before the machine comes to a halt."""
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
