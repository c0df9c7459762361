"""A study on a Ray cluster of three nodes, whose workers, nodes and database are killed while it runs."""

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.robustness.launcher import Launcher
from tests.robustness.torture.jobs import SMALL, Data, read_study
from tests.studies.ray_cluster import LocalCluster, find_workers, kill, start_cluster

#: Runs for each kill, and how often the database is stopped.
RUNS_PER_KILL, NUM_OUTAGES = 5, 2

#: The share of kills that hit a whole node.
NODE_SHARE = 0.25


def study_command(data: Data, num_runs: int, out: Path, *options: Any) -> tuple[Any, ...]:
    """Return the command of a study with this number of short runs."""
    runs = ("--methods", "plain", "rpr", "--seeds", num_runs // 2, "--epochs", 2, "--rows", 60)
    return ("compare", "--data", data.reviews, *SMALL, *runs, *options, "--out", out)


class Attack(threading.Thread):
    """Kills workers and nodes, and stops the database, as the study makes progress.

    Args:
        cluster: the cluster.
        server: the database server.
        launcher: runs the study.
        out: the study's directory.
        num_runs: the number of runs.
        seed: the seed of all random choices.
    """

    def __init__(
        self, cluster: LocalCluster, server: Any, launcher: Launcher, out: Path, num_runs: int, seed: int
    ) -> None:
        super().__init__()
        self.cluster, self.server, self.launcher, self.out, self.num_runs = cluster, server, launcher, out, num_runs
        self.draw = random.Random(seed)
        self.is_over = threading.Event()
        self.num_worker_kills = self.num_node_kills = self.num_outages = 0

    @property
    def num_kills(self) -> int:
        return self.num_worker_kills + self.num_node_kills

    def run(self) -> None:
        num_planned = self.num_runs // RUNS_PER_KILL
        outages = {num_planned * (number + 1) // (NUM_OUTAGES + 1) for number in range(NUM_OUTAGES)}
        for number in range(num_planned):
            if not self.wait_until(lambda number=number: self.num_finished() >= number * RUNS_PER_KILL):  # type: ignore[misc]
                return
            if number in outages:
                self.stop_database()
            self.kill_one()

    def kill_one(self) -> None:
        """Kill a worker that trains a run, or the node of one."""
        if not self.wait_until(lambda: self.cluster.workers("seed")):
            return
        workers = self.cluster.workers("seed")
        nodes = [
            name
            for name, node in self.cluster.nodes.items()
            if self.cluster.is_killable(name) and find_workers(node, "seed")
        ]
        if nodes and self.draw.random() < NODE_SHARE:
            self.cluster.kill_node(self.draw.choice(nodes))
            self.cluster.add_node()
            self.num_node_kills += 1
        elif workers:
            kill(self.draw.choice(workers))
            self.num_worker_kills += 1

    def stop_database(self) -> None:
        """Stop the database until the study has noticed it."""
        num_reported = self.launcher.said().count("cannot be reached")
        self.server.stop()
        self.wait_until(lambda: self.launcher.said().count("cannot be reached") > num_reported)
        self.server.start()
        self.num_outages += 1

    def num_finished(self) -> int:
        return len(list(self.out.glob("runs/*/*/*/metrics.json")))

    def wait_until(self, condition: Callable[[], object]) -> bool:
        """Wait until something is the case. Return False if the study has ended before."""
        while not condition():
            if self.is_over.wait(0.05):
                return False
        return True


def survive_kills(launcher: Launcher, data: Data, server: Any, out: Path, num_runs: int, seed: int) -> str:
    """Run a study while its cluster is attacked. Every run is in the result once, as if trained by one process.

    Returns:
        What was done, in words.
    """
    alone = out.with_name("alone")
    assert launcher.run(*study_command(data, num_runs, alone)) == 0, launcher.said()[-2000:]
    with start_cluster() as cluster:
        attack = Attack(cluster, server, launcher, out, num_runs, seed)
        attack.start()
        options = ("--cluster", cluster.address, "--storage", server.url)
        try:
            code = launcher.run(*study_command(data, num_runs, out, *options))
        finally:
            attack.is_over.set()
            attack.join()
    said = launcher.said()
    assert code == 0, said[-2000:]
    assert "Traceback" not in said, said[-2000:]
    check_trials(out, server.url, num_runs)
    assert read_study(out) == read_study(alone), "the outcome differs"
    return (
        f"{attack.num_worker_kills} workers and {attack.num_node_kills} nodes killed, "
        f"database stopped {attack.num_outages} times"
    )


def check_trials(out: Path, url: str, num_runs: int) -> None:
    """Check that the database has one result for each run."""
    from headwise.studies.study_dir import StudyDir

    trials_of_run = StudyDir.read(out).open_trials(url).by_run()
    assert len(trials_of_run) == num_runs
    num_results = [sum(trial.state.name == "COMPLETE" for trial in trials) for trials in trials_of_run.values()]
    assert num_results == [1] * num_runs, "a run counts twice or not at all"
