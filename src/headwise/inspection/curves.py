"""Figures over training, as lines."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from headwise.inspection import style

Line = Sequence[tuple[float, float]]


def draw_curves(runs: Mapping[str, Sequence[Line]], *, x: str, y: str) -> Figure:
    """A thin line for each run, and a colour for each method.

    Args:
        runs: of each method its runs, each a sequence of points (x, y).
        x, y: what the axes show.

    Example:
        >>> figure = draw_curves({"plain": [[(0, 0.7), (1, 0.5)], [(0, 0.7), (1, 0.4)]]}, x="epoch", y="loss")
    """
    with style.plot_style(6.5, 3.4) as figure:
        axes = figure.subplots()
        for index, (name, lines) in enumerate(runs.items()):
            for number, line in enumerate(lines):
                axes.plot(
                    *zip(*line, strict=True),
                    label=name if number == 0 else None,
                    color=style.PALETTE[index % len(style.PALETTE)],
                    marker=style.MARKERS[index % len(style.MARKERS)],
                    markersize=3,
                    linewidth=1.0,
                    alpha=0.85,
                )
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(True)
        axes.legend()
    return figure
