"""Runs a benchmark with a progress bar, prints its table and writes its report."""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from headwise.bench.report import Measurement, ReportHeader, print_tables, write_report

#: Yields measurements, and calls its argument with a description of each step.
Benchmark = Callable[[Callable[[str], None]], Iterable[Measurement]]


@contextmanager
def progress_bar(num_steps: int) -> Iterator[Callable[[str], None]]:
    """Show a progress bar on the standard error. Yields a function that is called with the description of each step."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=num_steps)
        yield lambda step: progress.update(task, description=step, advance=1)


def run_benchmark(benchmark: Benchmark, num_steps: int, header: ReportHeader, out_dir: Path | None) -> bool:
    """Run a benchmark, print its tables and write its report.

    Args:
        benchmark: the benchmark.
        num_steps: number of steps that it reports.
        header: title and description of the report.
        out_dir: directory for the report, or None to print it only.

    Returns:
        False if the benchmark was interrupted. The report then has the measurements made so far.
    """
    if out_dir is not None:
        out_dir.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=out_dir):  # fails before measuring if the directory is not writable
            pass
    measurements: list[Measurement] = []
    finished = True
    try:
        with warnings.catch_warnings(action="ignore"), progress_bar(num_steps) as progress:
            for measurement in benchmark(progress):
                measurements.append(measurement)
    except KeyboardInterrupt:
        finished = False
        header = replace(header, description=f"{header.description} Interrupted.")
    print_tables(measurements, header, Console(width=None if sys.stdout.isatty() else 120))
    if out_dir is not None and measurements:
        write_report(measurements, header, out_dir)
    return finished
