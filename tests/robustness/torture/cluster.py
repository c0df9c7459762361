"""A study on a Ray cluster of three nodes, whose workers, nodes, command and database are killed while it runs."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headwise
from tests.studies.ray_cluster import LocalCluster, find_workers, kill, start_cluster

#: Runs for each kill of a worker or node.
RUNS_PER_KILL = 5

#: How often the database is stopped, and how often the command is killed.
NUM_OUTAGES, NUM_COMMAND_KILLS = 2, 2

#: The share of kills that hit a whole node.
NODE_SHARE = 0.25


class StudyCommand:
    """The command that runs the study.

    Args:
        out: the study's directory.
        args: more arguments of `cluster_study.py`.
    """

    def __init__(self, out: Path, *args: Any) -> None:
        self.out, self.log_path = out, out.with_suffix(".log")
        self.command = [sys.executable, "-m", "tests.robustness.torture.cluster_study", str(out), *map(str, args)]
        self.process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Run the study, and resume it as long as the command is killed."""
        paths = os.pathsep.join([str(Path(headwise.__file__).parents[1]), str(Path(__file__).parents[3])])
        environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        code = -signal.SIGKILL
        while code == -signal.SIGKILL:
            with self.log_path.open("ab") as log:
                self.process = subprocess.Popen(self.command, env=environment, stdout=log, stderr=log)
                code = self.process.wait()
        assert code == 0, self.said()[-2000:]
        assert "Traceback" not in self.said(), self.said()[-2000:]

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()

    def said(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def results(self) -> dict[str, Any]:
        """Return the metrics of all runs."""
        paths = sorted(self.out.glob("runs/*/*/*/metrics.json"))
        return {str(path.relative_to(self.out)): json.loads(path.read_text())["metrics"] for path in paths}


class Attack(threading.Thread):
    """Kills workers, nodes and the command, and stops the database, as the study makes progress.

    Args:
        cluster: the cluster.
        server: the database server.
        command: the study's command.
        num_runs: the number of runs.
        seed: the seed of all random choices.
    """

    def __init__(self, cluster: LocalCluster, server: Any, command: StudyCommand, num_runs: int, seed: int) -> None:
        super().__init__()
        self.cluster, self.server, self.command, self.num_runs = cluster, server, command, num_runs
        self.draw = random.Random(seed)
        self.is_over = threading.Event()
        self.num_worker_kills = self.num_node_kills = self.num_command_kills = self.num_outages = 0

    def run(self) -> None:
        num_kills = self.num_runs // RUNS_PER_KILL
        outages, command_kills = spread(num_kills, NUM_OUTAGES), spread(num_kills + 3, NUM_COMMAND_KILLS)
        for number in range(num_kills):
            if not self.wait_until(lambda: len(self.command.results()) >= number * RUNS_PER_KILL):  # noqa: B023
                return
            if number in outages:
                self.stop_database()
            if number in command_kills:
                self.command.kill()
                self.num_command_kills += 1
            self.kill_one()

    def kill_one(self) -> None:
        """Kill a worker that trains a run, or the node of one."""
        if not self.wait_until(lambda: self.cluster.workers("seed")):
            return
        workers = self.cluster.workers("seed")
        nodes = [name for name, node in self.cluster.nodes.items() if find_workers(node, "seed")]
        nodes = [name for name in nodes if self.cluster.is_killable(name)]
        if nodes and self.draw.random() < NODE_SHARE:
            self.cluster.kill_node(self.draw.choice(nodes))
            self.cluster.add_node()
            self.num_node_kills += 1
        elif workers:
            kill(self.draw.choice(workers))
            self.num_worker_kills += 1

    def stop_database(self) -> None:
        """Stop the database until the study has noticed it."""
        num_reported = self.command.said().count("cannot be reached")
        self.server.stop()
        self.wait_until(lambda: self.command.said().count("cannot be reached") > num_reported)
        self.server.start()
        self.num_outages += 1

    def wait_until(self, condition: Callable[[], object]) -> bool:
        """Wait until something is the case. Return False if the study has ended before."""
        while not condition():
            if self.is_over.wait(0.05):
                return False
        return True


def spread(num_kills: int, num_events: int) -> set[int]:
    """Return the numbers of the kills before which an event happens, at equal distances."""
    return {num_kills * (number + 1) // (num_events + 1) for number in range(num_events)}


def survive_kills(data: Path, server: Any, out: Path, num_runs: int, seed: int) -> str:
    """Run a study while its cluster is attacked. Every run is in the result once, as if trained by one process.

    Returns:
        What was done, in words.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    alone = StudyCommand(out.with_name("alone"), data, num_runs)
    alone.run()
    with start_cluster() as cluster:
        study = StudyCommand(out, data, num_runs, cluster.address, server.url)
        attack = Attack(cluster, server, study, num_runs, seed)
        attack.start()
        try:
            study.run()
        finally:
            attack.is_over.set()
            attack.join()
    check_trials(out, server.url, num_runs)
    assert len(alone.results()) == num_runs
    assert study.results() == alone.results(), "the outcome differs"
    return (
        f"{attack.num_worker_kills} workers and {attack.num_node_kills} nodes killed, the command "
        f"{attack.num_command_kills} times, database stopped {attack.num_outages} times"
    )


def check_trials(out: Path, url: str, num_runs: int) -> None:
    """Check that the database has one result for each run."""
    from headwise.studies.study_dir import StudyDir

    trials_of_run = StudyDir.read(out).open_trials(url).by_run()
    assert len(trials_of_run) == num_runs
    num_results = [sum(trial.state.name == "COMPLETE" for trial in trials) for trials in trials_of_run.values()]
    assert num_results == [1] * num_runs, "a run counts twice or not at all"
