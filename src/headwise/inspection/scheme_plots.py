"""Plots of the learned parameters of distance-aware heads, among them figures 1, 2, 6 and 7 of Wu et al. (2021)."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from headwise.attention import DistanceAware
from headwise.inspection import style
from headwise.inspection.measures import to_numpy


def draw_distances(
    layers: Sequence[DistanceAware], *, max_distance: int = 30, names: Sequence[str] | None = None
) -> Figure:
    """Draw w and v of all heads of all layers, and their distance coefficients f.

    Args:
        layers: the schemes of a model's layers, in order.
        max_distance: the largest distance shown.
        names: the labels of the rows, if these are not the layers of one model but, for example, the levels of a
            recommender (figure 7) or several models.

    Example:
        >>> import headwise as hw
        >>> figure = draw_distances([hw.DistanceAware(heads=4), hw.DistanceAware(heads=4)])
        >>> figure = draw_distances([hw.DistanceAware(heads=4)] * 2, names=["words", "clicked news"], max_distance=50)
    """
    parameters = {
        "w: below 0 near tokens, above 0 far tokens": [to_numpy(layer.w) for layer in layers],
        "v: strength": [to_numpy(layer.v) for layer in layers if layer.v is not None],
    }
    parameters = {title: rows for title, rows in parameters.items() if rows}
    with style.plot_style(3.4 * len(parameters) + 3.2, 3.0) as figure:
        *panels, curves = figure.subplots(1, len(parameters) + 1)
        for axes, (title, rows) in zip(panels, parameters.items(), strict=True):
            values = np.stack(rows)
            limit = float(np.abs(values).max()) or 1.0
            image = axes.imshow(values, cmap=style.DIVERGING_COLORMAP, vmin=-limit, vmax=limit, aspect="auto")
            axes.set_title(title)
            axes.set_xlabel("head")
            axes.set_xticks(range(values.shape[1]))
            axes.set_yticks(range(values.shape[0]), names)
            if names is None:
                axes.set_ylabel("layer")
            figure.colorbar(image, ax=axes, location="bottom", shrink=0.8, aspect=30)
        for layer in layers:
            for w, f in zip(to_numpy(layer.w), to_numpy(layer.coefficients(max_distance + 1)), strict=True):
                curves.plot(f, color=style.PALETTE[3 if w > 0 else 0], linewidth=0.8, alpha=0.6)
        curves.set_title("f: distance coefficient")
        curves.set_xlabel("distance |i−j|")
        curves.grid(True)
    return figure


def draw_sigmoids(layers: Sequence[DistanceAware], *, max_weighted_distance: float = 8.0) -> Figure:
    """Draw the learnable sigmoid f(R; v) of all heads over the weighted distance R (figure 1).

    Args:
        layers: the schemes of a model's layers.
        max_weighted_distance: the largest |R| shown.

    Raises:
        ValueError: the layers have no v.

    Example:
        >>> import headwise as hw
        >>> figure = draw_sigmoids([hw.DistanceAware(heads=4, v_std=1.0)])
    """
    values = np.sort(np.concatenate([to_numpy(layer.v) for layer in layers if layer.v is not None] or [np.empty(0)]))
    if not values.size:
        raise ValueError("layers have no v: only the mapping 'learnable-sigmoid' has one")
    x = np.linspace(-max_weighted_distance, max_weighted_distance, 201)
    limit = float(np.abs(values).max()) or 1.0
    colors = ScalarMappable(Normalize(-limit, limit), cmap="cividis")
    with style.plot_style(5.6, 3.4) as figure:
        axes = figure.subplots()
        axes.axvline(0.0, color="#BBBBBB", linewidth=0.8)
        axes.axhline(1.0, color="#BBBBBB", linewidth=0.8)
        for v in values:
            axes.plot(x, (1 + np.exp(v)) / (1 + np.exp(v - x)), color=colors.to_rgba(v), linewidth=1.2, alpha=0.9)
        axes.set_xlabel("weighted distance R = w · |i−j|")
        axes.set_ylabel("f(R; v)")
        axes.set_ylim(bottom=0.0)
        axes.grid(True)
        figure.colorbar(colors, ax=axes, label="learned v", aspect=30)
    return figure


def draw_coefficients(layers: Sequence[DistanceAware], *, num_tokens: int = 24, max_heads: int = 8) -> Figure:
    """Draw the distance coefficients of some heads as matrices over queries and keys (figure 2).

    Args:
        layers: the schemes of a model's layers.
        num_tokens: the length of the sequence.
        max_heads: the largest number of heads shown. They are evenly spaced from the lowest to the highest w.

    Example:
        >>> import headwise as hw
        >>> figure = draw_coefficients([hw.DistanceAware(heads=4, w_std=1.0)])
    """
    heads = [(layer, head, w) for layer, scheme in enumerate(layers) for head, w in enumerate(to_numpy(scheme.w))]
    heads.sort(key=lambda layer_head_w: layer_head_w[2])
    indices = np.unique(np.linspace(0, len(heads) - 1, min(max_heads, len(heads))).round().astype(int))
    selection = [heads[index] for index in indices]
    columns = min(4, len(selection))
    rows = -(-len(selection) // columns)
    distances = np.abs(np.arange(num_tokens)[:, None] - np.arange(num_tokens))
    coefficients = [to_numpy(layer.coefficients(num_tokens)) for layer in layers]
    matrices = [coefficients[layer][head][distances] for layer, head, _ in selection]
    low, high = min(x.min() for x in matrices), max(x.max() for x in matrices)
    norm = TwoSlopeNorm(1.0, vmin=min(low, 0.99), vmax=max(high, 1.01))
    with style.plot_style(1.75 * columns + 0.9, 2.15 * rows + 0.2) as figure:
        panels = figure.subplots(rows, columns, squeeze=False)
        for axes in panels.flat:
            axes.set_axis_off()
        for axes, (layer, head, w), matrix in zip(panels.flat, selection, matrices, strict=False):
            axes.set_axis_on()
            image = axes.imshow(matrix, cmap=style.DIVERGING_COLORMAP, norm=norm, interpolation="nearest")
            v = layers[layer].v
            v_label = "" if v is None else f", v = {format_signed(to_numpy(v)[head])}"
            axes.set_title(f"layer {layer}, head {head}\nw = {format_signed(w)}{v_label}", fontsize=8)
            axes.set_xticks([0, num_tokens - 1])
            axes.set_yticks([0, num_tokens - 1])
        colorbar = figure.colorbar(image, ax=panels, aspect=30, fraction=0.04)
        colorbar.set_label("distance coefficient f")
    return figure


def draw_sorted(models: Mapping[str, Sequence[Sequence[DistanceAware]]]) -> Figure:
    """Draw w and v of all heads in ascending order: mean and standard deviation over runs (figures 6 and 7).

    Args:
        models: the runs (seeds) of each model, each with the schemes of its layers. Values are sorted within each
            run, as in the paper, so a rank is not a head number.

    Example:
        >>> import headwise as hw
        >>> runs = [[hw.DistanceAware(heads=4)] for seed in range(3)]
        >>> figure = draw_sorted({"distance-aware": runs})
    """
    has_v = all(layer.v is not None for runs in models.values() for layers in runs for layer in layers)
    titles = {"w": "w: below 0 near, above 0 far", "v": "v: strength"} if has_v else {"w": "w"}
    with style.plot_style(3.6 * len(titles), 3.0) as figure:
        panels = figure.subplots(1, len(titles), squeeze=False)[0]
        for axes, (name, title) in zip(panels, titles.items(), strict=True):
            axes.axhline(0.0, color="#555555", linewidth=1.0)
            for index, (model, runs) in enumerate(models.items()):
                values = np.stack([sort_values(layers, name) for layers in runs])
                mean = values.mean(axis=0)
                color = style.PALETTE[index % len(style.PALETTE)]
                ranks = np.arange(1, len(mean) + 1)
                std = values.std(axis=0, ddof=1) if len(values) > 1 else None
                if len(models) == 1:
                    axes.bar(ranks, mean, yerr=std, color=color, error_kw={"elinewidth": 1.0, "capsize": 2})
                else:
                    marker = style.MARKERS[index % len(style.MARKERS)]
                    line = {"color": color, "marker": marker, "markersize": 3.5, "linewidth": 1.0, "label": model}
                    axes.errorbar(ranks, mean, yerr=std, elinewidth=0.8, **line)
            axes.set_title(title)
            axes.set_xlabel("heads in ascending order")
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.set_axisbelow(True)
            axes.grid(True, axis="y")
        if len(models) > 1:
            panels[0].legend()
    return figure


def sort_values(layers: Sequence[DistanceAware], name: str) -> NDArray[np.float64]:
    """Return the values of a parameter of all heads, in ascending order."""
    return np.sort(np.concatenate([to_numpy(getattr(layer, name)) for layer in layers]))


def format_signed(x: float) -> str:
    """Format a number with two decimals, a real minus sign and no negative zero.

    >>> format_signed(-0.5), format_signed(-0.001)
    ('−0.50', '0.00')
    """
    return f"{x:z.2f}".replace("-", "−")
