"""Execution of one run, and the worker process that executes one run after another. It imports torch only once."""

import gc
import json
import logging
import math
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from optuna.exceptions import TrialPruned

from headwise.errors import UserError
from headwise.locks import LOCK_FILE, OutputInUseError, lock_output
from headwise.small_files import read_json
from headwise.studies.outages import DatabaseLostError
from headwise.studies.parent import end_with_parent
from headwise.studies.plan import Run
from headwise.studies.run_storage import working_dir
from headwise.studies.study_dir import StudyDir, delete_checkpoints
from headwise.studies.trials import ClaimedTrial, Trials
from headwise.training.core.config import RunConfig
from headwise.training.core.run_dir import CONFIG, METRICS, last_checkpoint
from headwise.training.core.run_settings import change_settings
from headwise.training.registry import load_config

logger = logging.getLogger(__name__)

#: A function (config, run directory, resume) → content of `metrics.json`.
TrainFunction = Callable[[RunConfig, Path, bool], dict[str, Any]]

#: Seconds between two checkpoints of a run. Most runs are shorter, and a checkpoint can take longer than an epoch.
CHECKPOINT_SECONDS = 60.0

#: Seconds to wait before a run is returned to the queue because another process still writes to its directory.
IN_USE_SECONDS = 1.0


@dataclass(frozen=True)
class Outcome:
    """How the execution of a run ended.

    Args:
        trial_id: the run's trial.
        state: finished, failed, pruned; or died (its worker) or interrupted, after which the run is repeated.
        value: the metric of a finished run.
        error: the reason of a failure.
        place: the name of the node of a cluster that executed the run.
        peak_mib: the peak memory on the GPU, if it was measured.
        gpu_mib: the memory of this GPU.
    """

    trial_id: int
    state: Literal["finished", "failed", "pruned", "died", "interrupted"]
    value: float | None = None
    error: str = ""
    place: str = ""
    peak_mib: float | None = None
    gpu_mib: float | None = None


def execute(
    claimed: ClaimedTrial, study_dir: StudyDir, train: TrainFunction, trials: Trials | None, metadata: dict[str, Any]
) -> Outcome:
    """Train a run and return how it ended.

    Args:
        claimed: the run.
        study_dir: the study's directory.
        train: trains a run.
        trials: the trials of a search, whose runs can be pruned; otherwise None.
        metadata: the values stored with the study.

    Raises:
        KeyboardInterrupt: the run was interrupted.
    """
    run, end = claimed.run, partial(Outcome, claimed.trial_id)
    kept_seed = metadata.get("keep_models_of_seed")
    keep_model = kept_seed is None or run.seed == kept_seed
    try:
        with working_dir(study_dir, run) as (run_dir, log_path), redirect_output(log_path):
            try:
                metrics = read_finished(run, run_dir)
                if metrics is None:
                    resume = prepare_resume(run, run_dir)
                    pruning = trials.pruning(claimed) if trials is not None else nullcontext()
                    settings = change_settings(
                        results_only=not keep_model,
                        only_split="dev" if is_dev_trial(run, metadata) else None,
                        checkpoint_seconds=CHECKPOINT_SECONDS,
                        token_dir=study_dir.token_dir,
                    )
                    with pruning, settings:
                        metrics = train(run.config, run_dir, resume)
                delete_checkpoints(run_dir, keep_model=keep_model)
                value = primary_value(metrics, objective_split(run, metadata))
                if math.isnan(value):
                    raise UserError("the metric is NaN: training diverged")
                peak_mib, gpu_mib = gpu_memory(metrics)
                return end("finished", value=value, peak_mib=peak_mib, gpu_mib=gpu_mib)
            except (TrialPruned, DatabaseLostError):
                raise
            except OutputInUseError as error:  # its last worker still writes
                logger.warning("%s", error)
                time.sleep(IN_USE_SECONDS)
                return end("interrupted")
            except Exception as error:
                traceback.print_exc()
                return end("failed", error=format_error(error))
    except TrialPruned:
        return end("pruned")
    except DatabaseLostError:
        raise
    except Exception as error:  # of the storage path
        return end("failed", error=format_error(error))
    finally:
        gc.collect()


def gpu_memory(metrics: dict[str, Any]) -> tuple[float | None, float | None]:
    """Return the peak memory of a run on a GPU and the memory of this GPU in MiB; None for a run on a CPU."""
    peak = metrics.get("peak_memory") or {}
    if "GPU" not in peak.get("of", ""):
        return None, None
    import torch

    if not torch.cuda.is_available():
        return None, None
    return peak["peak_mib"], torch.cuda.get_device_properties(0).total_memory / 2**20


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
    """Return whether a directory holds a run of the same configuration.

    Its run.yaml also has the values of options that the configuration does not set, which were chosen from the data.
    """
    try:
        saved = load_config(run_dir / CONFIG)
    except UserError:
        return False
    if type(saved) is not type(run.config):
        return False
    unset: dict[str, Any] = {field.name: None for field in fields(saved) if getattr(run.config, field.name) is None}
    return replace(saved, **unset) == run.config


def objective_split(run: Run, metadata: dict[str, Any]) -> str:
    """Return the split whose metric is the value of a run: dev for trials and sweeps, otherwise test."""
    return "dev" if is_dev_trial(run, metadata) else str(metadata.get("objective_split", "test"))


def is_dev_trial(run: Run, metadata: dict[str, Any]) -> bool:
    """Return whether a run is one of the trials on dev that choose a method's settings. It does not see test."""
    return any(run.task == x["task"] and run.method in x["candidates"] for x in metadata.get("tuning", ()))


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


def configure_logging() -> None:
    """Log messages of headwise to stderr, which is the log of the current run."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("headwise").setLevel(logging.INFO)


def main() -> int:
    """Run `python -m headwise.studies.worker STUDY`; the database's URL may be in the environment."""
    return serve(train_run)


def serve(train: TrainFunction) -> int:
    """Execute the runs that stdin names, one line each, and answer with a line on stdout. Return the exit status."""
    for stop_signal in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop_signal, signal.default_int_handler)
    configure_logging()
    end_with_parent()
    try:
        with os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1) as replies:
            os.dup2(2, 1)  # the output of libraries does not go to the replies
            study_dir = StudyDir.read(Path(sys.argv[1]))
            trials = study_dir.open_trials(wait=True) if study_dir.kind == "search" else None
            print("ready", file=replies)
            for line in sys.stdin:
                request = json.loads(line)
                claimed = ClaimedTrial(Run.from_attributes(request["run"]), request["trial_id"])
                outcome = execute(claimed, study_dir, train, trials, request["metadata"])
                print(json.dumps(asdict(outcome)), file=replies)
                if not gc.get_freeze_count():
                    gc.freeze()  # the objects of all imported modules, which each collection would visit
    except KeyboardInterrupt:
        return 130
    except UserError as error:
        logger.error("%s", error)
        return 2
    return 0


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    os._exit(status)  # without the end of the interpreter: 14 workers on a GPU had not ended after 30 seconds
