"""Processes of a training on a Ray cluster that die after the first epoch. Workers import it from here."""

import os
import signal
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from headwise.training.core.callbacks import extra_callbacks
from headwise.training.ray_train import run_worker


class DyingProcess(TrainerCallback):
    """Ends the last process of a training, after its first checkpoint is complete.

    Args:
        marks: a directory with a file for each start of the training, with the number of steps so far.
        num_deaths: how many times the process dies.
    """

    def __init__(self, marks: Path, num_deaths: int) -> None:
        self.marks, self.num_deaths = marks, num_deaths
        self.is_last = os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.is_last:
            (self.marks / str(len(read_starts(self.marks)))).write_text(str(state.global_step))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.is_last and state.global_step > 0 and len(read_starts(self.marks)) <= self.num_deaths:
            os.kill(os.getpid(), signal.SIGKILL)


def run_dying_worker(settings: dict[str, Any], *, marks: Path, num_deaths: int) -> None:
    """Run one process of a training, the last of which dies."""
    with extra_callbacks(DyingProcess(marks, num_deaths)):
        run_worker(settings)


def read_starts(marks: Path) -> list[int]:
    """Return the number of steps before each start."""
    return [int(path.read_text()) for path in sorted(marks.iterdir(), key=lambda path: int(path.name))]
