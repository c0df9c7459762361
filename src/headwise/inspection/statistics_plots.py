"""Plots of head statistics: over a dataset, and shares of attention by distance."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from headwise.inspection import style
from headwise.inspection.head_statistics import MEASURES, HeadStatistics
from headwise.inspection.measures import distance_bin_names

#: The units of the measures that are not shares.
UNITS = {"distance": "tokens", "entropy": "bits"}

#: Heads are labeled up to this number.
MAX_LABELED_HEADS = 32


def draw_measures(models: Sequence[HeadStatistics]) -> Figure:
    """Draw each measure of each model as a grid of layers and heads. Models share the scale of a measure."""
    layers, heads = models[0].shape
    names = list(MEASURES)
    width, height = max(1.3, 0.11 * heads + 0.3), max(0.8, 0.11 * layers + 0.4)
    with style.plot_style(width * len(names) + 0.6, height * len(models) + 1.0) as figure:
        panels = figure.subplots(len(models), len(names), squeeze=False)
        for column, name in enumerate(names):
            values = [statistics.measures[name] for statistics in models]
            low = 0.0 if name not in UNITS else min(float(x.min()) for x in values)
            high = max(max(float(x.max()) for x in values), low + 1e-9)
            for row, x in enumerate(values):
                axes = panels[row][column]
                image = axes.imshow(x, cmap="cividis", vmin=low, vmax=high, aspect="equal")
                axes.set_xticks(range(0, heads, max(1, heads // 4)))
                axes.set_yticks(range(0, layers, max(1, layers // 4)))
                if row == 0:
                    axes.set_title(name)
                if row == len(models) - 1:
                    axes.set_xlabel("head")
            colorbar = figure.colorbar(image, ax=panels[:, column].tolist(), location="bottom", aspect=12, shrink=0.9)
            colorbar.set_label(UNITS.get(name, "share"), fontsize=8)
        for row, statistics in enumerate(models):
            panels[row][0].set_ylabel(f"{statistics.name}\nlayer" if len(models) > 1 else "layer")
    return figure


def draw_received(models: Sequence[HeadStatistics]) -> Figure:
    """Draw the received attention by relative position in the text: thin lines for heads, a thick line for the mean."""
    highest = max(float(statistics.received.max()) for statistics in models)
    with style.plot_style(3.0 * len(models) + 0.8, 2.9) as figure:
        panels = figure.subplots(1, len(models), squeeze=False, sharey=True)[0]
        for index, (axes, statistics) in enumerate(zip(panels, models, strict=True)):
            received = statistics.received
            positions = (np.arange(received.shape[2]) + 0.5) / received.shape[2]
            for layer in received:
                for head in layer:
                    axes.plot(positions, head, color="#999999", linewidth=0.5, alpha=0.5)
            mean = received.mean(axis=(0, 1))
            axes.plot(positions, mean, color=style.PALETTE[index], linewidth=2.2, label="mean of all heads")
            axes.axhline(1.0, color="#555555", linewidth=0.8, linestyle="--")
            axes.set_title(statistics.name)
            axes.set_xlabel("relative position in the text")
            axes.set_xlim(0, 1)
            axes.grid(True)
            if highest > 5:
                axes.set_yscale("symlog", linthresh=1.0)
                axes.set_yticks([0, 1, 2, 5, 10, 20], ["0", "1", "2", "5", "10", "20"])
                axes.set_ylim(0, highest * 1.1)
        panels[0].set_ylabel("received attention")
        panels[0].legend(loc="upper right")
    return figure


def draw_similarity(models: Sequence[HeadStatistics]) -> Figure:
    """Draw the correlation matrix of all heads' maps, ordered by cluster. Frames mark the clusters."""
    with style.plot_style(3.3 * len(models) + 0.9, 3.7) as figure:
        panels = figure.subplots(1, len(models), squeeze=False)[0]
        for axes, statistics in zip(panels, models, strict=True):
            order = np.lexsort((np.arange(len(statistics.clusters)), statistics.clusters))
            matrix = statistics.similarity[np.ix_(order, order)]
            image = axes.imshow(matrix, cmap=style.DIVERGING_COLORMAP, vmin=-1, vmax=1)
            sizes = np.bincount(statistics.clusters)
            for start, size in zip(np.cumsum([0, *sizes[:-1]]), sizes, strict=True):
                if size > 1:
                    corner = (float(start) - 0.5, float(start) - 0.5)
                    axes.add_patch(Rectangle(corner, size, size, fill=False, edgecolor="#000000", linewidth=1.0))
            heads = statistics.shape[1]
            if len(order) <= MAX_LABELED_HEADS:
                names = [f"{index // heads}·{index % heads}" for index in order]
                axes.set_xticks(range(len(order)), names, rotation=90, fontsize=6)
                axes.set_yticks(range(len(order)), names, fontsize=6)
            else:
                axes.set_xticks([])
                axes.set_yticks([])
            axes.set_xlabel(f"{len(order)} heads, {len(sizes)} clusters")
            axes.set_title(statistics.name)
        figure.colorbar(image, ax=panels.tolist(), label="correlation of maps", aspect=30, shrink=0.9)
    return figure


def draw_distance_shares(models: Mapping[str, NDArray[np.floating[Any]]]) -> Figure:
    """Draw the share of attention by distance: a row for each head, a column for each distance before and after it.

    Args:
        models: the shares of each model, (layers, heads, bins), as in `HeadStatistics.distance_shares`.

    Example:
        >>> import numpy as np
        >>> figure = draw_distance_shares({"plain": np.full((2, 2, 7), 1 / 7)})
    """
    num_layers, num_heads, _ = next(iter(models.values())).shape
    rows = num_layers * num_heads
    num_columns = max(shares.shape[2] for shares in models.values())
    width, height = 0.17 * num_columns + 0.6, min(9.0, max(1.2, 0.09 * rows))
    with style.plot_style(width * len(models) + 1.4, height + 1.6) as figure:
        panels = figure.subplots(1, len(models), squeeze=False, sharey=True)[0]
        norm = PowerNorm(0.5, vmin=0.0, vmax=max(float(shares.max()) for shares in models.values()))
        for axes, (name, shares) in zip(panels, models.items(), strict=True):
            image = axes.imshow(shares.reshape(rows, -1), cmap=style.MAP_COLORMAP, norm=norm, aspect="auto")
            num_bins = shares.shape[2] // 2
            names = [bin_name.partition("_")[2] or "self" for bin_name in distance_bin_names(num_bins)]
            axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
            axes.set_yticks([(layer + 0.5) * num_heads - 0.5 for layer in range(num_layers)], range(num_layers))
            axes.set_yticks([layer * num_heads - 0.5 for layer in range(1, num_layers)], minor=True)
            axes.grid(True, which="minor", axis="y", color="#888888", linewidth=0.5)
            axes.tick_params(length=0, which="both")
            axes.axvline(num_bins - 0.5, color="#888888", linewidth=0.5)
            axes.axvline(num_bins + 0.5, color="#888888", linewidth=0.5)
            axes.set_title(name)
            axes.set_xlabel("tokens before the query    |    after it")
        panels[0].set_ylabel("layer (a row for each head)")
        figure.colorbar(image, ax=panels.tolist(), label="share of attention", aspect=30)
    return figure
