"""A process that does one run of a study after another, until none is left. It imports torch once."""

import gc
import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from optuna.exceptions import OptunaError, TrialPruned

from headwise.errors import UserError
from headwise.studies.plan import Run
from headwise.studies.study_dir import Folder, without_checkpoints
from headwise.studies.trials import ClaimedTrial, Trials
from headwise.training.core import run_dir as run_folder
from headwise.training.core.config import RunConfig
from headwise.training.registry import load_config

#: Settings, a folder, whether to go on with what is there → `metrics.json`.
Train = Callable[[RunConfig, Path, bool], dict[str, Any]]

#: Seconds between two looks for work, while others have it all.
POLL = 1.0

#: How a worker ends whose run another has.
TAKEN_OVER = 75


def work(ledger: Trials, folder: Folder, train: Train, *, name: str | None = None, poll: float = POLL) -> None:
    """Do runs until all are finished or failed, also those that other workers lose.

    Args:
        ledger: what there is to do.
        folder: where runs go.
        train: what does a run.
        name: what others call this worker.
        poll: seconds between two looks for work.
    """
    worker = name or f"{socket.gethostname()}-{os.getpid()}"
    kept = ledger.about.get("keep_models", "all")
    while True:
        claim = ledger.claim(worker)
        if claim is not None:
            do(claim, ledger, folder, train, keep_model=kept == "all" or claim.run.seed == kept)
        elif ledger.over(ledger.entries()):
            return
        else:
            time.sleep(poll)


def do(claim: ClaimedTrial, ledger: Trials, folder: Folder, train: Train, *, keep_model: bool) -> None:
    """One run, and what became of it."""
    run, out = claim.run, folder.of(claim.run)
    with heartbeat(ledger, claim), logged(folder.log(run)):
        try:
            with ledger.looked_on(claim):
                metrics = done_before(run, out) or train(run.settings, out, begun(run, out))
            without_checkpoints(out, keep_model=keep_model)
            ledger.finished(claim, figure(metrics, ledger.about.get("judged_on", "test")))
        except KeyboardInterrupt:
            ledger.interrupted(claim)
            raise
        except TrialPruned:
            ledger.pruned(claim)
        except Exception as error:
            traceback.print_exc()
            ledger.failed(claim, message(error))
    gc.collect()


def done_before(run: Run, out: Path) -> dict[str, Any] | None:
    """The figures of a run that a worker finished, and then died before it could say so."""
    path = out / run_folder.METRICS
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() and is_of(run, out) else None


def begun(run: Run, out: Path) -> bool:
    """Whether the folder has a checkpoint of this run to go on from; anything else goes."""
    if is_of(run, out) and run_folder.last_checkpoint(out) is not None:
        return True
    shutil.rmtree(out, ignore_errors=True)
    return False


def is_of(run: Run, out: Path) -> bool:
    try:
        return load_config(out / run_folder.CONFIG) == run.settings
    except UserError:
        return False


def figure(metrics: dict[str, Any], split: str) -> float:
    """The primary figure of a run: on a split, or on the other, where there is only one."""
    figures = metrics["metrics"]
    return float(figures.get(split, next(reversed(figures.values())))[metrics["primary_metric"]])


def message(error: Exception) -> str:
    """In one line what went wrong."""
    if isinstance(error, UserError):
        return str(error)
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


@contextmanager
def heartbeat(ledger: Trials, claim: ClaimedTrial) -> Iterator[None]:
    """Signs of life while a run goes on. A worker that was taken for dead ends at once: another has its run."""
    over = threading.Event()
    parent = os.getppid()

    def beat() -> None:
        while not over.wait(ledger.storage.get_heartbeat_interval()):
            try:
                if not ledger.alive(claim) and not over.is_set():
                    print(f"{claim.run}: another worker has it", file=sys.stderr, flush=True)
                    os._exit(TAKEN_OVER)
            except OptunaError:
                traceback.print_exc()  # the database may come back
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGINT)  # whoever started this worker is gone

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """What anything in this process says goes into a file, also what libraries in C say."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", buffering=1) as file, redirect_stdout(file), redirect_stderr(file):
        before = os.dup(1), os.dup(2)
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
        try:
            yield
        finally:
            for stream, saved in enumerate(before, 1):
                os.dup2(saved, stream)
                os.close(saved)


def train_run(settings: RunConfig, out: Path, resume: bool) -> dict[str, Any]:
    """The real thing."""
    import torch

    from headwise.training import train

    try:
        return train(settings, out, resume=resume).metrics
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # others on this GPU need it


def main() -> int:
    """`python -m headwise.studies.worker STUDY NAME`; the database's address may be in the environment."""
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.default_int_handler)
    path, name = sys.argv[1:]
    folder = Folder.read(Path(path))
    try:
        work(folder.ledger(), folder, train_run, name=name)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
