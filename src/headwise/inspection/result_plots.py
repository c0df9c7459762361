"""Plots of a classifier's results: the confusion matrix and the reliability of its probabilities."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from headwise.inspection import style

#: Counts are written into the cells of a matrix with at most this number of classes.
MAX_LABELED_CLASSES = 20
#: Longer class names are shortened.
MAX_NAME_LENGTH = 24


def draw_confusion_matrix(matrix: Sequence[Sequence[int]], labels: Sequence[str]) -> Figure:
    """Draw a confusion matrix. Colors show the share of the rows of a true class, numbers the count.

    Args:
        matrix: the number of rows by true class and predicted class.
        labels: the class names.

    Example:
        >>> figure = draw_confusion_matrix([[8, 2], [1, 9]], ["bad", "good"])
    """
    counts = np.asarray(matrix, dtype=np.int64)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    names = [shorten(label) for label in labels]
    size = min(10.0, 2.4 + 0.42 * len(names))
    margin = 0.065 * max(map(len, names))
    with style.plot_style(size + margin + 0.8, size + margin * (len(names) > 4)) as figure:
        axes = figure.subplots()
        image = axes.imshow(shares, cmap=style.MAP_COLORMAP, vmin=0, vmax=1)
        figure.colorbar(image, ax=axes, label="share of the true class", shrink=0.8)
        font_size = 9 if len(names) <= 10 else 7 if len(names) <= MAX_LABELED_CLASSES else 5
        rotation = 0 if len(names) <= 4 else 90
        axes.set_xticks(range(len(names)), names, rotation=rotation, fontsize=font_size)
        axes.set_yticks(range(len(names)), names, fontsize=font_size)
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        axes.tick_params(length=0)
        if len(names) <= MAX_LABELED_CLASSES:
            for (row, column), count in np.ndenumerate(counts):
                color = "white" if shares[row, column] > 0.6 else "black"
                axes.text(column, row, f"{count:,}", ha="center", va="center", color=color, fontsize=font_size)
    return figure


def shorten(name: str) -> str:
    """Return a class name with at most `MAX_NAME_LENGTH` characters, without line breaks and formulas.

    >>> shorten("a$b"), len(shorten("x" * 100))
    ('a\\\\$b', 24)
    """
    name = " ".join(name.split())
    short = name if len(name) <= MAX_NAME_LENGTH else f"{name[: MAX_NAME_LENGTH - 1]}…"
    return short.replace("$", r"\$")


def draw_reliability(bins: Sequence[Mapping[str, float]], error: float) -> Figure:
    """Draw a reliability plot: the accuracy of predictions by their confidence, and how many there are.

    Args:
        bins: the bins of `headwise.tasks.metrics.calibration.compute_calibration`.
        error: the expected calibration error.

    Example:
        >>> bins = [{"low": 0.8, "high": 0.9, "count": 20, "confidence": 0.86, "accuracy": 0.75}]
        >>> figure = draw_reliability(bins, error=0.11)
    """
    low = [b["low"] for b in bins]
    widths = [b["high"] - b["low"] for b in bins]
    with style.plot_style(4.6, 4.4) as figure:
        axes, counts = figure.subplots(2, sharex=True, height_ratios=[3, 1])
        axes.plot([0, 1], [0, 1], color="#555555", linewidth=1.0, linestyle="--", label="perfect calibration")
        axes.bar(low, [b["accuracy"] for b in bins], widths, align="edge", color=style.PALETTE[5], edgecolor="white")
        axes.plot(
            [b["confidence"] for b in bins],
            [b["accuracy"] for b in bins],
            style.MARKERS[0],
            color=style.PALETTE[0],
            label="mean confidence and accuracy of a bin",
        )
        axes.set_ylabel("accuracy")
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.02)
        axes.set_title(f"expected calibration error {error:.4f}")
        figure.legend(loc="outside lower center", ncols=2, fontsize=8)
        counts.bar(low, [b["count"] for b in bins], widths, align="edge", color=style.PALETTE[7], edgecolor="white")
        counts.set_xlabel("confidence")
        counts.set_ylabel("predictions")
        counts.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    return figure
