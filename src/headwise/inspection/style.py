"""The style of all figures: palette, markers, colormaps and sizes.

Figures are plain `Figure` objects and do not use pyplot, so they can be drawn on a server and in threads.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import matplotlib
from matplotlib.figure import Figure

#: The color-blind safe palette of Okabe and Ito (2008). Markers distinguish lines without color.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#999999")
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")

#: Sequential, with monotonic lightness: also readable in grayscale.
MAP_COLORMAP = "Blues"
#: Diverging: blue below the center, white at it, red above it.
DIVERGING_COLORMAP = "RdBu_r"

RC_PARAMS: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.5,
    "lines.markersize": 5,
    "legend.frameon": False,
    "figure.constrained_layout.h_pad": 0.06,
    "figure.constrained_layout.w_pad": 0.06,
    "savefig.dpi": 160,
    "svg.hashsalt": "headwise",  # identifiers in SVG files are random by default
}


@contextmanager
def plot_style(width: float, height: float) -> Iterator[Figure]:
    """Yield a new figure of this size in inches. Our style applies inside the context."""
    with matplotlib.rc_context(RC_PARAMS):
        yield Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, file: Path | BinaryIO) -> None:
    """Save a figure in our style. The format follows from the file name; PNG by default. Equal figures are equal files.

    Characters that the font does not have are drawn as boxes.
    """
    with matplotlib.rc_context(RC_PARAMS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(file, metadata={"Date": None})
