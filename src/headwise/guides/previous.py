"""[Prev]: every token looks at the one before it. Wang et al. 2022, section 3.5"""

from headwise.guides.pattern import NeighbourGuide


class Previous(NeighbourGuide):
    """Push heads towards the previous token; the first one has no target.

    Args:
        weight, share, layers, heads, schedule, name: see `Guide`.

    Example:
        >>> import headwise as hw
        >>> hw.guides.Previous(1.0, heads=[2])
        Previous(weight=1, schedule='constant')
    """

    places = -1
