"""Figures that are saved blank: drawing them takes half of the time of short runs."""

from matplotlib.figure import Figure


class BlankFigure(Figure):
    """A figure that is saved without its contents."""

    def __init__(self, figsize: tuple[float, float], layout: str) -> None:
        super().__init__(figsize=figsize)

    def draw(self, renderer: object) -> None:
        """Draw nothing."""
