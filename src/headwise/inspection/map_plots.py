"""Plots of attention maps: grids of heads, and figures 4 and 5 of Wang et al. (2022)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axis import Axis
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from headwise.inspection import style

#: Attention maps, (heads, queries, keys).
Maps = NDArray[np.floating[Any]]

MIN_MAP_INCHES = 2.0
MIN_TOKEN_INCHES = 0.14  # the space that a legible token label needs


def draw_maps(
    maps: Sequence[Any],
    tokens: Sequence[str],
    titles: Sequence[str],
    *,
    heads: Sequence[Sequence[str]] | None = None,
    key_tokens: Sequence[str] | None = None,
) -> Figure:
    """Draw a grid of attention maps: a row for each entry of `maps`, a column for each head.

    All maps share one color scale from 0 to the largest weight. It is a square root scale, which shows small weights.

    Args:
        maps: a tensor or array (heads, queries, keys) for each scheme, model or layer.
        tokens: the tokens of the queries, and of the keys unless `key_tokens` is given.
        titles: the title of each row.
        heads: the title of each head of each row; by default its number.
        key_tokens: the tokens of the keys.

    Raises:
        ValueError: the shapes of maps, tokens and titles do not match.

    Example:
        >>> import torch, headwise as hw
        >>> from headwise.inspection import draw_maps
        >>> x = torch.randn(1, 2, 3, 8)
        >>> weights = hw.attend(x, x, x, scheme=hw.DistanceAware(heads=2), return_weights=True).weights
        >>> figure = draw_maps([weights[0].detach()], ["the", "cat", "sat"], ["distance-aware"])
    """
    rows: list[Maps] = [np.asarray(row, dtype=np.float64) for row in maps]
    key_tokens = tokens if key_tokens is None else key_tokens
    heads = [[f"head {head}" for head in range(len(row))] for row in rows] if heads is None else heads
    check_shapes(rows, tokens, key_tokens, titles, heads)
    num_columns = max(len(row) for row in rows)
    map_inches = max(MIN_MAP_INCHES, MIN_TOKEN_INCHES * max(len(tokens), len(key_tokens)))
    with style.plot_style(map_inches * num_columns + 1.6, (map_inches + 0.35) * len(rows) + 0.6) as figure:
        panels = figure.subplots(len(rows), num_columns, squeeze=False)
        norm = PowerNorm(0.5, vmin=0.0, vmax=max(float(row.max()) for row in rows))
        for axes in panels.flat:
            axes.set_axis_off()
        for row_index, row in enumerate(rows):
            for column, weights in enumerate(row):
                axes = panels[row_index][column]
                axes.set_axis_on()
                image = axes.imshow(weights, cmap=style.MAP_COLORMAP, norm=norm, interpolation="nearest")
                axes.set_title(heads[row_index][column], fontsize=8, pad=3)
                set_token_labels(axes.yaxis, tokens if column == 0 else [])
                set_token_labels(axes.xaxis, key_tokens if row_index == len(rows) - 1 else [], rotation=90)
            panels[row_index][0].set_ylabel(titles[row_index], fontweight="bold", fontsize=10)
        colorbar = figure.colorbar(image, ax=panels, location="bottom", shrink=0.4, aspect=40, pad=0.01)
        colorbar.set_label("attention weight from each query (row) to each key (column)")
    return figure


def draw_averages(
    models: Mapping[str, Maps],
    tokens: Sequence[str],
    *,
    key_tokens: Sequence[str] | None = None,
    max_tokens: int = 15,
) -> Figure:
    """Draw the mean map of all heads of each model, and its difference to that of the first model (figure 4).

    Args:
        models: the maps of all heads of all layers of each model. Others are compared to the first.
        tokens: the tokens of the queries, and of the keys unless `key_tokens` is given.
        key_tokens: the tokens of the keys.
        max_tokens: the largest number of tokens shown; 15 in the paper.

    Example:
        >>> import numpy as np
        >>> figure = draw_averages({"plain": np.full((4, 2, 2), 0.5), "guided": np.full((4, 2, 2), 0.5)}, ["a", "b"])
    """
    labels, key_labels = list(tokens[:max_tokens]), list((key_tokens or tokens)[:max_tokens])
    means = {name: np.asarray(maps).mean(axis=0)[: len(labels), : len(key_labels)] for name, maps in models.items()}
    reference_name, reference = next(iter(means.items()))
    differences = [mean - reference for mean in list(means.values())[1:]]
    map_inches = max(2.2, 0.17 * max(len(labels), len(key_labels)))
    num_rows = 1 + bool(differences)
    with style.plot_style(map_inches * len(means) + 1.8, (map_inches + 0.4) * num_rows + 0.9) as figure:
        panels = figure.subplots(num_rows, len(means), squeeze=False)
        norm = PowerNorm(0.5, vmin=0.0, vmax=max(float(mean.max()) for mean in means.values()))
        for axes in panels.flat:
            axes.set_axis_off()
        for column, (name, mean) in enumerate(means.items()):
            image = panels[0][column].imshow(mean, cmap=style.MAP_COLORMAP, norm=norm)
            panels[0][column].set_title(name)
        figure.colorbar(image, ax=panels[0].tolist(), aspect=25, fraction=0.05, label="mean weight of all heads")
        if differences:
            limit = max(float(np.abs(x).max()) for x in differences) or 1.0
            for column, x in enumerate(differences, 1):
                image = panels[1][column].imshow(x, cmap=style.DIVERGING_COLORMAP, vmin=-limit, vmax=limit)
                panels[1][column].set_title(f"minus {reference_name}")
            figure.colorbar(image, ax=panels[1].tolist(), aspect=25, fraction=0.05, label="difference")
        for row, row_panels in enumerate(panels):
            used = [(column, axes) for column, axes in enumerate(row_panels) if axes.images]
            for column, axes in used:
                axes.set_axis_on()
                set_token_labels(axes.yaxis, labels if column == used[0][0] else [])
                set_token_labels(axes.xaxis, key_labels if row == num_rows - 1 or column == 0 else [], rotation=90)
    return figure


def draw_components(models: Mapping[str, Maps], num_layers: int) -> Figure:
    """Draw the maps of all heads in the plane of their first two principal components (figure 5).

    The components are computed over all models. Distant points are different maps.

    Args:
        models: the maps of all heads of each model, layer by layer.
        num_layers: the number of layers.

    Example:
        >>> import numpy as np
        >>> models = {"plain": np.random.rand(4, 3, 3), "guided": np.random.rand(4, 3, 3)}
        >>> figure = draw_components(models, num_layers=2)
    """
    features = {name: np.asarray(maps).reshape(len(maps), -1) for name, maps in models.items()}
    pca = PCA(n_components=2, random_state=0).fit(np.concatenate(list(features.values())))
    explained = 100 * np.nan_to_num(pca.explained_variance_ratio_)
    with style.plot_style(2.75 * len(features) + 1.0, 3.1) as figure:
        panels = figure.subplots(1, len(features), squeeze=False, sharex=True, sharey=True)[0]
        for axes, (name, maps) in zip(panels, features.items(), strict=True):
            points = axes.scatter(
                *pca.transform(maps).T,
                c=np.arange(len(maps)) // max(1, len(maps) // num_layers),
                cmap="viridis",
                vmin=-0.5,
                vmax=num_layers - 0.5,
                s=22,
                linewidths=0.4,
                edgecolors="white",
            )
            deviation = float(np.sqrt(np.square(maps - maps.mean(axis=0)).sum(axis=1).mean()))
            axes.set_title(f"{name}\nRMS deviation {deviation:.2f}", fontsize=9)
            axes.set_xlabel(f"1st component, {explained[0]:.0f}%")
            axes.grid(True)
        panels[0].set_ylabel(f"2nd component, {explained[1]:.0f}%")
        step = max(1, num_layers // 6)
        figure.colorbar(points, ax=panels.tolist(), label="layer", ticks=range(0, num_layers, step), aspect=25)
    return figure


def set_token_labels(axis: Axis, tokens: Sequence[str], **text_options: Any) -> None:
    """Label an axis with tokens. They are not parsed as math: a token may contain $."""
    axis.set_ticks(range(len(tokens)), list(tokens), fontsize=7, parse_math=False, **text_options)
    axis.set_tick_params(length=0)


def check_shapes(
    maps: Sequence[Maps],
    tokens: Sequence[str],
    key_tokens: Sequence[str],
    titles: Sequence[str],
    heads: Sequence[Sequence[str]],
) -> None:
    """Check that maps, tokens and titles match.

    Raises:
        ValueError: they do not.
    """
    expected = (len(tokens), len(key_tokens))
    if not maps:
        raise ValueError("maps must not be empty")
    for index, row in enumerate(maps):
        if row.ndim != 3 or row.shape[1:] != expected:
            raise ValueError(f"maps[{index}] must be (heads, {expected[0]}, {expected[1]}), got shape {row.shape}")
    if len(titles) != len(maps):
        raise ValueError(f"titles must have {len(maps)} entries, one for each row, got {len(titles)}")
    if [len(names) for names in heads] != [len(row) for row in maps]:
        raise ValueError("heads must have a title for each head of each row")
