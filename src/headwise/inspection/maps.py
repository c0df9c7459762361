"""Attention maps as pictures."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axis import Axis
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from headwise.inspection import style

CELL_INCHES = 2.0
TOKEN_INCHES = 0.14  # the least a token needs on an axis to be legible


def draw_maps(
    maps: Sequence[Any],
    tokens: Sequence[str],
    titles: Sequence[str],
    *,
    heads: Sequence[Sequence[str]] | None = None,
    key_tokens: Sequence[str] | None = None,
) -> Figure:
    """A grid of attention maps: a row for each map of (heads, queries, keys), a column for each head.

    All share one colour scale, from 0 to the largest weight, in which small weights show too (square root).

    Args:
        maps: a tensor or array (heads, queries, keys) for each scheme, model or layer.
        tokens: the queries' tokens, and the keys' unless `key_tokens` are given.
        titles: what each row shows.
        heads: what each head of each row shows; by default its number.
        key_tokens: the keys' tokens.

    Raises:
        ValueError: shapes, tokens and titles do not fit together.

    Example:
        >>> import torch, headwise as hw
        >>> from headwise.inspection import draw_maps
        >>> x = torch.randn(1, 2, 3, 8)
        >>> _, weights = hw.attend(x, x, x, scheme=hw.DistanceAware(heads=2), return_weights=True)
        >>> figure = draw_maps([weights[0].detach()], ["the", "cat", "sat"], ["distance-aware"])
    """
    grids = [as_array(heads_of_row) for heads_of_row in maps]
    key_tokens = tokens if key_tokens is None else key_tokens
    heads = [[f"head {head}" for head in range(len(grid))] for grid in grids] if heads is None else heads
    check(grids, tokens, key_tokens, titles, heads)
    columns = max(len(grid) for grid in grids)
    cell = max(CELL_INCHES, TOKEN_INCHES * max(len(tokens), len(key_tokens)))
    with style.plot_style(cell * columns + 1.6, (cell + 0.35) * len(grids) + 0.6) as figure:
        panels = figure.subplots(len(grids), columns, squeeze=False)
        scale = PowerNorm(0.5, vmin=0.0, vmax=max(float(grid.max()) for grid in grids))
        for axes in panels.flat:
            axes.set_axis_off()
        for row, grid in enumerate(grids):
            for column, weights in enumerate(grid):
                axes = panels[row][column]
                axes.set_axis_on()
                image = axes.imshow(weights, cmap=style.MAP_COLOURS, norm=scale, interpolation="nearest")
                axes.set_title(heads[row][column], fontsize=8, pad=3)
                label(axes.yaxis, tokens if column == 0 else [])
                label(axes.xaxis, key_tokens if row == len(grids) - 1 else [], rotation=90)
            panels[row][0].set_ylabel(titles[row], fontweight="bold", fontsize=10)
        bar = figure.colorbar(image, ax=panels, location="bottom", shrink=0.4, aspect=40, pad=0.01)
        bar.set_label("attention weight, from each query (row) to each key (column)")
    return figure


def label(axis: Axis, tokens: Sequence[str], **text: Any) -> None:
    axis.set_ticks(range(len(tokens)), list(tokens), fontsize=7, parse_math=False, **text)  # a token may hold $
    axis.set_tick_params(length=0)


def as_array(maps: Any) -> NDArray[np.floating[Any]]:
    array: NDArray[np.floating[Any]] = np.asarray(maps, dtype=np.float64)
    return array


def check(
    grids: Sequence[NDArray[np.floating[Any]]],
    tokens: Sequence[str],
    key_tokens: Sequence[str],
    titles: Sequence[str],
    heads: Sequence[Sequence[str]],
) -> None:
    expected = (len(tokens), len(key_tokens))
    if not grids:
        raise ValueError("maps must hold at least one map")
    for row, grid in enumerate(grids):
        if grid.ndim != 3 or grid.shape[1:] != expected:
            raise ValueError(f"maps[{row}] must be (heads, {expected[0]}, {expected[1]}), got shape {grid.shape}")
    if len(titles) != len(grids):
        raise ValueError(f"titles must name {len(grids)} rows, got {len(titles)}")
    if [len(names) for names in heads] != [len(grid) for grid in grids]:
        raise ValueError("heads must name every head of every row")
