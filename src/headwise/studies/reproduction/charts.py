"""Figures of a study's results, drawn like those of the papers."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from headwise.inspection import draw_boxes, draw_curves
from headwise.studies import tables
from headwise.studies.analysis import TaskComparison
from headwise.studies.report import CaptionedFigure
from headwise.studies.reproduction import LineChart


def number_figures(name: str, figures: Sequence[Figure]) -> list[tuple[str, Figure]]:
    """Return the file names of figures: the name, with a number if there are several."""
    return [(f"{name}-{i}" if len(figures) > 1 else name, figure) for i, figure in enumerate(figures, 1)]


def draw_method_chart(task: TaskComparison) -> CaptionedFigure:
    """Draw the metric of each method. Return the figure and its caption."""
    values = {method.name: list(method.values.values()) for method in task.methods}
    return draw_boxes(values, x=tables.metric_label(task.metric)), f"{task.task}: one point per seed."


def draw_line_chart(task: TaskComparison, chart: LineChart) -> CaptionedFigure:
    """Draw the mean of each method over the chart's x-axis. Return the figure and its caption."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for method in task.methods:
        line, x_values = chart.points[method.name]
        lines.setdefault(line, []).extend((x, method.mean) for x in x_values)
    figure = draw_curves(
        {line: [sorted(points)] for line, points in lines.items()}, x=chart.x_label, y=tables.metric_label(task.metric)
    )
    return figure, f"{task.task}: means over seeds, drawn like the paper's figure."
