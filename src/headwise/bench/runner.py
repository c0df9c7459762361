"""A benchmark from its first step to its report."""

import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from headwise.bench.report import About, Row, show, write

Steps = Callable[[Callable[[str], None]], Iterable[Row]]


def run_benchmark(measure: Steps, steps: int, about: About, out: Path | None) -> bool:
    """Measure, print a table, and write the report to a folder; False if it was interrupted, and so is incomplete.

    Args:
        measure: yields rows, and tells the function it is given of each of its `steps`.
        steps: how many these are.
        about: how the rows come about.
        out: where to write the report.
    """
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=out):  # a folder that cannot be written to is found out before measuring
            pass
    rows: list[Row] = []
    log = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    finished = True
    try:
        with warnings.catch_warnings(action="ignore"), Progress(*columns, console=log, transient=True) as progress:
            task = progress.add_task("starting", total=steps)
            for row in measure(lambda step: progress.update(task, description=step, advance=1)):
                rows.append(row)
    except KeyboardInterrupt:
        finished = False
        about = replace(about, what=f"{about.what} Interrupted.")
    show(rows, about, Console(width=None if sys.stdout.isatty() else 120))
    if out is not None and rows:
        write(rows, about, out)
    return finished
