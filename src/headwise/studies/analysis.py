"""A study's answer: who is better, by how much, and how sure one can be."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console

from headwise.errors import UserError
from headwise.studies import statistics, summary, tables
from headwise.studies.comparison import TaskComparison, compared
from headwise.studies.result import Result
from headwise.studies.statistics import Ranks


@dataclass(frozen=True)
class Analysis:
    """What a study found.

    Args:
        baseline: the method that the others are compared with.
        tasks: what was found on each task.
        ranks: over several tasks; of the methods that all of them have.
    """

    baseline: str
    tasks: tuple[TaskComparison, ...]
    ranks: Ranks | None

    @property
    def sentences(self) -> list[str]:
        """The answer in plain words: over all tasks, where there are several, then for each method of each task."""
        overall = [] if self.ranks is None else [summary.ranking(self.ranks)]
        several = len(self.tasks) > 1
        return overall + [
            f"{task.task}: {line}" if several else line for task in self.tasks for line in summary.told(task)
        ]

    @property
    def grids(self) -> list[tables.Grid]:
        """The tables: one over all tasks, where there are several, then one for each."""
        overall = [tables.overview(self.tasks, self.ranks)] if len(self.tasks) > 1 else []
        return overall + [tables.on_task(task) for task in self.tasks]

    def tell(self, console: Console | None = None) -> None:
        """The tables and the answer in words, on a terminal."""
        console = console or Console(width=None if sys.stdout.isatty() else 140, highlight=False)
        for task in self.tasks:
            console.print(tables.rich(tables.on_task(task)))
            for line in summary.warnings(task):
                console.print(f"Warning: {line}", style="yellow", markup=False)
            for line in summary.told(task):
                console.print(line, markup=False)
        if len(self.tasks) > 1:
            console.print(tables.rich(tables.overview(self.tasks, self.ranks)))
        if self.ranks is not None:
            console.print(summary.ranking(self.ranks), markup=False)
        console.print(tables.NOTE, style="dim", markup=False)


def analyze(results: Sequence[Result], baseline: str, controls: Mapping[str, str] | None = None) -> Analysis:
    """What finished runs say about the methods, compared with a baseline, on one task or several.

    Args:
        results: the runs; those of a method and of the baseline with the same seed are a pair.
        baseline: a method of every task.
        controls: of methods that are to be compared with another one than the baseline, that one.

    Raises:
        UserError: no runs, or none of the baseline.
    """
    if not results:
        raise UserError("no run has finished: there is nothing to compare")
    by_task: dict[str, list[Result]] = {}
    for result in results:
        by_task.setdefault(result.task, []).append(result)
    for task, runs in by_task.items():
        if all(run.method != baseline for run in runs):
            raise UserError(
                f"{task}: no run of the baseline {baseline!r} has finished; there is nothing to compare with"
            )
    tasks = tuple(compared(runs, baseline, controls or {}) for runs in by_task.values())
    return Analysis(baseline, tasks, ranked(tasks))


def ranked(tasks: Sequence[TaskComparison]) -> Ranks | None:
    """Average ranks over tasks; None for one task, or where fewer than two methods are on all of them."""
    shared = [m.name for m in tasks[0].methods if all(m.name in {o.name for o in task.methods} for task in tasks)]
    if len(tasks) < 2 or len(shared) < 2:
        return None
    figures = np.array([[next(m.mean for m in task.methods if m.name == name) for name in shared] for task in tasks])
    higher = np.array([[1.0 if task.measure.higher_is_better else -1.0] for task in tasks])
    return statistics.ranks(shared, figures * higher)
