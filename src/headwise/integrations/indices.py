"""Indices of layers and heads, as users pass them."""

import operator
from collections.abc import Iterable
from typing import Any, SupportsIndex

#: One index or several: an int, a range, a list or tuple of ints, or a one-dimensional array or tensor of integers.
Indices = SupportsIndex | Iterable[SupportsIndex]


def to_indices(argument: str, value: Indices | None) -> tuple[int, ...] | None:
    """Return indices as a tuple of ints; None stays None.

    Args:
        argument: the name for error messages.
        value: see `Indices`. Integers of numpy and torch are accepted.

    Raises:
        TypeError: a value is not an integer.
        ValueError: there is no index.
    """
    if value is None:
        return None
    values: Any = value.tolist() if hasattr(value, "tolist") else value
    try:
        if isinstance(values, SupportsIndex):
            values = [values]
        if isinstance(values, str) or any(isinstance(i, bool) for i in values):
            raise TypeError
        indices = tuple(operator.index(i) for i in values)
    except TypeError:
        raise TypeError(f"{argument} must be an integer, several integers or None for all; got {value!r}") from None
    if not indices:
        raise ValueError(f"{argument} must be at least one integer, or None for all; got {value!r}")
    return indices
