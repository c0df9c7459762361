"""Simulation of the scheduler of studies on a Ray cluster: time to finish against the ideal.

    python benchmarks/scheduler.py --runs 10000 --nodes 100 --out benchmarks/results/scheduler.md

The scheduler, the trials and the rule that decides when a run is submitted are those of headwise. Nodes, runs and the
clock are simulated: durations are log-normal, nodes die at random and come back, and a run that dies goes on from its
last checkpoint. The CPU time of the scheduler is added to the clock as measured. Databases are not simulated: runs are
kept in memory, and the CPU time of SQLite for a run, measured on a small study, is added for each run.

The ideal is a lower bound: all nodes are busy all the time with the runs themselves, and nothing dies.
"""

import argparse
import heapq
import math
import random
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import optuna

from headwise.studies.methods import Method
from headwise.studies.plan import Run, plan_runs
from headwise.studies.ray_tasks import RayTasks, gpu_share
from headwise.studies.scheduler import Scheduler, run_study
from headwise.studies.storage import connect, sqlite_url
from headwise.studies.study_dir import StudyDir
from headwise.studies.trials import ClaimedTrial, Trials
from headwise.studies.worker import Outcome
from headwise.training import TextConfig

#: The GPU of a node, in MiB, and the CPU cores of a node.
GPU_MIB, NODE_CPUS = 81_920.0, 16

#: Methods with the peak memory of their runs in MiB, and how long they take relative to each other.
METHODS = {"small": (6_000.0, 0.5), "base": (14_000.0, 1.0), "large": (30_000.0, 2.0), "extra": (50_000.0, 4.0)}


@dataclass(frozen=True)
class Scenario:
    """A study and what happens to its cluster.

    Args:
        minutes: the median duration of a run of the method `base`.
        spread: the standard deviation of the logarithm of durations.
        node_hours: the mean time between two deaths of a node; infinite for none.
        checkpoint_minutes: the time between two checkpoints.
        repair_minutes: how long a dead node is away.
    """

    minutes: float
    spread: float = 0.3
    node_hours: float = math.inf
    checkpoint_minutes: float = 2.0
    repair_minutes: float = 10.0

    def __str__(self) -> str:
        deaths = "none" if math.isinf(self.node_hours) else f"one per node in {self.node_hours:g} h"
        return f"{self.minutes:g} min | {deaths}"


@dataclass(eq=False)
class Node:
    """A simulated node with one GPU."""

    free_gpu: float = 1.0
    free_cpus: int = NODE_CPUS
    is_alive: bool = True
    tasks: dict[int, "Task"] = field(default_factory=dict)


@dataclass(eq=False)
class Task:
    """A simulated task: seconds of work that are left, and when and where it was started."""

    claimed: ClaimedTrial
    share: float
    left: float
    start: float = 0.0
    node: Node | None = None
    attempt: int = 0


class SimulatedCluster(RayTasks):
    """An engine on a simulated cluster with a simulated clock."""

    def __init__(self, study_dir: StudyDir, scenario: Scenario, num_nodes: int, database_seconds: float) -> None:
        super().__init__(study_dir, metadata={}, url="")
        self.scenario, self.database_seconds = scenario, database_seconds
        self.nodes = [Node() for _ in range(num_nodes)]
        self.draw = random.Random(0)
        self.now, self.busy, self.num_deaths, self.number = 0.0, 0.0, 0, 0
        self.mark = time.process_time()
        self.pending: deque[Task] = deque()
        self.events: list[tuple[float, int, str, object, int]] = []
        for node in self.nodes:
            self.plan_death(node)

    def __enter__(self) -> "SimulatedCluster":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def cluster_resources(self) -> Mapping[str, float]:
        num_alive = sum(node.is_alive for node in self.nodes)
        return {"CPU": num_alive * NODE_CPUS, "GPU": num_alive}

    def places(self) -> Mapping[int, str]:
        return {}

    def _submit(self, claimed: ClaimedTrial, share: float) -> None:
        task = Task(claimed, share, duration(claimed.run, self.scenario))
        self.submitted[claimed.trial_id] = claimed, share
        self.busy += self.database_seconds
        self.now += self.database_seconds
        self.pending.append(task)

    def wait(self, seconds: float) -> list[Outcome]:
        """Charge the scheduler's CPU time since the last call, and go on to the next end of a run."""
        cpu = time.process_time() - self.mark
        self.busy += cpu
        self.now += cpu
        self.place()
        outcomes: list[Outcome] = []
        while self.events and (not outcomes or self.events[0][0] <= self.now):
            moment, _, kind, subject, attempt = heapq.heappop(self.events)
            self.now = max(self.now, moment)
            if kind == "end":
                outcomes += self.end(subject, attempt)
            elif kind == "death":
                self.kill(subject)
            else:
                self.repair(subject)
            self.place()
        self.mark = time.process_time()
        return outcomes

    def place(self) -> None:
        """Assign pending tasks to nodes in order. Tasks with other resources do not wait for one that does not fit."""
        blocked: set[float] = set()
        for task in list(self.pending):
            if task.share in blocked:
                continue
            node = next((x for x in self.nodes if x.is_alive and x.free_cpus and x.free_gpu + 1e-9 >= task.share), None)
            if node is None:
                blocked.add(task.share)
                continue
            self.pending.remove(task)
            task.node, task.start = node, self.now
            node.free_gpu -= task.share
            node.free_cpus -= 1
            node.tasks[task.claimed.trial_id] = task
            self.push(self.now + task.left, "end", task, task.attempt)

    def end(self, task: object, attempt: int) -> list[Outcome]:
        assert isinstance(task, Task)
        if task.attempt != attempt:  # its node died before
            return []
        self.free(task)
        del self.submitted[task.claimed.trial_id]
        peak = METHODS[task.claimed.run.method][0]
        self.shares.measure(task.claimed.group, peak, GPU_MIB)
        return [Outcome(task.claimed.trial_id, "finished", 0.5)]

    def kill(self, node: object) -> None:
        assert isinstance(node, Node)
        self.num_deaths += 1
        node.is_alive = False
        for task in list(node.tasks.values()):
            self.free(task)
            task.attempt += 1
            done = self.now - task.start
            step = 60 * self.scenario.checkpoint_minutes
            task.left -= done // step * step
            self.pending.append(task)
        self.push(self.now + 60 * self.scenario.repair_minutes, "repair", node)

    def repair(self, node: object) -> None:
        assert isinstance(node, Node)
        node.is_alive = True
        self.plan_death(node)

    def plan_death(self, node: Node) -> None:
        if math.isfinite(self.scenario.node_hours):
            self.push(self.now + self.draw.expovariate(1 / (3600 * self.scenario.node_hours)), "death", node)

    def free(self, task: Task) -> None:
        assert task.node is not None
        task.node.free_gpu += task.share
        task.node.free_cpus += 1
        del task.node.tasks[task.claimed.trial_id]

    def push(self, moment: float, kind: str, subject: object, attempt: int = 0) -> None:
        self.number += 1
        heapq.heappush(self.events, (moment, self.number, kind, subject, attempt))


