"""Plots of the metrics of several runs by method: boxes, curves, paired differences and average ranks."""

from collections.abc import Mapping, Sequence
from math import isfinite

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from headwise.inspection import style

#: The points (x, y) of one run.
Curve = Sequence[tuple[float, float]]


def draw_boxes(runs: Mapping[str, Sequence[float]], *, x: str) -> Figure:
    """Draw a box plot for each method: quartiles, median, range and the values of all runs.

    Args:
        runs: the values of each method, one for each seed.
        x: the label of the x axis.

    Example:
        >>> figure = draw_boxes({"none": [90.1, 90.4, 89.9], "distance-aware": [90.6, 90.5, 90.9]}, x="accuracy, %")
    """
    with style.plot_style(6.5, 0.9 + 0.45 * len(runs)) as figure:
        axes = figure.subplots()
        for row, values in enumerate(runs.values()):
            color = style.PALETTE[row % len(style.PALETTE)]
            axes.boxplot(
                list(values),
                positions=[row],
                orientation="horizontal",
                widths=0.5,
                whis=(0, 100),
                showfliers=False,
                manage_ticks=False,
                boxprops={"color": color},
                whiskerprops={"color": color},
                capprops={"color": color},
                medianprops={"color": color, "linewidth": 2.5},
            )
            axes.plot(values, [row] * len(values), style.MARKERS[row % len(style.MARKERS)], color=color, alpha=0.7)
        axes.set_yticks(range(len(runs)), list(runs))
        axes.set_ylim(len(runs) - 0.4, -0.6)
        axes.set_xlabel(x)
        axes.grid(True, axis="x")
    return figure


def draw_curves(runs: Mapping[str, Sequence[Curve]], *, x: str, y: str, with_legend: bool = True) -> Figure:
    """Draw a line for each run, in one color per method.

    Args:
        runs: the curves of each method, one for each run.
        x, y: the labels of the axes.
        with_legend: whether the methods are named.

    Example:
        >>> figure = draw_curves({"plain": [[(0, 0.7), (1, 0.5)], [(0, 0.7), (1, 0.4)]]}, x="epoch", y="loss")
    """
    with style.plot_style(6.5, 3.4) as figure:
        axes = figure.subplots()
        for method, (name, curves) in enumerate(runs.items()):
            for run, curve in enumerate(curves):
                axes.plot(
                    *zip(*curve, strict=True),
                    label=name if run == 0 else None,
                    color=style.PALETTE[method % len(style.PALETTE)],
                    marker=style.MARKERS[method % len(style.MARKERS)],
                    markersize=3,
                    linewidth=1.0,
                    alpha=0.85,
                )
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.ticklabel_format(useOffset=False)
        set_curve_limits(axes, [point for curves in runs.values() for curve in curves for point in curve])
        axes.grid(True)
        if with_legend:
            axes.legend()
    return figure


def set_curve_limits(axes: Axes, points: Curve) -> None:
    """Start the x axis at 0, with ticks at whole numbers, and show at least 10% of the largest value on the y axis.

    A curve with one point, or one that is almost constant, is then not magnified.
    """
    xs, ys = [x for x, _ in points], [y for _, y in points if isfinite(y)]
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(min(0.0, *xs), max(xs) * 1.05 if len(set(xs)) > 1 else max(xs) + 1)
    if ys:
        span = max(max(ys) - min(ys), 0.1 * max(map(abs, ys))) or 1.0
        center = (max(ys) + min(ys)) / 2
        axes.set_ylim(center - 0.6 * span, center + 0.6 * span)


