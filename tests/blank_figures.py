"""Figures that are saved blank: drawing them takes half of the time of short runs."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure


class BlankAxes:
    """Axes whose methods and attributes exist and do nothing."""

    def __getattr__(self, name: str) -> "BlankAxes":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: object, **options: object) -> "BlankAxes":
        return self


class BlankFigure(Figure):
    """A figure that is saved without its contents, which are never created."""

    def __init__(self, figsize: tuple[float, float], layout: str) -> None:
        super().__init__(figsize=figsize)

    def subplots(self, nrows: int = 1, ncols: int = 1, *, squeeze: bool = True, **options: object) -> Any:
        """Return blank axes, in an array as `Figure.subplots` does."""
        panels = np.full((nrows, ncols), BlankAxes(), dtype=object)
        if not squeeze:
            return panels
        return panels.item() if panels.size == 1 else panels.squeeze()

    def colorbar(self, *args: object, **options: object) -> Any:
        return BlankAxes()

    def legend(self, *args: object, **options: object) -> Any:
        return BlankAxes()
