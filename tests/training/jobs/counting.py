"""A task without a model, whose parts can fail. Worker processes import it from here."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headwise.errors import UserError
from headwise.training.jobs import Progress, Result, RowRange


@dataclass(frozen=True)
class CountingTask:
    """Writes the numbers of a part's rows.

    Args:
        marks: a directory with a file for each attempt.
        failures: what a part does on its first attempts: `die`, `raise`, `refuse`, or `wait` for `end_waiting`.
        num_failures: on how many attempts.
    """

    marks: Path
    failures: tuple[tuple[int, str], ...] = ()
    num_failures: int = 1

    def load(self) -> str:
        return "model"

    def run(self, model: Any, part: RowRange, out: Path | None, progress: Progress) -> Result:
        assert model == "model"
        attempt = len(list(self.marks.glob(f"{part.start}-*")))
        (self.marks / f"{part.start}-{attempt}").touch()
        failure = dict(self.failures).get(part.start)
        if failure is not None and attempt < self.num_failures:
            match failure:
                case "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "wait":
                    while not (self.marks / "go").exists():
                        time.sleep(0.05)
                case "raise":
                    raise RuntimeError("the disk has a hiccup")
                case "refuse":
                    raise UserError("numbers.csv, line 7: not a number")
        numbers = np.arange(part.start, part.stop)
        if out is not None:
            out.write_text("".join(f"{number}\n" for number in numbers))
        progress(part.num_rows)
        return {"numbers": numbers}

    def attempts(self, part: RowRange) -> int:
        return len(list(self.marks.glob(f"{part.start}-*")))

    def end_waiting(self) -> None:
        (self.marks / "go").touch()
