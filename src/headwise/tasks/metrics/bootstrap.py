"""Bootstrap of metrics over rows."""

from collections.abc import Callable
from typing import Any

import numpy as np

NUM_SAMPLES = 1000
MAX_BLOCK_SIZE = 2**22  # entries of the matrix of row counts (samples, rows) that is in memory


def standard_error(row_statistics: Any, metric: Callable[[Any], Any], *, seed: int = 0) -> float:
    """Estimate the standard error of a metric: its standard deviation over bootstrap samples.

    If all rows are right, or all wrong, all samples are equal. By the rule of three, the true value is then within
    3 / rows with a probability of 95%, which are two standard errors.

    Args:
        row_statistics: (rows, statistics), which are summed over the rows of a sample.
        metric: Maps sums (samples, statistics) to values (samples,).
        seed: The seed of the draws.

    Example:
        >>> import numpy as np
        >>> is_correct = np.repeat([0.0, 1.0], 50)  # the exact standard error is √(0.5 · 0.5 / 100) = 0.05
        >>> row_statistics = np.stack([is_correct, np.ones(100)], axis=1)
        >>> round(standard_error(row_statistics, lambda sums: sums[:, 0] / sums[:, 1]), 3)
        0.05
    """
    values = bootstrap_metric(row_statistics, metric, samples=NUM_SAMPLES, seed=seed)
    if (values == 0).all() or (values == 1).all():
        return min(1.5 / len(row_statistics), 0.5)
    return float(np.nanstd(values, ddof=1))


def bootstrap_metric(row_statistics: Any, metric: Callable[[Any], Any], *, samples: int, seed: int = 0) -> Any:
    """Compute a metric on samples of the rows, drawn with replacement.

    Args:
        row_statistics: (rows, statistics), which are summed over the rows of a sample.
        metric: Maps sums (samples, statistics) to values (samples, …).
        samples: The number of samples.
        seed: The seed of the draws.

    Returns:
        The values (samples, …).
    """
    row_statistics = np.asarray(row_statistics, dtype=np.float64)
    num_rows = len(row_statistics)
    rng = np.random.default_rng(seed)
    block_size = max(1, MAX_BLOCK_SIZE // max(num_rows, 1))
    values = []
    for start in range(0, samples, block_size):
        drawn_rows = rng.integers(0, num_rows, size=(min(block_size, samples - start), num_rows))
        counts = np.stack([np.bincount(rows, minlength=num_rows) for rows in drawn_rows])
        values.append(metric(counts @ row_statistics))
    return np.concatenate(values)
