"""A process that has imported everything and forks a child for each command, see `launcher.py`.

Each line that it reads is a request. It answers with the ids of the children, then with their exit statuses.
"""

import ctypes
import gc
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

#: Audit events of file operations.
OPERATIONS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}


def import_everything() -> None:
    """Import what commands need, and let studies react quickly."""
    import torch

    torch.set_num_threads(1)
    import tqdm  # noqa: F401

    import headwise.simulation.mind
    import headwise.training.inspect
    import headwise.training.recommendation.pipeline
    import headwise.training.run
    import headwise.training.text.pipeline
    import headwise.training.translation.pipeline  # noqa: F401

    if os.environ.get("BLANK_FIGURES"):
        from headwise.inspection import style
        from tests.blank_figures import BlankFigure

        vars(style)["Figure"] = BlankFigure
    try:
        import optuna  # noqa: F401
    except ImportError:
        return
    from headwise.studies import compare, outages, scheduler, sweep, worker_pool  # noqa: F401

    scheduler.POLL_SECONDS = outages.RETRY_SECONDS = 0.1
    forking = SimpleNamespace(Popen=ForkedWorker, TimeoutExpired=subprocess.TimeoutExpired, PIPE=None)
    vars(worker_pool)["subprocess"] = forking


class ForkedWorker:
    """A worker of a study that is forked, in place of `subprocess.Popen`."""

    def __init__(self, args: list[str], *, env: dict[str, str], stderr: Any, **options: Any) -> None:
        self.returncode: int | None = None
        (requests, stdin), (stdout, replies) = os.pipe(), os.pipe()
        self.stdin, self.stdout = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb")
        self.pid = os.fork()
        if self.pid:
            os.close(requests)
            os.close(replies)
            return
        code = 1
        try:
            os.setsid()
            os.environ.clear()
            os.environ.update(env)
            for descriptor, pipe in enumerate((requests, replies, stderr.fileno())):
                os.dup2(pipe, descriptor)
            os.close(requests)
            os.close(replies)  # else the command would not see that this process has ended
            sys.argv = args[-2:]
            from headwise.studies.worker import main

            code = main()
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            end(code)

    def poll(self) -> int | None:
        if self.returncode is None:
            process, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if process else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("worker", timeout or 0)
            time.sleep(0.02)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def die_at(operation: int, inside: str) -> None:
    """Kill this process just before a file operation."""
    left = operation

    def hook(event: str, args: Any) -> None:
        nonlocal left
        if event in OPERATIONS and isinstance(args[0], str | bytes | os.PathLike) and inside in os.fsdecode(args[0]):
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    sys.addaudithook(hook)


def pretend_accelerator() -> None:
    """Let accelerate use FSDP on the CPU."""
    from accelerate.state import AcceleratorState, DistributedType, PartialState

    original = AcceleratorState.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if PartialState._shared_state.get("distributed_type") == DistributedType.MULTI_CPU:
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_XPU
        original(self, *args, **kwargs)

    AcceleratorState.__init__ = init
    os.environ.update({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "NO_WRAP"})


def limit_memory(limit: str) -> None:
    """Limit the memory of this process: a cgroup's directory, or a number of bytes above the current size."""
    if limit.isdecimal():
        size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (size + int(limit),) * 2)
    elif limit:
        Path(limit, "cgroup.procs").write_text(str(os.getpid()))


def jump_clock(seed: int) -> None:
    """Let the clock of this process jump a few times, by hours or years."""
    draw = random.Random(seed)
    library, real_time, offset = ctypes.CDLL(None), time.time, 0
    is_preloaded = hasattr(library, "set_clock_offset")  # of clock.c
    if not is_preloaded:
        time.time = lambda: real_time() + offset

    def jump() -> None:
        nonlocal offset
        for _ in range(3):
            time.sleep(draw.uniform(0.1, 1.0))
            offset = draw.choice([-1, 1]) * draw.choice([3600, 86_400, 300_000_000])
            if is_preloaded:
                library.set_clock_offset(ctypes.c_long(offset))

    threading.Thread(target=jump, daemon=True).start()


def begin(request: dict[str, Any], rank: int, barrier: tuple[int, int]) -> int:
    """Fork a child for a command. Return its process id."""
    child = os.fork()
    if child:
        return child
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1), os.dup2(log, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    code, num_commands = 1, len(request["commands"])
    try:
        if request.get("operation") is not None:
            die_at(request["operation"], request["inside"])
        if request.get("port"):
            ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_commands, "LOCAL_WORLD_SIZE": num_commands}
            os.environ.update({name: str(value) for name, value in ranks.items()})
            os.environ.update({"MASTER_ADDR": "localhost", "MASTER_PORT": str(request["port"])})
        if request.get("sharded"):
            pretend_accelerator()
        from headwise.cli import main

        os.close(barrier[1])
        os.read(barrier[0], 1)  # until the server closes its end, so that all commands start at once
        limit_memory(request.get("limit") or "")
        if request.get("clock") is not None:
            jump_clock(request["clock"])
        code = main(request["commands"][rank])
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        end(code)
    raise AssertionError


def end(code: int) -> None:
    """End this process without the exit handlers of the server that it was forked from."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def serve() -> None:
    import_everything()
    gc.collect()
    gc.freeze()  # so that collections in the children do not copy the memory of all libraries
    for line in sys.stdin:
        request = json.loads(line)
        barrier = os.pipe()
        children = [begin(request, rank, barrier) for rank in range(len(request["commands"]))]
        os.close(barrier[0])
        os.close(barrier[1])
        print(json.dumps(children), flush=True)
        print(json.dumps([os.waitpid(child, 0)[1] for child in children]), flush=True)


if __name__ == "__main__":
    serve()
