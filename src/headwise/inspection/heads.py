"""Heads over a data set, as figures."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from headwise.inspection import style
from headwise.inspection.distances import SIGNED_COLOURS
from headwise.inspection.head_statistics import MEASURES, HeadStatistics


def draw_measures(models: Sequence[HeadStatistics]) -> Figure:
    """A grid of layers and heads for each measure and model; models share a measure's scale."""
    layers, heads = models[0].shape
    names = list(MEASURES)
    width, height = max(1.3, 0.11 * heads + 0.3), max(0.8, 0.11 * layers + 0.4)
    with style.plot_style(width * len(names) + 0.6, height * len(models) + 1.0) as figure:
        panels = figure.subplots(len(models), len(names), squeeze=False)
        for column, name in enumerate(names):
            values = [found.measures[name] for found in models]
            low = 0.0 if name not in ("distance", "entropy") else min(float(x.min()) for x in values)
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
            bar = figure.colorbar(image, ax=panels[:, column].tolist(), location="bottom", aspect=12, shrink=0.9)
            bar.set_label(UNITS.get(name, "share"), fontsize=8)
        for row, found in enumerate(models):
            panels[row][0].set_ylabel(f"{found.name}\nlayer" if len(models) > 1 else "layer")
    return figure


UNITS = {"distance": "tokens", "entropy": "bits"}


def draw_received(models: Sequence[HeadStatistics]) -> Figure:
    """What tokens receive by their place in a text: a thin line for each head, a thick one for all."""
    most = max(float(found.received.max()) for found in models)
    with style.plot_style(3.0 * len(models) + 0.8, 2.9) as figure:
        panels = figure.subplots(1, len(models), squeeze=False, sharey=True)[0]
        for index, (axes, found) in enumerate(zip(panels, models, strict=True)):
            places = (np.arange(found.received.shape[2]) + 0.5) / found.received.shape[2]
            for layer in found.received:
                for head in layer:
                    axes.plot(places, head, color="#999999", linewidth=0.5, alpha=0.5)
            mean = found.received.mean(axis=(0, 1))
            axes.plot(places, mean, color=style.PALETTE[index], linewidth=2.2, label="all heads")
            axes.axhline(1.0, color="#555555", linewidth=0.8, linestyle="--")
            axes.set_title(found.name)
            axes.set_xlabel("place in the text")
            axes.set_xlim(0, 1)
            axes.grid(True)
            if most > 5:
                axes.set_yscale("symlog", linthresh=1.0)
                axes.set_yticks([0, 1, 2, 5, 10, 20], ["0", "1", "2", "5", "10", "20"])
                axes.set_ylim(0, most * 1.1)
        panels[0].set_ylabel("what a token receives")
        panels[0].legend(loc="upper right")
    return figure


def draw_similarity(models: Sequence[HeadStatistics]) -> Figure:
    """The correlation of all heads' maps, in the order of their clusters, whose bounds are drawn."""
    with style.plot_style(3.3 * len(models) + 0.9, 3.7) as figure:
        panels = figure.subplots(1, len(models), squeeze=False)[0]
        for axes, found in zip(panels, models, strict=True):
            order = np.lexsort((np.arange(len(found.clusters)), found.clusters))
            image = axes.imshow(found.similarity[np.ix_(order, order)], cmap=SIGNED_COLOURS, vmin=-1, vmax=1)
            sizes = np.bincount(found.clusters)
            for start, size in zip(np.cumsum([0, *sizes[:-1]]), sizes, strict=True):
                if size > 1:
                    corners = {"xy": (start - 0.5, start - 0.5), "width": size, "height": size}
                    axes.add_patch(_frame(**corners))
            heads = found.shape[1]
            if len(order) <= 32:
                names = [f"{at // heads}·{at % heads}" for at in order]
                axes.set_xticks(range(len(order)), names, rotation=90, fontsize=6)
                axes.set_yticks(range(len(order)), names, fontsize=6)
            else:
                axes.set_xticks([])
                axes.set_yticks([])
            axes.set_xlabel(f"{len(order)} heads, {len(sizes)} clusters")
            axes.set_title(found.name)
        figure.colorbar(image, ax=panels.tolist(), label="correlation of maps", aspect=30, shrink=0.9)
    return figure


def _frame(xy: tuple[float, float], width: float, height: float) -> Rectangle:
    return Rectangle(xy, width, height, fill=False, edgecolor="#000000", linewidth=1.0)
