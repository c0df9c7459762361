"""Figures of a study's results, drawn like those of the papers."""

import math
import re
from collections.abc import Sequence

from matplotlib.figure import Figure

from headwise.inspection import draw_boxes, draw_curves
from headwise.studies import tables
from headwise.studies.analysis import TaskComparison
from headwise.studies.report import CaptionedFigure
from headwise.studies.reproduction import LineChart


def name_figures(name: str, figures: Sequence[CaptionedFigure]) -> list[tuple[str, Figure]]:
    """Return the file names of figures: the name, and if there are several, what the caption says before its colon."""
    if len(figures) == 1:
        return [(name, figures[0][0])]
    labels = ["-".join(re.findall(r"[\w.+=-]+", caption.partition(":")[0])) for _, caption in figures]
    return [(f"{name}-{label}", figure) for label, (figure, _) in zip(labels, figures, strict=True)]


def draw_method_chart(task: TaskComparison) -> CaptionedFigure:
    """Draw the metric of each method. Return the figure and its caption."""
    values = {method.name: list(method.values.values()) for method in task.methods}
    return draw_boxes(values, x=tables.metric_label(task.metric)), f"{task.task}: one point per seed."


def draw_line_chart(task: TaskComparison, chart: LineChart) -> CaptionedFigure:
    """Draw the mean of each method over the chart's x-axis. Return the figure and its caption."""
    lines: dict[str, list[tuple[float, float]]] = {}
    single = [x for x in (chart.points[method.name][1] for method in task.methods) if len(x) == 1]
    end = max((x for (x,) in single), default=math.inf)  # a model can have fewer layers than the paper's
    for method in task.methods:
        line, x_values = chart.points[method.name]
        lines.setdefault(line, []).extend((min(x, end), method.mean) for x in x_values)
    figure = draw_curves(
        {line: [sorted(points)] for line, points in lines.items()}, x=chart.x_label, y=tables.metric_label(task.metric)
    )
    return figure, f"{task.task}: means over seeds, drawn like the paper's figure."