def duration(run: Run, scenario: Scenario) -> float:
    """Return the seconds that a run takes."""
    draw = random.Random(f"{run.method} {run.seed}")
    return 60 * scenario.minutes * METHODS[run.method][1] * math.exp(draw.gauss(0, scenario.spread))


def ideal_seconds(runs: Sequence[Run], scenario: Scenario, num_nodes: int) -> float:
    """Return a lower bound of the time to finish: the work of all GPUs, or the longest run."""
    seconds = [duration(run, scenario) for run in runs]
    work = sum(gpu_share(METHODS[run.method][0], GPU_MIB) * each for run, each in zip(runs, seconds, strict=True))
    return max(work / num_nodes, max(seconds))


def make_runs(num_runs: int) -> list[Run]:
    methods = [Method(name, {}) for name in METHODS]
    return plan_runs([TextConfig(data=("reviews.csv",))], methods, range(math.ceil(num_runs / len(methods))))[:num_runs]


def measure_database(directory: Path, num_runs: int = 100) -> float:
    """Return the CPU seconds of SQLite for one run: to add it, to start it and to record its end."""
    trials = Trials.create(connect(sqlite_url(directory)), "probe", {})
    runs = make_runs(num_runs)
    start = time.process_time()
    trials.enqueue(runs)
    scheduler = Scheduler(trials)
    while (claimed := scheduler.claim()) is not None:
        scheduler.end(Outcome(claimed.trial_id, "finished", 0.5, place="10.0.0.1"))
    return (time.process_time() - start) / num_runs


def simulate(scenario: Scenario, num_runs: int, num_nodes: int, database_seconds: float, directory: Path) -> str:
    """Return the row of a table."""
    runs = make_runs(num_runs)
    trials = Trials.create(optuna.storages.InMemoryStorage(), str(scenario), {})
    cluster = SimulatedCluster(StudyDir(directory, "simulation", "compare"), scenario, num_nodes, database_seconds)
    trials.enqueue(runs)
    run_study(cluster.study_dir, trials, cluster)
    assert all(status.state == "finished" for status in trials.statuses())
    ideal = ideal_seconds(runs, scenario, num_nodes)
    return (
        f"| {num_runs:,} | {num_nodes} | {scenario} | {cluster.num_deaths} | {ideal / 3600:.2f} h | "
        f"{cluster.now / 3600:.2f} h | {cluster.now / ideal:.3f} | {1000 * cluster.busy / num_runs:.0f} ms |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--out", type=Path, help="a Markdown file for the table")
    args = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    scenarios = [Scenario(10), Scenario(10, node_hours=2), Scenario(1)]
    lines = [
        "| runs | nodes | median run | deaths of nodes | deaths | ideal | simulated | ratio | scheduler, CPU per run |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as directory:
        database_seconds = measure_database(Path(directory))
        print("\n".join(lines), flush=True)
        for scenario in scenarios:
            lines.append(simulate(scenario, args.runs, args.nodes, database_seconds, Path(directory)))
            print(lines[-1], flush=True)
    if args.out is not None:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
