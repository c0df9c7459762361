"""What distance-aware heads have learnt."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from headwise.attention import DistanceAware
from headwise.inspection import style

#: Below 0 blue, above 0 red, 0 white.
SIGNED_COLOURS = "RdBu_r"


def draw_distances(layers: Sequence[DistanceAware], *, reach: int = 30, names: Sequence[str] | None = None) -> Figure:
    """w and v of every head of every layer, and what they make of the distance: f, by which scores are multiplied.

    Args:
        layers: the schemes of a model's layers, in their order.
        reach: the largest distance shown.
        names: what each is called, where they are no layers of one model: levels, such as words and clicked news, as in
            figure 7 of the paper, or models.

    Example:
        >>> import headwise as hw
        >>> figure = draw_distances([hw.DistanceAware(heads=4), hw.DistanceAware(heads=4)])
        >>> figure = draw_distances([hw.DistanceAware(heads=4)] * 2, names=["words", "clicked news"], reach=50)
    """
    learnt = {
        "w: below 0 prefers near tokens, above 0 far ones": [numbers(layer.w) for layer in layers],
        "v: how sharply": [numbers(layer.v) for layer in layers if layer.v is not None],
    }
    learnt = {title: rows for title, rows in learnt.items() if rows}
    with style.plot_style(3.4 * len(learnt) + 3.2, 3.0) as figure:
        *panels, curves = figure.subplots(1, len(learnt) + 1)
        for axes, (title, rows) in zip(panels, learnt.items(), strict=True):
            grid = np.stack(rows)
            most = float(np.abs(grid).max()) or 1.0
            image = axes.imshow(grid, cmap=SIGNED_COLOURS, vmin=-most, vmax=most, aspect="auto")
            axes.set_title(title)
            axes.set_xlabel("head")
            axes.set_xticks(range(grid.shape[1]))
            axes.set_yticks(range(grid.shape[0]), names)
            if names is None:
                axes.set_ylabel("layer")
            figure.colorbar(image, ax=axes, location="bottom", shrink=0.8, aspect=30)
        for layer in layers:
            for w, f in zip(numbers(layer.w), numbers(layer.coefficients(reach + 1)), strict=True):
                curves.plot(f, color=style.PALETTE[3 if w > 0 else 0], linewidth=0.8, alpha=0.6)
        curves.set_title("f: what a score is multiplied by")
        curves.set_xlabel("distance |i−j|")
        curves.grid(True)
    return figure


def numbers(x: Tensor) -> NDArray[np.float64]:
    return np.asarray(x.detach().cpu(), dtype=np.float64)
