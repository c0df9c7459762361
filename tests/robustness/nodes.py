"""Two nodes on this machine: two launcher agents of torchrun, whose processes talk by gloo."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import headwise
from tests.robustness.launcher import child_processes, free_port

TIMEOUT = 1800  # a test that waits so long has failed


class Nodes:
    """A command that runs on two nodes with one process each.

    Args:
        arguments: of `headwise`.
        directory: for logs and caches.
    """

    def __init__(self, arguments: Sequence[Any], directory: Path) -> None:
        environment = os.environ | {
            "PYTHONPATH": str(Path(headwise.__file__).parents[1]),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_CACHE": str(directory / "cache"),
        }
        port = free_port()
        self.logs = [directory / f"node-{rank}.log" for rank in range(2)]
        self.agents = []
        for rank, log in enumerate(self.logs):
            command = [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(rank)),
                *("--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(port)),
                *("-m", "headwise", *map(str, arguments)),
            ]
            with log.open("w") as file:
                self.agents.append(subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT))

    def wait(self) -> list[int]:
        """Return the exit codes of both agents."""
        return [agent.wait(TIMEOUT) for agent in self.agents]

    def kill_second(self) -> None:
        """End the second node: its agent and its process at once."""
        agent = self.agents[1].pid
        for process in (agent, *child_processes(agent)):
            os.kill(process, signal.SIGKILL)

    def said(self) -> str:
        return "\n".join(log.read_text() for log in self.logs)
