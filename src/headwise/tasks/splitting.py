"""Random splits of rows. They depend on the seed only, not on the machine or the version of NumPy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

DEV_FRACTION = TEST_FRACTION = 0.1  # of a file without splits


def shuffled_indices(count: int, seed: int | tuple[int, ...]) -> Indices:
    """Return the indices below `count` in random order. PCG64's raw output does not change between NumPy versions."""
    return np.argsort(np.random.PCG64(seed).random_raw(count), kind="stable")


def stratified_split(
    strata: Any, sizes: Mapping[str, int], seed: int, *, excluded: Indices | None = None
) -> dict[str, Indices]:
    """Draw splits with the same distribution of strata.

    Rows are sorted by stratum, shuffled within each, and taken at regular intervals. Strata may be continuous, such as
    ratings.

    Args:
        strata: The stratum of each row, a number.
        sizes: The size of each split.
        seed: The seed of the order.
        excluded: Rows that are not drawn.

    Returns:
        The sorted row indices of each split, and of the remaining rows as "rest".

    Raises:
        ValueError: There are too few rows.
    """
    strata = np.asarray(strata)
    order = shuffled_indices(len(strata), seed)
    order = order[np.argsort(strata[order], kind="stable")]
    available = order if excluded is None else order[~np.isin(order, excluded)]
    splits = {}
    for name, size in sizes.items():
        if size > len(available):
            raise ValueError(f"{name} needs {size} rows, but {len(available)} are available")
        positions = (np.arange(size) * len(available) + len(available) // 2) // max(size, 1)
        splits[name] = np.sort(available[positions])
        available = np.delete(available, positions)
    drawn = np.concatenate([*splits.values(), np.empty(0, np.int64)])
    return {**splits, "rest": np.setdiff1d(np.arange(len(strata)), drawn)}


def sample_each_class(classes: Sequence[Any] | NDArray[Any], seed: int) -> Indices:
    """Return the index of a random row of each class. If these rows stay in train, it contains every class.

    Args:
        classes: The class of each row, or an array (rows, classes) of 0 and 1.
        seed: The seed.
    """
    array = np.asarray(classes)
    order = shuffled_indices(len(array), seed)
    if array.ndim == 1:
        _, positions = np.unique(array[order], return_index=True)
    else:
        positions = array[order].argmax(axis=0)[array.any(axis=0)]
    return np.unique(order[positions])
