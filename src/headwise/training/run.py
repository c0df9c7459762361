"""One run, of any kind: trained, judged, used."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import transformers

import headwise
from headwise.errors import UserError
from headwise.training.core import run_dir
from headwise.training.core.callbacks import quiet_libraries
from headwise.training.core.config import RunConfig, option_name
from headwise.training.core.distributed import first_only
from headwise.training.registry import TaskType, get_task_type, load_config


@dataclass(frozen=True)
class RunResult:
    """A run that is done: its folder, and what `metrics.json` holds."""

    folder: Path
    metrics: dict[str, Any]


def train(settings: RunConfig, out: Path, *, force: bool = False, resume: bool = False) -> RunResult:
    """Train a model, judge it, and leave it in a folder.

    Args:
        settings: all that the run depends on.
        out: the run's folder.
        force: replace a run that is there.
        resume: go on with an unfinished run from its last checkpoint.

    Raises:
        UserError: what the user should do differently; nothing that was there is lost.
    """
    with quiet_libraries(), repeatable(settings.deterministic):
        first_only(lambda: run_dir.check_out_dir(out, force=force, resume=resume))
        metrics = get_task_type(settings.task).part("train").run_training(settings.resolve_paths(), out, resume=resume)
        return RunResult(out, metrics)


@contextmanager
def repeatable(wanted: bool) -> Iterator[None]:
    """While it lasts, torch takes algorithms that give the same bits each time, and fails where it has none."""
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the GPU is used first
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    try:
        yield
    except RuntimeError as error:
        if not wanted or "deterministic" not in str(error):
            raise
        raise UserError(f"--deterministic: {str(error).splitlines()[0]}") from None
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]


def evaluate(run: Path, data: Path | None = None, **options: Any) -> dict[str, Any]:
    """How good a run's model is: on its own test split (dev, where there is none), or on other data.

    Args:
        run: a finished run's folder.
        data: another file with labels.
        options: of the kind of run; for texts `text`, `pair` and `label`, the file's columns.

    Returns:
        What was judged, how many rows, the figures, and the standard error of the primary one.

    Raises:
        UserError: no such run, or data that does not fit it.
    """
    judge = finished_kind(run).part("evaluate").evaluate
    found: dict[str, Any] = judge(run, data, **fitting(options, judge, run))
    return found


def predict(run: Path, data: Path, out: Path, **options: Any) -> int:
    """Write a model's answers beside the rows of a file, in their order.

    Args:
        run: a finished run's folder.
        data: what to answer for.
        out: what to write. Nothing is left of it where it could not be finished.
        options: of the kind of run; for texts `text` and `pair`, the columns.

    Returns:
        How many rows got no answer.

    Raises:
        UserError: no such run or file, or a row that cannot be read.
    """
    answer = finished_kind(run).part("predict").predict
    unanswered: int = answer(run, data, out, **fitting(options, answer, run))
    return unanswered


def finished_kind(run: Path) -> TaskType:
    """The kind of a finished run.

    Raises:
        UserError: the folder holds none.
    """
    run_dir.check_finished(run)
    return get_task_type(load_config(run / run_dir.SETTINGS).task)


def fitting(options: dict[str, Any], function: Any, run: Path) -> dict[str, Any]:
    """The options that were given, all of which the function must know.

    Raises:
        UserError: one is of another kind of run.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name in given.keys() - signature(function).parameters.keys():
        raise UserError(f"{option_name(name)} does not fit the run in {run}")
    return given


def header() -> str:
    """The first line of a `run.yaml`."""
    told = ", ".join(f"{name} {version}" for name, version in versions().items())
    return f"# headwise train --config THIS does this run again ({told})\n"


def versions() -> dict[str, str]:
    """Of what a run's figures may depend on."""
    return {
        "headwise": headwise.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": sys.version.split()[0],
    }


def in_bfloat16(settings: RunConfig) -> bool:
    """Whether a run computes in bfloat16."""
    able = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    return settings.precision == "bfloat16" or (settings.precision == "auto" and able)
