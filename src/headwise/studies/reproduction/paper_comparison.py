"""Own results next to those that a paper reports."""

from collections.abc import KeysView, Sequence
from statistics import fmean, stdev

from headwise.studies import tables
from headwise.studies.analysis import Metric
from headwise.studies.papers import PublishedTable, ReportedValue
from headwise.studies.plan import Result
from headwise.studies.summary import format_number

SECONDS_PER_EPOCH = "seconds per epoch"

#: What follows the name of a model in the names of guided methods of tables 1 and 4 of Wang et al. (2022).
GUIDED = "+AG"


def compare_with_paper(results: Sequence[Result], published: PublishedTable) -> list[tables.TextTable]:
    """Return a table of reported and own values for each task for which the paper reports values of own methods."""
    paper_tables = []
    for task, methods in methods_by_task(results).items():
        rows = []
        if methods.isdisjoint(published.values.get(task, {})):
            continue
        for method, reported_values in published.values.get(task, {}).items():
            method_results = [result for result in results if (result.task, result.method) == (task, method)]
            for metric, reported in reported_values.items():
                own_values = [own_value(result, metric) for result in method_results]
                rows.append(paper_row(method, metric, reported, own_values))
        header = ("method", "metric", "paper", "ours", "ours − paper")
        paper_tables.append(tables.TextTable(f"{task}, compared with {published.location}", header, tuple(rows)))
    return paper_tables


def describe_missing(results: Sequence[Result], published: PublishedTable) -> list[str]:
    """Return why tasks are not compared with the paper's values; nothing if the paper reports no values at all."""
    own, lines = methods_by_task(results), []
    unknown = [task for task in own if task not in published.values]
    if unknown and published.values:
        lines.append(missing_line(published, f"on {', '.join(unknown)}", f"on {', '.join(published.values)}"))
    for task, names in own.items():
        reported = published.values.get(task, names)
        if names.isdisjoint(reported):
            methods = f"of {', '.join(names)} on {task}"
            lines.append(missing_line(published, methods, f"of {', '.join(reported)}"))
    return lines


def missing_line(published: PublishedTable, missing: str, reported: str) -> str:
    """Return the line that says which results have no counterpart in the paper."""
    return f"{published.location}, has no values {missing}, only {reported}. These results are not compared with it."


def methods_by_task(results: Sequence[Result]) -> dict[str, KeysView[str]]:
    """Return the methods of each task."""
    methods: dict[str, dict[str, None]] = {}
    for result in results:
        methods.setdefault(result.task, {})[result.method] = None
    return {task: names.keys() for task, names in methods.items()}


def own_value(result: Result, metric: str) -> float:
    """Return the metric of a run in the paper's unit."""
    if metric == SECONDS_PER_EPOCH:
        return float(result.metrics["train_seconds"]) / float(result.metrics["epochs"])
    primary = Metric.from_metrics(result.metrics)
    return Metric(metric, primary.higher_is_better, primary.split).value(result)


def build_time_tables(results: Sequence[Result]) -> list[tables.TextTable]:
    """Return, for each task, the seconds per epoch of each model without and with guides (table 4 of Wang et al.)."""
    time_tables = []
    for task in dict.fromkeys(result.task for result in results):
        seconds: dict[str, list[float]] = {}
        for result in (result for result in results if result.task == task):
            seconds.setdefault(result.method, []).append(own_value(result, SECONDS_PER_EPOCH))
        means = {method: fmean(values) for method, values in seconds.items()}
        rows = []
        for model, unguided in means.items():
            guided = means.get(f"{model}{GUIDED}")
            if guided is not None:
                ratio = f"{guided / unguided:.2f}×" if unguided else ""
                rows.append((model, f"{unguided:.2f}", f"{guided:.2f}", f"{guided - unguided:+.2f}", ratio))
        if rows:
            header = ("model", "unguided", "with guides", "difference", "ratio")
            time_tables.append(tables.TextTable(f"{task}, training seconds per epoch", header, tuple(rows)))
    return time_tables


def paper_row(method: str, metric: str, reported: ReportedValue, own_values: Sequence[float]) -> tuple[str, ...]:
    """
    >>> paper_row("plain", "accuracy", ReportedValue(93.01, 0.13), [92.0, 93.0])
    ('plain', 'accuracy', '93.01 ± 0.13', '92.50 ± 0.71', '−0.51')
    >>> paper_row("rpr", "accuracy", ReportedValue(93.14), [])
    ('rpr', 'accuracy', '93.14', '', '')
    """
    reported_cell = format_mean(reported.mean, reported.std)
    if not own_values:
        return method, metric, reported_cell, "", ""
    mean = fmean(own_values)
    own_cell = format_mean(mean, stdev(own_values) if len(own_values) > 1 else None)
    two_decimals = Metric("accuracy", True, "test")
    return method, metric, reported_cell, own_cell, format_number(mean - reported.mean, two_decimals, plus=True)


def format_mean(mean: float, std: float | None) -> str:
    """
    >>> format_mean(93.0, 0.131), format_mean(93.0, None)
    ('93.00 ± 0.13', '93.00')
    """
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"
