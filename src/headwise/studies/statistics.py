"""Statistics of paired differences between methods.

A difference between two methods varies with the seeds (initialization, batches, splits) and with the test examples.
Tests and intervals over seeds use the paired differences (t-test, permutation test). Intervals over examples use a
bootstrap over test rows. `seed_and_example_interval` combines both sources of variation.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special, stats

CONFIDENCE_LEVEL = 0.95
ALPHA = 0.05
POWER = 0.8

#: Up to this number, all sign patterns of a permutation test are evaluated. Otherwise, as many are drawn at random.
MAX_SIGN_PATTERNS = 2**12

#: The largest number of seeds that `seeds_needed` considers.
MAX_SEEDS = 10_000


@dataclass(frozen=True)
class Estimate:
    """A difference with its 95% confidence interval and the p-value of the hypothesis that it is 0.

    An interval or p-value that cannot be computed is NaN.
    """

    value: float
    low: float
    high: float
    p: float


def t_test(differences: ArrayLike) -> Any:
    """Return the two-sided p-value of the paired t-test along the last axis.

    It is NaN for one seed, and if all differences are equal: without variance p would be 0 even for two seeds.
    `scipy.stats.ttest_1samp` rounds the standard error differently, so its p-values differ in the last digits.

    Example:
        >>> round(float(t_test([0.2, 0.5, 0.1, 0.4])), 4)
        0.0462
    """
    x = np.asarray(differences, dtype=np.float64)
    mean, error = mean_and_standard_error(x)
    with np.errstate(divide="ignore", invalid="ignore"):
        return 2 * stats.t.sf(np.abs(mean / error), x.shape[-1] - 1)


def t_interval(differences: ArrayLike) -> tuple[Any, Any]:
    """Return the 95% confidence interval of the paired t-test along the last axis. It is NaN where `t_test` is.

    Example:
        >>> low, high = t_interval([0.2, 0.5, 0.1, 0.4])
        >>> round(float(low), 3), round(float(high), 3)
        (0.009, 0.591)
    """
    x = np.asarray(differences, dtype=np.float64)
    mean, error = mean_and_standard_error(x)
    low, high = stats.t.interval(CONFIDENCE_LEVEL, x.shape[-1] - 1, loc=mean, scale=error)
    return low, high


def mean_and_standard_error(x: Any) -> tuple[Any, Any]:
    """Return the mean along the last axis and its standard error, which is NaN if there is no variance."""
    mean = x.mean(axis=-1)
    if x.shape[-1] < 2:
        return mean, np.full_like(mean, np.nan)
    error = stats.sem(x, axis=-1)
    scale = np.abs(x).max(axis=-1)
    return mean, np.where(error > 1e-12 * scale, error, np.nan)


def equivalence_test(differences: ArrayLike, margin: float) -> Any:
    """Return the p-value of two one-sided paired t-tests (TOST, Schuirmann 1987) along the last axis.

    A small p-value means that the difference lies between −margin and +margin. It is NaN where `t_test` is.

    Args:
        differences: the differences.
        margin: the largest difference that counts as none.

    Example:
        >>> round(float(equivalence_test([0.2, -0.1, 0.1, -0.2], 0.5)), 4)
        0.006
        >>> round(float(equivalence_test([0.2, 0.5, 0.1, 0.4], 0.5)), 4)
        0.0581
    """
    x = np.asarray(differences, dtype=np.float64)
    mean, error = mean_and_standard_error(x)
    with np.errstate(divide="ignore", invalid="ignore"):
        return stats.t.sf((margin - np.abs(mean)) / error, x.shape[-1] - 1)


def permutation_test(differences: ArrayLike, *, seed: int = 0) -> Any:
    """Return the two-sided p-value of the paired permutation (sign-flip) test along the last axis.

    It is the fraction of sign patterns whose mean is at least as far from 0 as the observed mean: of all patterns for
    up to 12 differences, of 4,096 random patterns for more. `scipy.stats.permutation_test` counts ties with a smaller
    tolerance and draws other patterns. It is NaN if a difference is NaN.

    Example:
        >>> float(permutation_test([0.2, 0.5, 0.1, 0.4, 0.3]))  # the smallest p of five differences
        0.0625
    """
    x = np.asarray(differences, dtype=np.float64)
    count = x.shape[-1]
    if 2**count <= MAX_SIGN_PATTERNS:
        signs = 1 - 2 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
    else:
        random_signs = np.random.default_rng(seed).choice((-1, 1), size=(MAX_SIGN_PATTERNS - 1, count))
        signs = np.concatenate([np.ones((1, count), dtype=int), random_signs])  # the observed pattern counts too
    observed = np.abs(x.sum(axis=-1))
    scale = np.abs(x).sum(axis=-1)
    p = (np.abs(x @ signs.T) >= (observed - 1e-9 * scale)[..., None]).mean(axis=-1)
    return np.where(np.isnan(scale), np.nan, p)


def min_permutation_p(seeds: int) -> float:
    """Return the smallest p-value of a permutation test with this number of seeds.

    >>> min_permutation_p(5), round(min_permutation_p(10), 4)
    (0.0625, 0.002)
    """
    return min(1.0, 2.0 ** (1 - seeds))


def min_seeds(num_comparisons: int = 1) -> int:
    """Return the smallest number of seeds with which a permutation test can be significant, after correction.

    >>> min_seeds(), min_seeds(3)
    (6, 7)
    """
    return next(n for n in range(2, 100) if min_permutation_p(n) * num_comparisons < ALPHA)


def seed_interval(differences: ArrayLike) -> Estimate:
    """Return the mean of paired differences with the interval and p-value of the t-test.

    If all differences are equal, the p-value is that of the permutation test.
    """
    x = np.asarray(differences, dtype=np.float64)
    low, high = t_interval(x)
    p = float(t_test(x))
    return Estimate(float(x.mean()), float(low), float(high), float(permutation_test(x)) if np.isnan(p) else p)


def holm_correction(p: ArrayLike) -> Any:
    """Return p-values corrected for multiple comparisons (Holm 1979). NaN values are ignored.

    Example:
        >>> [round(float(p), 3) for p in holm_correction([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    p_values = np.asarray(p, dtype=np.float64)
    corrected = np.full_like(p_values, np.nan)
    valid = np.flatnonzero(~np.isnan(p_values))
    order = valid[np.argsort(p_values[valid], kind="stable")]
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(p_values[order] * np.arange(len(order), 0, -1)))
    return corrected


def seeds_needed(
    differences: ArrayLike, *, num_comparisons: int = 1, power: float = POWER, alpha: float = ALPHA
) -> int | None:
    """Return the number of seeds with which a paired t-test detects a difference of this size and variance.

    It is at least the number with which a permutation test can be significant.

    Args:
        differences: the observed differences.
        num_comparisons: the number of comparisons for which p-values are corrected.
        power: the probability of detection.
        alpha: the significance level.

    Returns:
        The number, or None if it exceeds 10,000 or the differences have no variance.

    Example:
        >>> seeds_needed([0.5, -0.2, 0.4, -0.3, 0.6])
        37
    """
    x = np.asarray(differences, dtype=np.float64)
    if x.size < 2 or not x.std(ddof=1) > 0:
        return None
    effect = abs(x.mean()) / x.std(ddof=1)
    level, lowest = alpha / num_comparisons, min_seeds(num_comparisons)
    seeds = bisect_left(range(MAX_SEEDS + 1), True, lo=lowest, key=lambda n: t_test_power(effect, n, level) >= power)
    return seeds if seeds <= MAX_SEEDS else None


def min_detectable_difference(
    std: float, seeds: int, *, num_comparisons: int = 1, power: float = POWER, alpha: float = ALPHA
) -> float | None:
    """Return the smallest difference that a paired t-test detects with this power.

    Args:
        std: the standard deviation of the differences over seeds.
        seeds: the number of seeds.
        num_comparisons: the number of comparisons for which p-values are corrected.
        power: the probability of detection.
        alpha: the significance level.

    Returns:
        The difference, or None for one seed.

    Example:
        >>> round(min_detectable_difference(1.0, 10), 2), round(min_detectable_difference(1.0, 5), 2)
        (1.0, 1.68)
    """
    if seeds < 2:
        return None
    level = alpha / num_comparisons
    effect = optimize.brentq(lambda effect: t_test_power(effect, seeds, level) - power, 0.0, 1e5)
    return float(std * effect)


def t_test_power(effect: float, seeds: int, alpha: float = ALPHA) -> float:
    """Return the power of a paired t-test for a difference of `effect` standard deviations."""
    limit = stats.t.ppf(1 - alpha / 2, seeds - 1)
    shift = effect * np.sqrt(seeds)
    return float(stats.nct.sf(limit, seeds - 1, shift) + stats.nct.sf(limit, seeds - 1, -shift))


def example_interval(value: float, samples: ArrayLike) -> Estimate:
    """Return a difference with its percentile bootstrap interval and p-value.

    Args:
        value: the difference on the test rows.
        samples: the difference on bootstrap samples of the rows.
    """
    values = np.asarray(samples, dtype=np.float64)
    low, high = np.quantile(values, [(1 - CONFIDENCE_LEVEL) / 2, (1 + CONFIDENCE_LEVEL) / 2])
    tail = min((values <= 0).sum(), (values >= 0).sum())
    return Estimate(value, float(low), float(high), min(1.0, 2 * (1 + float(tail)) / (1 + len(values))))


def seed_and_example_interval(differences: ArrayLike, samples: ArrayLike) -> Estimate:
    """Return a difference with the interval and p-value that account for seeds and examples.

    The half-widths over seeds (t-test) and over examples (bootstrap) are combined as √(a² + b²). Variation that depends
    on both seed and rows is counted twice, so the interval is conservative. It is never narrower than either part.

    Args:
        differences: the difference for each seed.
        samples: the mean difference on bootstrap samples of the rows.
    """
    x, values = np.asarray(differences, dtype=np.float64), np.asarray(samples, dtype=np.float64)
    mean = float(x.mean())
    if x.size < 2:
        return Estimate(mean, np.nan, np.nan, np.nan)
    seed_error, example_error = x.std(ddof=1) / np.sqrt(x.size), values.std(ddof=1)

    def half_width(alpha: float) -> float:
        seed_width = seed_error * special.stdtrit(x.size - 1, alpha / 2)
        return float(np.hypot(seed_width, example_error * special.ndtri(alpha / 2)))

    width = half_width(1 - CONFIDENCE_LEVEL)
    if not width > 0:
        return Estimate(mean, np.nan, np.nan, np.nan)
    min_p = 1e-12
    if half_width(min_p) <= abs(mean):
        p = min_p
    elif half_width(1.0) >= abs(mean):  # the difference is 0
        p = 1.0
    else:
        p = float(optimize.brentq(lambda alpha: half_width(alpha) - abs(mean), min_p, 1.0))
    return Estimate(mean, mean - width, mean + width, p)


@dataclass(frozen=True)
class Ranks:
    """Average ranks of methods over several tasks.

    Args:
        average: the average rank of each method; 1 is best.
        p: the p-value of Friedman's test that all methods are equal; NaN for two methods.
        critical_difference: Nemenyi's; methods whose average ranks are closer do not differ significantly.
        num_tasks: the number of tasks.
    """

    average: dict[str, float]
    p: float
    critical_difference: float
    num_tasks: int


def average_ranks(methods: list[str], values: ArrayLike) -> Ranks:
    """Compute average ranks, Friedman's test and Nemenyi's critical difference (Demšar 2006).

    Args:
        methods: the names of the methods.
        values: (tasks, methods), where higher is better; ties share their mean rank.

    Example:
        >>> ranks = average_ranks(["a", "b", "c"], [[3, 2, 1], [3, 1, 2], [3, 2, 1], [2, 3, 1]])
        >>> ranks.average, round(ranks.critical_difference, 3)
        ({'a': 1.25, 'b': 2.0, 'c': 2.75}, 1.657)
    """
    x = np.asarray(values, dtype=np.float64)
    num_tasks, num_methods = x.shape
    average = stats.rankdata(-x, axis=1).mean(axis=0)
    is_testable = num_methods > 2 and bool((x != x[:, :1]).any())
    p = float(stats.friedmanchisquare(*x.T).pvalue) if is_testable else np.nan
    q = stats.studentized_range.ppf(1 - ALPHA, num_methods, np.inf) / np.sqrt(2)
    critical_difference = float(q * np.sqrt(num_methods * (num_methods + 1) / (6 * num_tasks)))
    return Ranks(dict(zip(methods, map(float, average), strict=True)), p, critical_difference, num_tasks)
