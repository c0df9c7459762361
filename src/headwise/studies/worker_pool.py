"""The workers of one machine: started, replaced when they die, stopped by Ctrl-C."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from headwise.errors import UserError
from headwise.studies.progress import Progress, tail
from headwise.studies.study_dir import LOGS, STORAGE, Folder
from headwise.studies.trials import Trials, TrialStatus

#: What starts a worker; the study's folder and the worker's name are added.
WORKER = (sys.executable, "-m", "headwise.studies.worker")

#: Seconds between two looks at how the study stands.
LOOK = 0.5

#: So many workers, beside one for each job, may end in a row before they began a run: somebody may have killed them.
PATIENCE = 2

#: Seconds that workers get to end by themselves.
GOODBYE = 30.0


@dataclass(frozen=True)
class Resources:
    """How much of this machine a study gets.

    Args:
        jobs: so many runs at once, each in a process of its own.
        gpus: which GPUs; workers take them in turn, several on one where there are more workers.
    """

    jobs: int = 1
    gpus: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise UserError(f"--jobs must be at least 1, got {self.jobs}")

    def environment(self, place: int) -> dict[str, str]:
        """What the worker at a place finds in its environment: its GPU, and its share of the cores."""
        found = dict(os.environ)
        if self.gpus:
            found["CUDA_VISIBLE_DEVICES"] = self.gpus[place % len(self.gpus)]
        found.setdefault("OMP_NUM_THREADS", str(max(1, cores() // self.jobs)))
        found.setdefault("TOKENIZERS_PARALLELISM", "false" if self.jobs > 1 else "true")
        return found


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass
class Worker:
    """A process that does runs, and where in the crew it is."""

    name: str
    place: int
    process: subprocess.Popen[bytes]
    log: Path


@dataclass
class WorkerPool:
    """The workers of a study on this machine. Leaving the `with` block ends them all.

    Args:
        folder: the study's.
        ledger: its runs.
        machine: how many workers, where.
        url: the database's address.
        command: what starts a worker.
    """

    folder: Folder
    ledger: Trials
    machine: Resources
    url: str
    command: Sequence[str]
    workers: list[Worker] = field(default_factory=list)
    started: int = 0
    useless: int = 0

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def start(self, place: int) -> None:
        self.started += 1
        name = f"{socket.gethostname()}-{os.getpid()}-{self.started}"
        log = self.folder.path / LOGS / f"worker-{self.started}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as said:
            process = subprocess.Popen(
                [*self.command, str(self.folder.path), name],
                env=self.machine.environment(place) | {STORAGE: self.url},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,  # Ctrl-C is ours; we tell them
            )
        self.workers.append(Worker(name, place, process, log))

    def tend(self, entries: Sequence[TrialStatus]) -> None:
        """Replace who died, as long as there is work.

        Raises:
            UserError: one worker after another died before it had begun anything.
        """
        for worker in [worker for worker in self.workers if worker.process.poll() is not None]:
            self.workers.remove(worker)
            if worker.process.returncode == 0:
                continue
            self.ledger.lost(worker.name)
            useful = any(entry.trial.user_attrs.get("worker") == worker.name for entry in self.ledger.entries())
            self.useless = 0 if useful else self.useless + 1
            if self.useless > self.machine.jobs + PATIENCE:
                why = f"the last with code {worker.process.returncode}: {tail(worker.log, 1) or 'it said nothing'}"
                raise UserError(
                    f"{self.useless} workers in a row ended before they began a run, {why} ({worker.log}); what is "
                    "finished is kept, --resume goes on"
                )
        free = sorted(set(range(self.machine.jobs)) - {worker.place for worker in self.workers})
        for place in free[: self.ledger.to_begin(entries)]:
            self.start(place)

    def end(self) -> None:
        """Tell all workers to stop, wait, and end those that do not."""
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + GOODBYE
        for worker in self.workers:
            try:
                worker.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            if worker.process.returncode != 0:
                self.ledger.lost(worker.name, interrupted=True)
        self.workers.clear()


def conduct(folder: Folder, ledger: Trials, machine: Resources, url: str, command: Sequence[str] = WORKER) -> None:
    """Do all that waits in a study, on this machine and wherever else it has workers, and show how it goes.

    Args:
        folder, ledger, machine, url, command: as `Crew` has them.

    Raises:
        KeyboardInterrupt: stopped; the study can be resumed.
        UserError: workers cannot even start.
    """
    with (
        interrupt_on(signal.SIGINT, signal.SIGTERM),
        WorkerPool(folder, ledger, machine, url, command) as crew,
        Progress(folder) as shown,
    ):
        while True:
            entries = ledger.entries()
            shown.update(entries, more=ledger.to_begin(entries))
            if ledger.over(entries):
                return
            crew.tend(entries)
            time.sleep(LOOK)


@contextmanager
def interrupt_on(*numbers: signal.Signals) -> Iterator[None]:
    """While it lasts, signals do what Ctrl-C does, also where a shell started us in the background, deaf to them."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
