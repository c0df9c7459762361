"""Figures of several runs, method by method."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from headwise.inspection import style


def draw_boxes(runs: Mapping[str, Sequence[float]], *, x: str) -> Figure:
    """A box for each method, from quartile to quartile with a line at the median, and a point for each run.

    Args:
        runs: of each method its figures, one for each seed.
        x: what the figures are.

    Example:
        >>> figure = draw_boxes({"none": [90.1, 90.4, 89.9], "distance-aware": [90.6, 90.5, 90.9]}, x="accuracy, %")
    """
    with style.plot_style(6.5, 0.9 + 0.45 * len(runs)) as figure:
        axes = figure.subplots()
        for row, values in enumerate(runs.values()):
            colour = style.PALETTE[row % len(style.PALETTE)]
            axes.boxplot(
                list(values),
                positions=[row],
                orientation="horizontal",
                widths=0.5,
                whis=(0, 100),
                showfliers=False,
                manage_ticks=False,
                boxprops={"color": colour},
                whiskerprops={"color": colour},
                capprops={"color": colour},
                medianprops={"color": colour, "linewidth": 2.5},
            )
            axes.plot(values, [row] * len(values), style.MARKERS[row % len(style.MARKERS)], color=colour, alpha=0.7)
        axes.set_yticks(range(len(runs)), list(runs))
        axes.set_ylim(len(runs) - 0.4, -0.6)
        axes.set_xlabel(x)
        axes.grid(True, axis="x")
    return figure
