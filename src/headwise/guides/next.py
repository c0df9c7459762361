"""[Next]: every token looks at the one after it. Wang et al. 2022, section 3.5"""

from headwise.guides.pattern import NeighbourGuide


class Next(NeighbourGuide):
    """Push heads towards the next token; the last one has no target, and in a causal model none has.

    Args:
        weight, share, layers, heads, schedule, name: see `Guide`.

    Example:
        >>> import headwise as hw
        >>> hw.guides.Next(1.0, heads=[1])
        Next(weight=1, schedule='constant')
    """

    places = 1