def draw_differences(
    differences: Mapping[str, Sequence[float]],
    *,
    x: str,
    intervals: Mapping[str, tuple[float, float]] | None = None,
) -> Figure:
    """Draw the paired differences of each method to a control: a point for each pair of runs and a bar at the mean.

    Args:
        differences: the differences of each method to the control, one for each seed.
        x: the label of the x axis.
        intervals: the confidence interval of each method's difference, drawn below its points.

    Example:
        >>> figure = draw_differences({"guided": [0.5, -0.2]}, x="accuracy minus the unguided model's, points")
    """
    with style.plot_style(6.5, 0.9 + 0.55 * len(differences)) as figure:
        axes = figure.subplots()
        axes.axvline(0.0, color="#555555", linewidth=1.0)
        extents = [abs(value) for values in differences.values() for value in values]
        for row, (name, values) in enumerate(differences.items()):
            color = style.PALETTE[(row + 1) % len(style.PALETTE)]  # color 0 is the control's
            marker = style.MARKERS[(row + 1) % len(style.MARKERS)]
            mean = sum(values) / len(values)
            axes.plot(values, [row] * len(values), marker, color=color, markersize=7, alpha=0.8)
            axes.plot([mean, mean], [row - 0.25, row + 0.25], color=color, linewidth=2.5)
            if intervals is not None and name in intervals:
                axes.plot(intervals[name], [row + 0.25] * 2, "|-", color=color, linewidth=1.5)
                extents += map(abs, intervals[name])
        axes.set_yticks(range(len(differences)), list(differences))
        axes.set_ylim(len(differences) - 0.5, -0.5)
        max_extent = max(filter(isfinite, extents), default=0.0) or 1.0
        axes.set_xlim(-1.15 * max_extent, 1.15 * max_extent)  # 0 is in the center
        axes.set_xlabel(x)
        axes.grid(True, axis="x")
    return figure


def draw_ranks(average_ranks: Mapping[str, float], critical_difference: float) -> Figure:
    """Draw a critical difference diagram (Demšar 2006): bars join methods that do not differ significantly.

    Args:
        average_ranks: the average rank of each method; 1 is best.
        critical_difference: smaller differences of average ranks are not significant.

    Example:
        >>> figure = draw_ranks({"none": 2.4, "plain": 2.6, "distance-aware": 1.0}, critical_difference=1.5)
    """
    methods = sorted(average_ranks, key=lambda name: average_ranks[name])
    bars = find_similar_ranks([average_ranks[name] for name in methods], critical_difference)
    max_rank = max(len(methods), 2)
    half = -(-len(methods) // 2)  # the better half is labeled on the left
    with style.plot_style(6.5, 0.9 + 0.24 * half + 0.12 * len(bars)) as figure:
        axes = figure.subplots()
        axes.set_axis_off()
        axes.plot([1, max_rank], [0, 0], color="#555555", linewidth=1.0)
        for tick in range(1, max_rank + 1):
            axes.plot([tick, tick], [0, 0.2], color="#555555", linewidth=1.0)
            axes.text(tick, 0.3, str(tick), ha="center", va="bottom", fontsize=8)
        axes.plot([1, 1 + critical_difference], [1.5, 1.5], "|-", color=style.PALETTE[3])
        scale_label = f"critical difference {critical_difference:.2f}"
        axes.text(1 + critical_difference + 0.05, 1.5, scale_label, ha="left", va="center")
        bars_height = 0.5 * len(bars) + 0.3
        for index, name in enumerate(methods):
            on_left = index < half
            level = -bars_height - 0.4 - (index if on_left else len(methods) - 1 - index)
            label_x, rank = (0.8 if on_left else max_rank + 0.2), average_ranks[name]
            axes.plot([rank, rank, label_x], [0, level, level], color="#555555", linewidth=0.8)
            axes.plot([rank], [0], style.MARKERS[0], color=style.PALETTE[0])
            label = f"{name}  {rank:.2f} " if on_left else f" {rank:.2f}  {name}"
            axes.text(label_x, level, label, ha="right" if on_left else "left", va="center")
        for number, (low, high) in enumerate(bars, start=1):
            axes.plot([low - 0.04, high + 0.04], [-0.5 * number] * 2, color=style.PALETTE[3], linewidth=3.5)
        axes.set_xlim(1 - 0.45 * (max_rank - 1), max_rank + 0.45 * (max_rank - 1))
        axes.set_ylim(-bars_height - half, 2.0)
    return figure


def find_similar_ranks(ranks: list[float], critical_difference: float) -> list[tuple[float, float]]:
    """Return the lowest and highest rank of each maximal group within the critical difference.

    Args:
        ranks: the average ranks, in ascending order.
        critical_difference: the largest difference within a group.

    Example:
        >>> find_similar_ranks([1.0, 2.0, 2.5, 4.0], 1.6)
        [(1.0, 2.5), (2.5, 4.0)]
    """
    highest = [max(high for high in ranks if high - low <= critical_difference) for low in ranks]
    groups = list(dict.fromkeys((low, high) for low, high in zip(ranks, highest, strict=True) if high > low))
    return [group for group in groups if not any(other[0] < group[0] and group[1] <= other[1] for other in groups)]
