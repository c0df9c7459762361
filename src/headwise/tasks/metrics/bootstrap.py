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
    parts = np.asarray(parts, dtype=np.float64)
    count = len(parts)
    random = np.random.default_rng(seed)
    at_a_time = max(1, CELLS // max(count, 1))
    values = []
    for first in range(0, samples, at_a_time):
        drawn = random.integers(0, count, size=(min(at_a_time, samples - first), count))
        times = np.stack([np.bincount(row, minlength=count) for row in drawn])
        values.append(metric(times @ parts))
    return float(np.nanstd(np.concatenate(values), ddof=1))
