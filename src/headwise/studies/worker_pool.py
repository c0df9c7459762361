"""Start the workers of a study on one machine, replace those that die, and stop them at the end."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from headwise.errors import UserError
from headwise.studies.interrupts import interrupt_on
from headwise.studies.parent import PARENT_VARIABLE
from headwise.studies.progress import read_tail
from headwise.studies.scheduler import AddRuns, run_study
from headwise.studies.study_dir import LOGS, STORAGE_VARIABLE, StudyDir
from headwise.studies.trials import ClaimedTrial, Trials
from headwise.studies.worker import Outcome

#: The command that starts a worker; the study's directory and the worker's name are appended.
WORKER_COMMAND = (sys.executable, "-m", "headwise.studies.worker")

#: The environment variable with a file that contains the number of jobs. It may grow while the study runs. The scripts
#: that run several studies at the same time (`benchmarks/fair_studies.py`) set it.
JOBS_VARIABLE = "HEADWISE_JOBS_FILE"

#: The number of workers, in addition to one per job, that may die in a row without having started a run.
MAX_EXTRA_FAILED_STARTS = 2

#: Seconds after an interrupt until workers are killed.
STOP_TIMEOUT = 30.0


@dataclass(frozen=True)
class Resources:
    """Resources that a study may use.

    Args:
        jobs: the number of runs at the same time. By default one on this machine, and as many as fit on a cluster.
        gpus: the GPUs of this machine, which are assigned to workers in turn; several workers can share one.
        cluster: the address of a Ray cluster that trains the runs, see `headwise.cluster`; None for this machine.

    Raises:
        UserError: `jobs` is less than 1, or GPUs are given for a cluster.
    """

    jobs: int | None = None
    gpus: tuple[str, ...] = ()
    cluster: str | None = None

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise UserError(f"--jobs must be at least 1, got {self.jobs}")
        if self.cluster is not None and self.gpus:
            raise UserError("--gpus is for this machine; with --cluster, Ray assigns GPUs to runs")

    @property
    def num_jobs(self) -> int:
        """The number of worker processes on this machine at this moment."""
        jobs = self.jobs or 1
        with suppress(KeyError, OSError, ValueError):  # no such file, or one that is being written
            jobs = max(jobs, int(Path(os.environ[JOBS_VARIABLE]).read_text()))
        return jobs

    def environment(self, slot: int) -> dict[str, str]:
        """Return the environment of the worker in a slot: its GPU and its share of the CPU cores."""
        variables = dict(os.environ)
        if self.gpus:
            variables["CUDA_VISIBLE_DEVICES"] = self.gpus[slot % len(self.gpus)]
        variables.setdefault("OMP_NUM_THREADS", str(max(1, num_cores() // self.num_jobs)))
        variables.setdefault("TOKENIZERS_PARALLELISM", "false" if self.num_jobs > 1 else "true")
        return variables


def num_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass
class Worker:
    """A worker process: its slot in the pool, and the run that it executes."""

    slot: int
    process: subprocess.Popen[bytes]
    log_path: Path
    is_ready: bool = False
    claimed: ClaimedTrial | None = None


@dataclass
class WorkerPool:
    """The workers of a study on this machine, an `Engine`. They are stopped at the end of the `with` block.

    Args:
        study_dir: the study's directory.
        metadata: the values stored with the study.
        resources: the number of workers, and their GPUs.
        url: the database's URL.
        command: the command that starts a worker; by default `WORKER_COMMAND`.
    """

    study_dir: StudyDir
    metadata: dict[str, Any]
    resources: Resources
    url: str
    command: Sequence[str] | None = None
    workers: list[Worker] = field(default_factory=list)
    num_started: int = 0
    num_failed_starts: int = 0

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def has_capacity(self, group: str, num_to_start: int) -> bool:
        """Return whether a worker is ready for a run. Start workers in free slots as long as runs are waiting."""
        num_idle = sum(worker.claimed is None for worker in self.workers)
        free_slots = sorted(set(range(self.resources.num_jobs)) - {worker.slot for worker in self.workers})
        for slot in free_slots[: max(0, num_to_start - num_idle)]:
            self.start(slot)
        return any(worker.is_ready and worker.claimed is None for worker in self.workers)

    def submit(self, claimed: ClaimedTrial) -> None:
        """Send a run to a worker that is ready."""
        worker = next(worker for worker in self.workers if worker.is_ready and worker.claimed is None)
        request = {"trial_id": claimed.trial_id, "run": claimed.run.to_attributes(), "metadata": self.metadata}
        worker.claimed = claimed
        assert worker.process.stdin is not None
        with suppress(BrokenPipeError):  # `wait` notices its death
            worker.process.stdin.write(json.dumps(request).encode() + b"\n")
            worker.process.stdin.flush()

    def wait(self, seconds: float) -> list[Outcome]:
        """Return the runs that have ended, also by the death of their worker.

        Raises:
            UserError: too many workers in a row died before they were ready.
        """
        outcomes = []
        for worker in self._readable(seconds):
            assert worker.process.stdout is not None
            reply = worker.process.stdout.readline()
            if reply == b"ready\n":
                worker.is_ready, self.num_failed_starts = True, 0
            elif reply.endswith(b"\n"):
                worker.claimed = None
                outcomes.append(Outcome(**json.loads(reply)))
            else:
                outcomes += self._remove_dead(worker)
        return outcomes

    def places(self) -> Mapping[int, str]:
        """Return nothing: all runs are on this machine."""
        return {}

    def start(self, slot: int) -> None:
        """Start a worker."""
        self.num_started += 1
        log_path = self.study_dir.path / LOGS / f"worker-{self.num_started}.log"
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [*(self.command or WORKER_COMMAND), str(self.study_dir.path)],
                env=self.resources.environment(slot) | {STORAGE_VARIABLE: self.url, PARENT_VARIABLE: str(os.getpid())},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches this process only, which then stops the workers
            )
        self.workers.append(Worker(slot, process, log_path))

    def stop(self) -> None:
        """Stop all workers: idle ones by the end of their input. Wait for them, and kill those that do not stop."""
        for worker in self.workers:
            if worker.is_ready and worker.claimed is None:
                assert worker.process.stdin is not None
                with suppress(BrokenPipeError):
                    worker.process.stdin.close()
            elif worker.process.poll() is None:
                worker.process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + STOP_TIMEOUT
        for worker in self.workers:
            try:
                worker.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            self._close(worker)
        self.workers.clear()

    def _readable(self, seconds: float) -> list[Worker]:
        """Return the workers that have replied or ended."""
        if not self.workers:
            return []
        with selectors.DefaultSelector() as selector:
            for worker in self.workers:
                assert worker.process.stdout is not None
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            return [key.data for key, _ in selector.select(seconds)]

    def _remove_dead(self, worker: Worker) -> list[Outcome]:
        worker.process.wait()
        self.workers.remove(worker)
        self._close(worker)
        if worker.claimed is not None:
            return [Outcome(worker.claimed.trial_id, "died")]
        self.num_failed_starts += not worker.is_ready
        if self.num_failed_starts > self.resources.num_jobs + MAX_EXTRA_FAILED_STARTS:
            reason = read_tail(worker.log_path, 1) or "no output"
            raise UserError(
                f"{self.num_failed_starts} workers in a row died before they started a run, the last with exit "
                f"status {worker.process.returncode}: {reason} ({worker.log_path}); finished runs are kept, "
                "--resume continues the study"
            )
        return []

    @staticmethod
    def _close(worker: Worker) -> None:
        for pipe in (worker.process.stdin, worker.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


def run_workers(
    study_dir: StudyDir,
    trials: Trials,
    resources: Resources,
    url: str,
    command: Sequence[str] | None = None,
    add_runs: AddRuns | None = None,
) -> None:
    """Run a study on this machine until all runs have ended. The arguments are those of `WorkerPool` and `run_study`.

    Raises:
        KeyboardInterrupt: the study was stopped; it can be resumed.
        UserError: workers cannot start.
    """
    with interrupt_on(signal.SIGINT, signal.SIGTERM):
        pool = WorkerPool(study_dir, trials.metadata, resources, url, command)
        run_study(study_dir, trials, pool, add_runs)
