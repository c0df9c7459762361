"""Models side by side on one text, drawn as in Wang et al. 2022: the averaged map, and all heads in a plane."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from headwise.inspection import style
from headwise.inspection.distances import SIGNED_COLOURS
from headwise.inspection.maps import label

Maps = NDArray[np.floating[Any]]  # (heads of all layers, N, N)


def draw_averages(models: Mapping[str, Maps], tokens: Sequence[str], *, most: int = 15) -> Figure:
    """The mean of all heads' maps, of each model, and what differs from the first (figure 4).

    Args:
        models: of each model the maps of all heads of all layers; the first is the one that others differ from.
        tokens: the text's.
        most: how many tokens are shown; 15 in the paper.

    Example:
        >>> import numpy as np
        >>> figure = draw_averages({"plain": np.full((4, 2, 2), 0.5), "guided": np.full((4, 2, 2), 0.5)}, ["a", "b"])
    """
    few = list(tokens[:most])
    means = {name: np.asarray(maps).mean(axis=0)[: len(few), : len(few)] for name, maps in models.items()}
    first = next(iter(means.values()))
    apart = [mean - first for mean in list(means.values())[1:]]
    cell = max(2.2, 0.17 * len(few))
    rows = 1 + bool(apart)
    with style.plot_style(cell * len(means) + 1.8, (cell + 0.4) * rows + 0.9) as figure:
        panels = figure.subplots(rows, len(means), squeeze=False)
        scale = PowerNorm(0.5, vmin=0.0, vmax=max(float(mean.max()) for mean in means.values()))
        for axes in panels.flat:
            axes.set_axis_off()
        for column, (name, mean) in enumerate(means.items()):
            image = panels[0][column].imshow(mean, cmap=style.MAP_COLOURS, norm=scale)
            panels[0][column].set_title(name)
        figure.colorbar(image, ax=panels[0].tolist(), aspect=25, fraction=0.05, label="mean weight of all heads")
        if apart:
            widest = max(float(np.abs(x).max()) for x in apart) or 1.0
            for column, x in enumerate(apart, 1):
                difference = panels[1][column].imshow(x, cmap=SIGNED_COLOURS, vmin=-widest, vmax=widest)
                panels[1][column].set_title(f"minus {next(iter(means))}")
            figure.colorbar(difference, ax=panels[1].tolist(), aspect=25, fraction=0.05, label="difference")
        for row, line in enumerate(panels):
            drawn = [axes for axes in line if axes.images]
            for axes in drawn:
                axes.set_axis_on()
                label(axes.yaxis, few if axes is drawn[0] else [])
                label(axes.xaxis, few if row == rows - 1 or (column_of(axes, line) == 0) else [], rotation=90)
    return figure


def column_of(axes: Any, line: Any) -> int:
    return list(line).index(axes)


def draw_components(models: Mapping[str, Maps], layers: int) -> Figure:
    """All heads' maps in the plane of their first two principal components, which all models share (figure 5).

    The farther apart points are, the more different are the maps.

    Args:
        models: of each model the maps of all heads, layer after layer.
        layers: how many there are.

    Example:
        >>> import numpy as np
        >>> figure = draw_components({"plain": np.random.rand(4, 3, 3), "guided": np.random.rand(4, 3, 3)}, layers=2)
    """
    flat = {name: np.asarray(maps).reshape(len(maps), -1) for name, maps in models.items()}
    together = np.concatenate(list(flat.values()))
    components = PCA(n_components=2, random_state=0).fit(together)
    shares = 100 * np.nan_to_num(components.explained_variance_ratio_)
    with style.plot_style(2.75 * len(flat) + 1.0, 3.1) as figure:
        panels = figure.subplots(1, len(flat), squeeze=False, sharex=True, sharey=True)[0]
        for axes, (name, maps) in zip(panels, flat.items(), strict=True):
            places = components.transform(maps)
            layer = np.arange(len(maps)) // max(1, len(maps) // layers)
            points = axes.scatter(
                *places.T,
                c=layer,
                cmap="viridis",
                vmin=-0.5,
                vmax=layers - 0.5,
                s=22,
                linewidths=0.4,
                edgecolors="white",
            )
            spread = float(np.sqrt(np.square(maps - maps.mean(axis=0)).sum(axis=1).mean()))
            axes.set_title(f"{name}\nspread {spread:.2f}", fontsize=9)
            axes.set_xlabel(f"1st component, {shares[0]:.0f}%")
            axes.grid(True)
        panels[0].set_ylabel(f"2nd component, {shares[1]:.0f}%")
        step = max(1, layers // 6)
        figure.colorbar(points, ax=panels.tolist(), label="layer", ticks=range(0, layers, step), aspect=25)
    return figure
