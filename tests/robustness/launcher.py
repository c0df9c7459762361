"""Commands in processes of their own that start at once: forks of a server that has imported everything."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import headwise
from tests.short_form import choose_size

KILLED = -signal.SIGKILL

Victims = Literal["command", "workers", "all"]


def free_port() -> int:
    with socket.socket() as free_socket:
        free_socket.bind(("localhost", 0))
        return int(free_socket.getsockname()[1])


def child_processes(parent: int) -> list[int]:
    """Return the processes that a process has started."""
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    except OSError:
        return []
    return [int(child) for child in children]


def is_running(process: int) -> bool:
    """Return whether a process runs; one that has ended may wait for its parent."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Launcher:
    """Runs commands in forks of a server process, and kills them.

    Args:
        folder: for logs and caches.
        variables: more environment variables of the server.
    """

    def __init__(self, folder: Path, **variables: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "log.txt"
        source, tests = Path(headwise.__file__).parents[1], Path(__file__).parents[2]
        environment = os.environ | {
            "PYTHONPATH": f"{source}{os.pathsep}{tests}",
            "OMP_NUM_THREADS": "1",
            "HF_DATASETS_CACHE": str(folder / "cache"),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            **choose_size(short={"BLANK_FIGURES": "1"}, long={}),
            **variables,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.robustness.fork_server"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self,
        *args: Any,
        seconds: float | None = None,
        victims: Victims = "command",
        operation: int | None = None,
        inside: Path | str = "",
        processes: int = 1,
        sharded: bool = False,
        limit: str = "",
        clock: int | None = None,
    ) -> int:
        """Return a command's exit code, or minus the signal that ended it.

        Args:
            args: the command's.
            seconds: kill it after so long.
            victims: whether to kill the command, the workers that it has started, or all of them.
            operation: kill it just before it opens, moves, makes or removes so many files, counted from 0.
            inside: what their paths must hold to be counted.
            processes: that do it together, by gloo.
            sharded: give each of them a part of the model, by FSDP. accelerate offers that to accelerators only, so it
                is told that the CPU is one.
            limit: a limit of its memory, see `limit_memory` of the server.
            clock: the seed of the times at which its clock jumps, and how far.
        """
        request = {
            "commands": [[*map(str, args)]] * processes,
            "operation": operation,
            "inside": str(inside),
            "port": free_port() if processes > 1 else None,
            "sharded": sharded,
            "limit": limit,
            "clock": clock,
        }
        (child, *_) = self._send(request)
        if seconds is not None:
            with open_process(child) as handle:  # the server still waits for it, so its number is no other process's
                select.select([handle], [], [], seconds)
                self._kill(child, handle, victims)
        return next(filter(None, self._receive_codes()), 0)

    def run_at_once(self, *commands: Sequence[Any]) -> list[int]:
        """Return the exit codes of commands that start at the same moment."""
        self._send({"commands": [[*map(str, command)] for command in commands]})
        return self._receive_codes()

    def said(self) -> str:
        """Return the output of the last command."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _send(self, request: dict[str, Any]) -> list[int]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.log.unlink(missing_ok=True)
        self.process.stdin.write(json.dumps(request | {"log": str(self.log)}) + "\n")
        self.process.stdin.flush()
        return [int(child) for child in json.loads(self.process.stdout.readline())]

    def _receive_codes(self) -> list[int]:
        assert self.process.stdout is not None
        return [os.waitstatus_to_exitcode(int(status)) for status in json.loads(self.process.stdout.readline())]

    @staticmethod
    def _kill(child: int, handle: int, victims: Victims) -> None:
        workers = child_processes(child)
        if victims in ("command", "all"):
            try:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            except ProcessLookupError:
                return
        if victims in ("workers", "all"):
            for worker in workers:
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)


@contextmanager
def open_process(process: int) -> Iterator[int]:
    """Yield a handle of a process that is readable once it has ended."""
    handle = os.pidfd_open(process)
    try:
        yield handle
    finally:
        os.close(handle)
