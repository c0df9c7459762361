"""A Slurm cluster of two nodes on this machine: a controller and two daemons, without authentication."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.robustness.launcher import free_port

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "sinfo")
TIMEOUT = 1800

CONFIG = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=node0 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 State=UNKNOWN
NodeName=node1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 State=UNKNOWN
PartitionName=all Nodes=node0,node1 Default=YES MaxTime=INFINITE State=UP
"""


def why_unavailable() -> str:
    """Return why no cluster can be started here; empty if one can."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"Slurm is not installed ({missing[0]} is missing)"
    return "" if os.geteuid() == 0 else "only root can start Slurm's daemons"


class Slurm:
    """A running cluster.

    Args:
        directory: of its configuration and logs.
        environment: of its commands.
    """

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.directory, self.environment = directory, environment

    def sbatch(self, script: Path, *arguments: Any) -> tuple[int, str]:
        """Submit a script, wait until it has ended, and return its exit code and output."""
        log = self.directory / f"{script.stem}.log"
        command = ["sbatch", "--wait", f"--output={log}", str(script), *map(str, arguments)]
        submitted = subprocess.run(
            command, env=self.environment, cwd=self.directory, timeout=TIMEOUT, capture_output=True, text=True
        )
        output = log.read_text() if log.exists() else ""
        return submitted.returncode, f"{submitted.stdout}{submitted.stderr}{output}"


@contextmanager
def slurm_cluster(directory: Path, **variables: str) -> Iterator[Slurm]:
    """Start a cluster of two nodes, and stop it at the end.

    Args:
        directory: for its files.
        variables: environment variables of its jobs.
    """
    config = directory / "slurm.conf"
    config.write_text(CONFIG.format(directory=directory, ports=[free_port() for _ in range(3)]))
    for name in ("state", "spool-node0", "spool-node1"):
        (directory / name).mkdir()
    environment = os.environ | variables | {"SLURM_CONF": str(config)}
    commands = [["slurmctld", "-D"], *(["slurmd", "-D", "-N", node] for node in ("node0", "node1"))]
    with ExitStack() as stack:
        for command in commands:
            log = stack.enter_context((directory / f"{command[-1]}.out").open("w"))
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
        yield Slurm(directory, environment)
