"""Worker process of a study: trains one run after another until none is left. It imports torch only once."""

import gc
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from optuna.exceptions import OptunaError, TrialPruned

from headwise.errors import UserError
from headwise.locks import LOCK_FILE, OutputInUseError, lock_output
from headwise.small_files import read_json
from headwise.studies.outages import DatabaseLostError
from headwise.studies.parent import end_with_parent
from headwise.studies.plan import Run
from headwise.studies.study_dir import StudyDir, delete_checkpoints
from headwise.studies.trials import ClaimedTrial, Trials
from headwise.training.core.config import RunConfig
from headwise.training.core.run_dir import CONFIG, METRICS, last_checkpoint
from headwise.training.registry import load_config

logger = logging.getLogger(__name__)

#: A function (config, run directory, resume) → content of `metrics.json`.
TrainFunction = Callable[[RunConfig, Path, bool], dict[str, Any]]

#: Seconds between two attempts to claim a run while other workers have all of them.
POLL_SECONDS = 1.0

#: Exit status of a worker whose run was taken over by another worker.
EXIT_TAKEN_OVER = 75


def work(
    trials: Trials,
    study_dir: StudyDir,
    train: TrainFunction,
    *,
    name: str | None = None,
    poll_seconds: float = POLL_SECONDS,
) -> None:
    """Train runs until all have ended, including runs that other workers leave behind.

    Args:
        trials: the runs.
        study_dir: the study's directory.
        train: trains one run.
        name: the worker's name; by default host and process id.
        poll_seconds: seconds between two attempts to claim a run.
    """
    worker = name or f"{socket.gethostname()}-{os.getpid()}"
    kept_seed = trials.metadata.get("keep_models_of_seed")
    while True:
        claimed = trials.claim(worker)
        if claimed is not None:
            keep_model = kept_seed is None or claimed.run.seed == kept_seed
            execute(claimed, trials, study_dir, train, keep_model=keep_model)
        elif trials.is_finished(trials.statuses()):
            return
        else:
            time.sleep(poll_seconds)


def execute(
    claimed: ClaimedTrial, trials: Trials, study_dir: StudyDir, train: TrainFunction, *, keep_model: bool
) -> None:
    """Train a run and record how it ended."""
    run, run_dir = claimed.run, study_dir.run_dir(claimed.run)
    with sending_heartbeats(trials, claimed), redirect_output(study_dir.log_path(run)):
        try:
            with trials.pruning(claimed):
                metrics = read_finished(run, run_dir) or train(run.config, run_dir, prepare_resume(run, run_dir))
            delete_checkpoints(run_dir, keep_model=keep_model)
            trials.finish(claimed, primary_value(metrics, trials.metadata.get("objective_split", "test")))
        except KeyboardInterrupt:
            trials.release(claimed)
            raise
        except TrialPruned:
            trials.prune(claimed)
        except OutputInUseError as error:  # its last worker seemed dead, and ends with its next heartbeat
            logger.warning("%s", error)
            trials.release(claimed)
            time.sleep(trials.storage.get_heartbeat_interval() or 0)
        except DatabaseLostError:  # a finished run is recorded by the next worker
            raise
        except Exception as error:
            traceback.print_exc()
            trials.fail(claimed, format_error(error))
    gc.collect()


def read_finished(run: Run, run_dir: Path) -> dict[str, Any] | None:
    """Return the metrics of a run that was trained by a worker that died before it recorded them, otherwise None."""
    path = run_dir / METRICS
    return read_json(path) if path.is_file() and is_dir_of(run, run_dir) else None


def prepare_resume(run: Run, run_dir: Path) -> bool:
    """Return whether the directory has a checkpoint of this run. If it has none, delete the directory.

    Raises:
        OutputInUseError: another worker writes to the directory.
    """
    if is_dir_of(run, run_dir) and last_checkpoint(run_dir) is not None:
        return True
    if run_dir.is_dir():
        with lock_output(run_dir, is_directory=True):  # its last worker may still write
            for path in run_dir.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path.name != LOCK_FILE:
                    path.unlink()
        with suppress(OSError):  # another worker has begun
            run_dir.rmdir()
    return False


def is_dir_of(run: Run, run_dir: Path) -> bool:
    """Return whether a directory holds a run of the same configuration."""
    try:
        return load_config(run_dir / CONFIG) == run.config
    except UserError:
        return False


def primary_value(metrics: dict[str, Any], split: str) -> float:
    """Return the primary metric on a split, or on the last split if the run does not have this one."""
    splits = metrics["metrics"]
    return float(splits.get(split, next(reversed(splits.values())))[metrics["primary_metric"]])


def format_error(error: Exception) -> str:
    """Return an error's message in one line."""
    if isinstance(error, UserError):
        return str(error)
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


@contextmanager
def sending_heartbeats(trials: Trials, claimed: ClaimedTrial) -> Iterator[None]:
    """Send heartbeats in a thread. The process exits at once when another worker has taken over the run."""
    stop = threading.Event()

    def send() -> None:
        while not stop.wait(trials.storage.get_heartbeat_interval()):
            try:
                if not trials.send_heartbeat(claimed) and not stop.is_set():
                    logger.error("%s was taken over by another worker", claimed.run)
                    os._exit(EXIT_TAKEN_OVER)
            except (DatabaseLostError, OptunaError) as error:
                logger.error("heartbeat failed: %s", error)  # the run is finished all the same

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        with trials.outages.not_waiting():
            thread.join()


@contextmanager
def redirect_output(path: Path) -> Iterator[None]:
    """Append stdout and stderr of this process to a file, including the output of C libraries."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", buffering=1) as file, redirect_stdout(file), redirect_stderr(file):
        saved_descriptors = os.dup(1), os.dup(2)
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
        try:
            yield
        finally:
            for descriptor, saved in enumerate(saved_descriptors, 1):
                os.dup2(saved, descriptor)
                os.close(saved)


def train_run(config: RunConfig, run_dir: Path, resume: bool) -> dict[str, Any]:
    """Train a run with `headwise.training.train` and free GPU memory for other workers."""
    import torch

    from headwise.training import train

    try:
        return train(config, run_dir, resume=resume).metrics
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def main() -> int:
    """Run `python -m headwise.studies.worker STUDY NAME`; the database's URL may be in the environment."""
    for stop_signal in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop_signal, signal.default_int_handler)
    logging.basicConfig(format="%(message)s")
    logging.getLogger("headwise").setLevel(logging.INFO)
    end_with_parent()
    path, name = sys.argv[1:]
    try:
        study_dir = StudyDir.read(Path(path))
        work(study_dir.open_trials(wait=True), study_dir, train_run, name=name)
    except KeyboardInterrupt:
        return 130
    except UserError as error:
        logger.error("%s", error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
