"""What distance-aware heads learned, drawn as in Wu et al. 2021: figures 1, 2, 6 and 7."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from headwise.attention import DistanceAware
from headwise.inspection import style
from headwise.inspection.distances import SIGNED_COLOURS, numbers


def draw_sigmoids(layers: Sequence[DistanceAware], *, reach: float = 8.0) -> Figure:
    """The learnable sigmoid f(R; v) of every head, over the weighted distance R (figure 1).

    Args:
        layers: the schemes of a model's layers.
        reach: the largest R, either way.

    Raises:
        ValueError: the layers map distances in another way, without v.

    Example:
        >>> import headwise as hw
        >>> figure = draw_sigmoids([hw.DistanceAware(heads=4, v_std=1.0)])
    """
    values = np.sort(np.concatenate([numbers(layer.v) for layer in layers if layer.v is not None] or [np.empty(0)]))
    if not values.size:
        raise ValueError("layers have no v: only the mapping 'learnable-sigmoid' has one")
    x = np.linspace(-reach, reach, 201)
    most = float(np.abs(values).max()) or 1.0
    colours = ScalarMappable(Normalize(-most, most), cmap="cividis")
    with style.plot_style(5.6, 3.4) as figure:
        axes = figure.subplots()
        axes.axvline(0.0, color="#BBBBBB", linewidth=0.8)
        axes.axhline(1.0, color="#BBBBBB", linewidth=0.8)
        for v in values:
            axes.plot(x, (1 + np.exp(v)) / (1 + np.exp(v - x)), color=colours.to_rgba(v), linewidth=1.2, alpha=0.9)
        axes.set_xlabel("weighted distance R = w · |i−j|")
        axes.set_ylabel("f(R; v)")
        axes.set_ylim(bottom=0.0)
        axes.grid(True)
        figure.colorbar(colours, ax=axes, label="learned v", aspect=30)
    return figure


def draw_coefficients(layers: Sequence[DistanceAware], *, tokens: int = 24, most: int = 8) -> Figure:
    """By what scores are multiplied: a matrix over queries and keys for some heads, by their w (figure 2).

    Args:
        layers: the schemes of a model's layers.
        tokens: the length of the text.
        most: how many heads are shown, spread evenly from the lowest w to the highest.

    Example:
        >>> import headwise as hw
        >>> figure = draw_coefficients([hw.DistanceAware(heads=4, w_std=1.0)])
    """
    heads = [(layer, head, w) for layer, own in enumerate(layers) for head, w in enumerate(numbers(own.w))]
    heads.sort(key=lambda found: found[2])
    shown = [heads[at] for at in np.unique(np.linspace(0, len(heads) - 1, min(most, len(heads))).round().astype(int))]
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    apart = np.abs(np.arange(tokens)[:, None] - np.arange(tokens))
    of_distance = [numbers(layer.coefficients(tokens)) for layer in layers]
    matrices = [of_distance[layer][head][apart] for layer, head, _ in shown]
    low, high = min(x.min() for x in matrices), max(x.max() for x in matrices)
    scale = TwoSlopeNorm(1.0, vmin=min(low, 0.99), vmax=max(high, 1.01))
    with style.plot_style(1.75 * columns + 0.9, 2.15 * rows + 0.2) as figure:
        panels = figure.subplots(rows, columns, squeeze=False)
        for axes in panels.flat:
            axes.set_axis_off()
        for axes, (layer, head, w), matrix in zip(panels.flat, shown, matrices, strict=False):
            axes.set_axis_on()
            image = axes.imshow(matrix, cmap=SIGNED_COLOURS, norm=scale, interpolation="nearest")
            v = layers[layer].v
            told = "" if v is None else f", v = {signed(numbers(v)[head])}"
            axes.set_title(f"layer {layer}, head {head}\nw = {signed(w)}{told}", fontsize=8)
            axes.set_xticks([0, tokens - 1])
            axes.set_yticks([0, tokens - 1])
        bar = figure.colorbar(image, ax=panels, aspect=30, fraction=0.04)
        bar.set_label("f: above 1 promoted, below 1 diminished")
    return figure


def draw_sorted(models: Mapping[str, Sequence[Sequence[DistanceAware]]]) -> Figure:
    """w and v of all heads, lowest first; of several runs their mean and standard deviation (figures 6 and 7).

    Args:
        models: of each model its runs (seeds), each the schemes of its layers. Heads are sorted within a run, so that
            they do not correspond to heads' numbers, as in the paper.

    Example:
        >>> import headwise as hw
        >>> runs = [[hw.DistanceAware(heads=4)] for seed in range(3)]
        >>> figure = draw_sorted({"distance-aware": runs})
    """
    has_v = all(layer.v is not None for runs in models.values() for layers in runs for layer in layers)
    names = {"w": "w: below 0 near, above 0 far", "v": "v: how strongly"} if has_v else {"w": "w"}
    with style.plot_style(3.6 * len(names), 3.0) as figure:
        panels = figure.subplots(1, len(names), squeeze=False)[0]
        for axes, (name, title) in zip(panels, names.items(), strict=True):
            axes.axhline(0.0, color="#555555", linewidth=1.0)
            for index, (model, runs) in enumerate(models.items()):
                values = np.stack([sorted_values(layers, name) for layers in runs])
                mean = values.mean(axis=0)
                colour = style.PALETTE[index % len(style.PALETTE)]
                places = np.arange(1, len(mean) + 1)
                spread = values.std(axis=0, ddof=1) if len(values) > 1 else None
                if len(models) == 1:
                    axes.bar(places, mean, yerr=spread, color=colour, error_kw={"elinewidth": 1.0, "capsize": 2})
                else:
                    marker = style.MARKERS[index % len(style.MARKERS)]
                    line = {"color": colour, "marker": marker, "markersize": 3.5, "linewidth": 1.0, "label": model}
                    axes.errorbar(places, mean, yerr=spread, elinewidth=0.8, **line)
            axes.set_title(title)
            axes.set_xlabel("heads, lowest first")
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.set_axisbelow(True)
            axes.grid(True, axis="y")
        if len(models) > 1:
            panels[0].legend()
    return figure


def sorted_values(layers: Sequence[DistanceAware], name: str) -> NDArray[np.float64]:
    return np.sort(np.concatenate([numbers(getattr(layer, name)) for layer in layers]))


def signed(x: float) -> str:
    """
    >>> signed(-0.5), signed(-0.001)
    ('−0.50', '0.00')
    """
    return f"{x:z.2f}".replace("-", "−")
