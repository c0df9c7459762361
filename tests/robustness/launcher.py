"""Commands in processes of their own that start at once: forks of one that has imported everything."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import headwise

#: Run by a process of its own. Each line it reads is a command; it answers with the child's id, then with its status.
FORKS = """
import json, os, signal, sys
import torch
torch.set_num_threads(1)
from headwise.cli import main
import headwise.training.run, headwise.training.text.pipeline, headwise.simulation.mind, tqdm
import headwise.training.recommendation.pipeline, headwise.training.translation.pipeline

DOES = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}

def die_at(operation, inside):
    left = operation
    def hook(event, args):
        nonlocal left
        if event in DOES and isinstance(args[0], (str, bytes, os.PathLike)) and inside in os.fsdecode(args[0]):
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
    sys.addaudithook(hook)

def shard():
    from accelerate.state import AcceleratorState, DistributedType, PartialState
    before = AcceleratorState.__init__
    def on_an_accelerator(self, *args, **kwargs):
        if PartialState._shared_state.get("distributed_type") == DistributedType.MULTI_CPU:
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_XPU
        before(self, *args, **kwargs)
    AcceleratorState.__init__ = on_an_accelerator
    os.environ |= {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "NO_WRAP"}

def begin(asked, rank):
    child = os.fork()
    if child:
        return child
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1), os.dup2(log, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if asked["operation"] is not None:
        die_at(asked["operation"], asked["inside"])
    if asked["processes"] > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(asked["processes"]),
                       "LOCAL_WORLD_SIZE": str(asked["processes"]), "MASTER_ADDR": "localhost",
                       "MASTER_PORT": str(asked["port"])}
    if asked["sharded"]:
        shard()
    code = 1
    try:
        code = main(asked["args"])
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)

for line in sys.stdin:
    asked = json.loads(line)
    children = [begin(asked, rank) for rank in range(asked["processes"])]
    print(children[0], flush=True)
    print(next(filter(None, [os.waitpid(child, 0)[1] for child in children]), 0), flush=True)
"""

KILLED = -signal.SIGKILL


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


class Launcher:
    """Runs commands one after the other, and kills them.

    Args:
        folder: for logs and caches.
    """

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log.txt"
        source = str(Path(headwise.__file__).parents[1])
        environment = os.environ | {
            "PYTHONPATH": source,
            "OMP_NUM_THREADS": "1",
            "HF_DATASETS_CACHE": str(folder / "cache"),
            "HF_HUB_OFFLINE": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", FORKS], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(
        self,
        *args: Any,
        seconds: float | None = None,
        operation: int | None = None,
        inside: Path | str = "",
        processes: int = 1,
        sharded: bool = False,
    ) -> int:
        """A command's exit code, or minus the signal that ended it.

        Args:
            args: the command's.
            seconds: kill it after so long.
            operation: kill it just before it opens, moves, makes or removes so many files, counted from 0.
            inside: what their paths must hold to be counted.
            processes: that do it together, by gloo.
            sharded: give each of them a part of the model, by FSDP. accelerate offers that to accelerators only, so it
                is told that the CPU is one.
        """
        self.log.unlink(missing_ok=True)
        asked = {
            "args": [*map(str, args)],
            "log": str(self.log),
            "operation": operation,
            "inside": str(inside),
            "processes": processes,
            "port": free_port(),
            "sharded": sharded,
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        child = int(self.process.stdout.readline())
        if seconds is not None:
            # It is still the launcher's to wait for, so its number is no other process's.
            ended = os.pidfd_open(child)
            try:
                select.select([ended], [], [], seconds)
                signal.pidfd_send_signal(ended, signal.SIGKILL)
            except ProcessLookupError:
                pass
            finally:
                os.close(ended)
        return os.waitstatus_to_exitcode(int(self.process.stdout.readline()))

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
