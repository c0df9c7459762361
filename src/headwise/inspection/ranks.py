"""Average ranks over several tasks, and which of them can be told apart."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from headwise.inspection import style


def draw_ranks(average: Mapping[str, float], critical: float) -> Figure:
    """A critical-difference picture (Demšar 2006): methods on a scale of ranks, bars over those alike.

    Args:
        average: the average rank of each method; 1 is best.
        critical: ranks that are closer cannot be told apart.

    Example:
        >>> figure = draw_ranks({"none": 2.4, "plain": 2.6, "distance-aware": 1.0}, critical=1.5)
    """
    order = sorted(average, key=lambda name: average[name])
    bars = together([average[name] for name in order], critical)
    last = max(len(order), 2)
    half = -(-len(order) // 2)  # the better half is named on the left
    with style.plot_style(6.5, 0.9 + 0.24 * half + 0.12 * len(bars)) as figure:
        axes = figure.subplots()
        axes.set_axis_off()
        axes.plot([1, last], [0, 0], color="#555555", linewidth=1.0)
        for whole in range(1, last + 1):
            axes.plot([whole, whole], [0, 0.2], color="#555555", linewidth=1.0)
            axes.text(whole, 0.3, str(whole), ha="center", va="bottom", fontsize=8)
        axes.plot([1, 1 + critical], [1.5, 1.5], "|-", color=style.PALETTE[3])
        axes.text(1 + critical + 0.05, 1.5, f"critical difference {critical:.2f}", ha="left", va="center")
        below = 0.5 * len(bars) + 0.3
        for place, name in enumerate(order):
            left = place < half
            level = -below - 0.4 - (place if left else len(order) - 1 - place)
            side, rank = (0.8 if left else last + 0.2), average[name]
            axes.plot([rank, rank, side], [0, level, level], color="#555555", linewidth=0.8)
            axes.plot([rank], [0], style.MARKERS[0], color=style.PALETTE[0])
            label = f"{name}  {rank:.2f} " if left else f" {rank:.2f}  {name}"
            axes.text(side, level, label, ha="right" if left else "left", va="center")
        for number, (first, end) in enumerate(bars, start=1):
            axes.plot([first - 0.04, end + 0.04], [-0.5 * number] * 2, color=style.PALETTE[3], linewidth=3.5)
        axes.set_xlim(1 - 0.45 * (last - 1), last + 0.45 * (last - 1))
        axes.set_ylim(-below - half, 2.0)
    return figure


def together(ranks: list[float], critical: float) -> list[tuple[float, float]]:
    """The first and last rank of each largest group that lies within the critical difference; ranks are in order.

    >>> together([1.0, 2.0, 2.5, 4.0], 1.6)
    [(1.0, 2.5), (2.5, 4.0)]
    """
    reach = [max(end for end in ranks if end - start <= critical) for start in ranks]
    spans = list(dict.fromkeys((start, end) for start, end in zip(ranks, reach, strict=True) if end > start))
    return [one for one in spans if not any(other[0] < one[0] and one[1] <= other[1] for other in spans)]
