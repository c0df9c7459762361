"""The paper's figures beside ours."""

from collections.abc import Sequence
from statistics import fmean, stdev

from headwise.studies.comparison import Measure
from headwise.studies.papers import Figure, Published
from headwise.studies.result import Result
from headwise.studies.summary import number
from headwise.studies.tables import Grid

SECONDS = "seconds an epoch"


def beside(results: Sequence[Result], paper: Published) -> list[Grid]:
    """A table for each task that the paper has figures of: its figure, ours, and the difference."""
    found = []
    for task in dict.fromkeys(result.task for result in results):
        methods = paper.figures.get(task, {})
        rows = [
            row(method, metric, figure, [ours(result, metric) for result in results if is_of(result, task, method)])
            for method, figures in methods.items()
            for metric, figure in figures.items()
        ]
        if rows:
            header = ("method", "metric", "paper", "ours", "ours − paper")
            found.append(Grid(f"{task}, beside {paper.where}", header, tuple(rows)))
    return found


def is_of(result: Result, task: str, method: str) -> bool:
    return (result.task, result.method) == (task, method)


def ours(result: Result, metric: str) -> float:
    """A run's figure, as the paper counts it."""
    if metric == SECONDS:
        return float(result.metrics["train_seconds"]) / float(result.metrics["epochs"])
    measure = Measure.of(result.metrics)
    measure = Measure(metric, measure.higher_is_better, measure.split)
    return measure.figure(result)


def row(method: str, metric: str, paper: Figure, own: Sequence[float]) -> tuple[str, ...]:
    """
    >>> row("plain", "accuracy", Figure(93.01, 0.13), [92.0, 93.0])
    ('plain', 'accuracy', '93.01 ± 0.13', '92.50 ± 0.71', '−0.51')
    >>> row("rpr", "accuracy", Figure(93.14), [])
    ('rpr', 'accuracy', '93.14', '', '')
    """
    as_points = Measure("accuracy", True, "test")
    told = spread(paper.mean, paper.std)
    if not own:
        return method, metric, told, "", ""
    mean = fmean(own)
    return (
        method,
        metric,
        told,
        spread(mean, stdev(own) if len(own) > 1 else None),
        number(mean - paper.mean, as_points, plus=True),
    )


def spread(mean: float, std: float | None) -> str:
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"
