"""How every figure looks: one palette, one set of sizes, no global state.

Figures are plain `Figure` objects: no window, no pyplot, so they can be drawn on a server and in a thread.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import matplotlib
from matplotlib.figure import Figure

#: Okabe and Ito 2008: told apart with any kind of colour vision. Markers tell lines apart without colour.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#999999")
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")

#: Grows evenly in lightness, so that it can be read in grey as well.
MAP_COLOURS = "Blues"

SIZES: dict[Any, Any] = {
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
}


@contextmanager
def plot_style(width: float, height: float) -> Iterator[Figure]:
    """A figure of this many inches, in our style for as long as it is drawn."""
    with matplotlib.rc_context(SIZES):
        yield Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, to: Path | BinaryIO) -> None:
    with matplotlib.rc_context(SIZES):
        figure.savefig(to)
