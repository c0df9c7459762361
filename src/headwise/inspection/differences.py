"""Paired differences to a control, run by run."""

from collections.abc import Mapping, Sequence
from math import isfinite

from matplotlib.figure import Figure

from headwise.inspection import style


def draw_differences(
    differences: Mapping[str, Sequence[float]],
    *,
    x: str,
    intervals: Mapping[str, tuple[float, float]] | None = None,
) -> Figure:
    """A row of points for each method, one for each pair of runs, a bar at their mean, and a line at 0, no difference.

    Args:
        differences: of each method its differences to the control, one for each seed.
        x: what is being subtracted, and its unit.
        intervals: of each method from where to where its difference may lie, drawn as a line below its points.

    Example:
        >>> figure = draw_differences({"guided": [0.5, -0.2]}, x="accuracy minus the unguided model's, points")
    """
    with style.plot_style(6.5, 0.9 + 0.55 * len(differences)) as figure:
        axes = figure.subplots()
        axes.axvline(0.0, color="#555555", linewidth=1.0)
        ends = [abs(value) for values in differences.values() for value in values]
        for row, (name, values) in enumerate(differences.items()):
            colour = style.PALETTE[(row + 1) % len(style.PALETTE)]  # the first is the control's
            marker = style.MARKERS[(row + 1) % len(style.MARKERS)]
            mean = sum(values) / len(values)
            axes.plot(values, [row] * len(values), marker, color=colour, markersize=7, alpha=0.8)
            axes.plot([mean, mean], [row - 0.25, row + 0.25], color=colour, linewidth=2.5)
            if intervals is not None and name in intervals:
                axes.plot(intervals[name], [row + 0.25] * 2, "|-", color=colour, linewidth=1.5)
                ends += map(abs, intervals[name])
        axes.set_yticks(range(len(differences)), list(differences))
        axes.set_ylim(len(differences) - 0.5, -0.5)
        widest = max(filter(isfinite, ends), default=0.0) or 1.0
        axes.set_xlim(-1.15 * widest, 1.15 * widest)  # 0 in the middle: neither side looks favoured
        axes.set_xlabel(x)
        axes.grid(True, axis="x")
    return figure
