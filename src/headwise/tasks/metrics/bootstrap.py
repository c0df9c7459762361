"""The standard error of a metric: how much it would move with other rows of the same label_type."""

from collections.abc import Callable
from typing import Any

import numpy as np

SAMPLES = 1000
CELLS = 2**22  # of the table of counts that is in memory at a time


def standard_error(parts: Any, metric: Callable[[Any], Any], *, samples: int = SAMPLES, seed: int = 0) -> float:
    """The standard deviation of a metric over samples of the rows, with replacement.

    Args:
        parts: (rows, numbers): what each row adds to the sums that the metric is made of.
        metric: sums (samples, numbers) → the metric of each sample (samples,).
        samples: how many.
        seed: of the samples.

    Example:
        >>> import numpy as np
        >>> right = np.repeat([0.0, 1.0], 50)  # 50 of 100 are right; in theory √(0.5 · 0.5 / 100) = 0.05
        >>> parts = np.stack([right, np.ones(100)], axis=1)
        >>> round(standard_error(parts, lambda sums: sums[:, 0] / sums[:, 1]), 3)
        0.05
    """
    return float(np.nanstd(bootstrap_metric(parts, metric, samples=samples, seed=seed), ddof=1))


def bootstrap_metric(row_statistics: Any, metric: Callable[[Any], Any], *, samples: int, seed: int = 0) -> Any:
    """Compute a metric on samples of the rows, drawn with replacement.

    Args:
        row_statistics: (rows, statistics), which are summed over the rows of a sample.
        metric: maps sums (samples, statistics) to values (samples, …).
        samples: the number of samples.
        seed: the seed of the draws.

    Returns:
        The values (samples, …).
    """
    row_statistics = np.asarray(row_statistics, dtype=np.float64)
    num_rows = len(row_statistics)
    random = np.random.default_rng(seed)
    block_size = max(1, CELLS // max(num_rows, 1))
    values = []
    for start in range(0, samples, block_size):
        drawn_rows = random.integers(0, num_rows, size=(min(block_size, samples - start), num_rows))
        counts = np.stack([np.bincount(rows, minlength=num_rows) for rows in drawn_rows])
        values.append(metric(counts @ row_statistics))
    return np.concatenate(values)
