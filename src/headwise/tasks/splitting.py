"""Rows divided into train, dev and test: the same for a seed, on every machine."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

#: What becomes of one file.
DEV = TEST = 0.1


def shuffled_indices(count: int, seed: int | tuple[int, ...]) -> Indices:
    """The numbers below `count` in an order of the seed's. PCG64's raw numbers never change between versions."""
    return np.argsort(np.random.PCG64(seed).random_raw(count), kind="stable")


def split(strata: Any, sizes: Mapping[str, int], seed: int, *, kept: Indices | None = None) -> dict[str, Indices]:
    """Rows drawn for each name, and those that are left, as "rest".

    Each draw has the strata's proportions as nearly as whole rows allow: rows are put in order of their strata, and at
    random within each, and every n-th is taken. Numbers can be strata too: then ratings, say, are spread alike.

    Args:
        strata: a number for each row.
        sizes: how many rows are drawn for each name, one after another.
        seed: of the order.
        kept: rows that are not drawn.

    Returns:
        The numbers of the rows, in their order in the file.

    Raises:
        ValueError: there are fewer rows than asked for.
    """
    strata = np.asarray(strata)
    order = shuffled_indices(len(strata), seed)
    order = order[np.argsort(strata[order], kind="stable")]
    left = order if kept is None else order[~np.isin(order, kept)]
    found = {}
    for name, size in sizes.items():
        if size > len(left):
            raise ValueError(f"{size} rows asked for {name}, {len(left)} there")
        places = (np.arange(size) * len(left) + len(left) // 2) // max(size, 1)
        found[name] = np.sort(left[places])
        left = np.delete(left, places)
    drawn = np.concatenate([*found.values(), np.empty(0, np.int64)])
    return {**found, "rest": np.setdiff1d(np.arange(len(strata)), drawn)}


def one_of_each(memberships: Sequence[Any] | NDArray[Any], seed: int) -> Indices:
    """For each class, a row that has it: what "train" must keep, so that it knows every class.

    Args:
        memberships: each row's class, or, for several classes a row, a table (rows, classes) of zeros and ones.
        seed: of the choice.
    """
    table = np.asarray(memberships)
    order = shuffled_indices(len(table), seed)
    if table.ndim == 1:
        _, first = np.unique(table[order], return_index=True)
    else:
        first = table[order].argmax(axis=0)[table.any(axis=0)]
    return np.unique(order[first])
