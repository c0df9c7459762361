"""Average ranks over several tasks, and which of them can be told apart."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from headwise.inspection import style


def draw_ranks(average: Mapping[str, float], critical: float) -> Figure:
    """A critical-difference picture (Demšar 2006): methods on a scale of ranks, bars over those that are not told apart.

    Args:
        average: the average rank of each method; 1 is best.
        critical: ranks that are closer cannot be told apart.

    Example:
        >>> figure = draw_ranks({"none": 2.4, "plain": 2.6, "distance-aware": 1.0}, critical=1.5)
    """
    order = sorted(average, key=lambda name: average[name])
    bars = together([average[name] for name in order], critical)
    top = len(bars) * 0.35 + 0.4
    with style.drawing(6.5, 1.0 + 0.26 * len(order) + 0.3 * len(bars)) as figure:
        axes = figure.subplots()
        last = max(len(order), 2)
        half = -(-len(order) // 2)  # the better half is named on the left
        for place, name in enumerate(order):
            left = place < half
            level = -(place if left else len(order) - 1 - place) - 1.0
            side = 0.7 if left else last + 0.3
            rank = average[name]
            axes.plot([rank, rank, side], [top, level, level], color="#555555", linewidth=0.8)
            axes.plot([rank], [top], "o", color=style.PALETTE[0], markersize=5)
            label = f"{name}  {rank:.2f}"
            axes.text(side, level, f"{label} " if left else f" {label}", ha="right" if left else "left", va="center")
        for number, (first, end) in enumerate(bars):
            height = top - 0.35 * (number + 1)
            axes.plot([first - 0.04, end + 0.04], [height, height], color=style.PALETTE[3], linewidth=3.5)
        axes.plot([1, 1 + critical], [top + 1.1, top + 1.1], "|-", color=style.PALETTE[3], linewidth=1.5)
        axes.text(1 + critical / 2, top + 1.25, f"critical difference {critical:.2f}", ha="center", va="bottom")
        axes.set_xlim(min(1.0, 0.7) - 0.05, max(last + 0.35, 1 + critical))
        axes.set_ylim(-half - 0.6, top + 2.0)
        axes.spines["top"].set_visible(False)
        axes.spines["left"].set_visible(False)
        axes.spines["bottom"].set_position(("data", top))
        axes.xaxis.set_ticks_position("top")
        axes.set_xticks(range(1, last + 1))
        axes.set_yticks([])
    return figure


def together(ranks: list[float], critical: float) -> list[tuple[float, float]]:
    """The first and last rank of each largest group that lies within the critical difference; ranks are in order.

    >>> together([1.0, 2.0, 2.5, 4.0], 1.6)
    [(1.0, 2.5), (2.5, 4.0)]
    """
    reach = [max(end for end in ranks if end - start <= critical) for start in ranks]
    spans = [(start, end) for start, end in zip(ranks, reach, strict=True) if end > start]
    return [one for one in spans if not any(other[0] < one[0] and one[1] <= other[1] for other in spans)]
