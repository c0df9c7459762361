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
from headwise.mistakes import Mistake
from headwise.training import folder
from headwise.training.kinds import Kind, kind_of, read_settings
from headwise.training.processes import first_only
from headwise.training.progress import quieter
from headwise.training.settings import Common, option


@dataclass(frozen=True)
class Finished:
    """A run that is done: its folder, and what `metrics.json` holds."""

    folder: Path
    metrics: dict[str, Any]


def train(settings: Common, out: Path, *, force: bool = False, resume: bool = False) -> Finished:
    """Train a model, judge it, and leave it in a folder.

    Args:
        settings: all that the run depends on.
        out: the run's folder.
        force: replace a run that is there.
        resume: go on with an unfinished run from its last checkpoint.

    Raises:
        Mistake: what the user should do differently; nothing that was there is lost.
    """
    with quieter(), repeatable(settings.deterministic):
        first_only(lambda: folder.check(out, force=force, resume=resume))
        metrics = kind_of(settings.task).part("running").run(settings.resolved(), out, resume=resume)
        return Finished(out, metrics)


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
        raise Mistake(f"--deterministic: {str(error).splitlines()[0]}") from None
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
        Mistake: no such run, or data that does not fit it.
    """
    judge = finished_kind(run).part("evaluating").evaluate
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
        Mistake: no such run or file, or a row that cannot be read.
    """
    answer = finished_kind(run).part("predicting").predict
    unanswered: int = answer(run, data, out, **fitting(options, answer, run))
    return unanswered


def finished_kind(run: Path) -> Kind:
    """The kind of a finished run.

    Raises:
        Mistake: the folder holds none.
    """
    folder.check_finished(run)
    return kind_of(read_settings(run / folder.SETTINGS).task)


def fitting(options: dict[str, Any], function: Any, run: Path) -> dict[str, Any]:
    """The options that were given, all of which the function must know.

    Raises:
        Mistake: one is of another kind of run.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name in given.keys() - signature(function).parameters.keys():
        raise Mistake(f"{option(name)} does not fit the run in {run}")
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


def in_bfloat16(settings: Common) -> bool:
    """Whether a run computes in bfloat16."""
    able = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    return settings.precision == "bfloat16" or (settings.precision == "auto" and able)
