"""Start the workers of a study on one machine, replace those that die, and stop them at the end."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from headwise.errors import UserError
from headwise.studies.outages import DatabaseLostError
from headwise.studies.parent import PARENT_VARIABLE
from headwise.studies.progress import Progress, read_tail
from headwise.studies.study_dir import LOGS, STORAGE_VARIABLE, StudyDir
from headwise.studies.trials import Trials, TrialStatus

#: The command that starts a worker; the study's directory and the worker's name are appended.
WORKER_COMMAND = (sys.executable, "-m", "headwise.studies.worker")

#: Seconds between two polls of the study's state.
POLL_SECONDS = 0.5

#: The number of workers, in addition to one per job, that may die in a row without having started a run.
MAX_EXTRA_FAILED_STARTS = 2

#: Seconds after an interrupt until workers are killed.
STOP_TIMEOUT = 30.0


@dataclass(frozen=True)
class Resources:
    """Resources of this machine that a study may use.

    Args:
        jobs: the number of worker processes. Each trains one run at a time.
        gpus: the GPUs, which are assigned to workers in turn; several workers can share one.

    Raises:
        UserError: `jobs` is less than 1.
    """

    jobs: int = 1
    gpus: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise UserError(f"--jobs must be at least 1, got {self.jobs}")

    def environment(self, slot: int) -> dict[str, str]:
        """Return the environment of the worker in a slot: its GPU and its share of the CPU cores."""
        variables = dict(os.environ)
        if self.gpus:
            variables["CUDA_VISIBLE_DEVICES"] = self.gpus[slot % len(self.gpus)]
        variables.setdefault("OMP_NUM_THREADS", str(max(1, num_cores() // self.jobs)))
        variables.setdefault("TOKENIZERS_PARALLELISM", "false" if self.jobs > 1 else "true")
        return variables


def num_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass
class Worker:
    """A worker process and its slot in the pool."""

    name: str
    slot: int
    process: subprocess.Popen[bytes]
    log_path: Path


@dataclass
class WorkerPool:
    """The workers of a study on this machine. They are stopped at the end of the `with` block.

    Args:
        study_dir: the study's directory.
        trials: the study's trials.
        resources: the number of workers, and their GPUs.
        url: the database's URL.
        command: the command that starts a worker; by default `WORKER_COMMAND`.
    """

    study_dir: StudyDir
    trials: Trials
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

    def start(self, slot: int) -> None:
        """Start a worker."""
        self.num_started += 1
        name = f"{socket.gethostname()}-{os.getpid()}-{self.num_started}"
        log_path = self.study_dir.path / LOGS / f"worker-{self.num_started}.log"
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [*(self.command or WORKER_COMMAND), str(self.study_dir.path), name],
                env=self.resources.environment(slot) | {STORAGE_VARIABLE: self.url, PARENT_VARIABLE: str(os.getpid())},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches this process only, which then stops the workers
            )
        self.workers.append(Worker(name, slot, process, log_path))

    def replace_dead(self, statuses: Sequence[TrialStatus]) -> None:
        """Remove dead workers, and start a worker in each free slot as long as runs are waiting.

        Args:
            statuses: the status of every run.

        Raises:
            UserError: too many workers in a row died before they started a run.
        """
        for worker in [worker for worker in self.workers if worker.process.poll() is not None]:
            self.workers.remove(worker)
            if worker.process.returncode == 0:
                continue
            self.trials.release_all(worker.name)
            has_started_run = any(
                status.trial.user_attrs.get("worker") == worker.name for status in self.trials.statuses()
            )
            self.num_failed_starts = 0 if has_started_run else self.num_failed_starts + 1
            if self.num_failed_starts > self.resources.jobs + MAX_EXTRA_FAILED_STARTS:
                reason = read_tail(worker.log_path, 1) or "no output"
                raise UserError(
                    f"{self.num_failed_starts} workers in a row died before they started a run, the last with exit "
                    f"status {worker.process.returncode}: {reason} ({worker.log_path}); finished runs are kept, "
                    "--resume continues the study"
                )
        free_slots = sorted(set(range(self.resources.jobs)) - {worker.slot for worker in self.workers})
        for slot in free_slots[: self.trials.num_to_start(statuses)]:
            self.start(slot)

    def stop(self) -> None:
        """Interrupt all workers, wait for them, and kill those that do not stop."""
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + STOP_TIMEOUT
        for worker in self.workers:
            try:
                worker.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        with self.trials.outages.not_waiting(), suppress(DatabaseLostError):  # else the runs become stale
            for worker in self.workers:
                if worker.process.returncode != 0:
                    self.trials.release_all(worker.name, interrupted=True)
        self.workers.clear()


def run_workers(
    study_dir: StudyDir, trials: Trials, resources: Resources, url: str, command: Sequence[str] | None = None
) -> None:
    """Run a study until all runs have ended, and show its progress. The arguments are those of `WorkerPool`.

    Raises:
        KeyboardInterrupt: the study was stopped; it can be resumed.
        UserError: workers cannot start.
    """
    with (
        interrupt_on(signal.SIGINT, signal.SIGTERM),
        WorkerPool(study_dir, trials, resources, url, command) as pool,
        Progress(study_dir) as progress,
    ):
        while True:
            statuses = trials.statuses()
            progress.update(statuses, num_to_start=trials.num_to_start(statuses))
            if trials.is_finished(statuses):
                return
            pool.replace_dead(statuses)
            if not pool.workers:  # the last runs belong to workers that may be dead, of this or another command
                trials.release_stale()
            time.sleep(POLL_SECONDS)


@contextmanager
def interrupt_on(*signals: signal.Signals) -> Iterator[None]:
    """Raise KeyboardInterrupt on these signals, even if a shell started this process with SIGINT ignored."""
    old_handlers = {number: signal.signal(number, signal.default_int_handler) for number in signals}
    try:
        yield
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
