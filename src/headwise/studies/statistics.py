"""What can be said about a difference, given how much chance there is in it.

A difference between two methods has two sources of chance. Seeds: other initial values and batches would have given
another one. Examples: other test rows would have given another one. The first is judged by the paired differences of
seeds (t, permutations), the second by a bootstrap over rows; `together` adds the two.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special, stats

LEVEL = 0.95
ALPHA = 0.05
POWER = 0.8
#: Sign patterns that are tried one by one; with more seeds as many are drawn.
PATTERNS = 2**12
#: More seeds than anyone will run.
MOST_SEEDS = 10_000


@dataclass(frozen=True)
class Estimate:
    """A difference, its 95% interval, and how likely one as large is where there is none. NaN: cannot be told."""

    value: float
    low: float
    high: float
    p: float


def t_test(differences: ArrayLike) -> Any:
    """The p of the paired t-test, two-sided, along the last axis; NaN for one seed, or where all differences are equal.

    Equal differences have no spread to judge by: p would be 0 after two seeds. The permutation test can still tell.

    Example:
        >>> round(float(t_test([0.2, 0.5, 0.1, 0.4])), 4)
        0.0462
    """
    x = np.asarray(differences, dtype=np.float64)
    mean, error = moments(x)
    with np.errstate(divide="ignore", invalid="ignore"):
        return 2 * stats.t.sf(np.abs(mean / error), x.shape[-1] - 1)


def interval(differences: ArrayLike, level: float = LEVEL) -> tuple[Any, Any]:
    """The interval of a paired t-test, along the last axis; NaN where `t_test` is.

    Example:
        >>> low, high = interval([0.2, 0.5, 0.1, 0.4])
        >>> round(float(low), 3), round(float(high), 3)
        (0.009, 0.591)
    """
    x = np.asarray(differences, dtype=np.float64)
    mean, error = moments(x)
    half = error * stats.t.ppf((1 + level) / 2, x.shape[-1] - 1)
    return mean - half, mean + half


def moments(x: Any) -> tuple[Any, Any]:
    """The mean and its standard error, along the last axis; no spread gives an error of NaN."""
    count, mean = x.shape[-1], x.mean(axis=-1)
    if count < 2:
        return mean, np.full_like(mean, np.nan)
    error = x.std(axis=-1, ddof=1) / np.sqrt(count)
    scale = np.abs(x).max(axis=-1)
    return mean, np.where(error > 1e-12 * scale, error, np.nan)


def permutation_test(differences: ArrayLike, *, seed: int = 0) -> Any:
    """The p of the paired permutation test, two-sided, along the last axis.

    Were there no difference, each sign would be as likely as the other. Of all sign patterns, p is the share whose mean
    is as far from 0 as the one that was seen, or farther: exact up to 12 differences, from 4,096 drawn patterns beyond.

    Example:
        >>> float(permutation_test([0.2, 0.5, 0.1, 0.4, 0.3]))  # as clear as five can be
        0.0625
    """
    x = np.asarray(differences, dtype=np.float64)
    count = x.shape[-1]
    if 2**count <= PATTERNS:
        signs = 1 - 2 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
    else:
        drawn = np.random.default_rng(seed).choice((-1, 1), size=(PATTERNS - 1, count))
        signs = np.concatenate([np.ones((1, count), dtype=int), drawn])  # what was seen is one of them
    seen = np.abs(x.sum(axis=-1))
    scale = np.abs(x).sum(axis=-1)
    return (np.abs(x @ signs.T) >= (seen - 1e-9 * scale)[..., None]).mean(axis=-1)


def min_permutation_p(seeds: int) -> float:
    """The smallest p that a permutation test of so many seeds can give.

    >>> least_p(5), round(least_p(10), 4)
    (0.0625, 0.002)
    """
    return min(1.0, 2.0 ** (1 - seeds))


def seed_interval(differences: ArrayLike) -> Estimate:
    """The mean of paired differences with its t interval. Where all are equal, p is the permutation test's."""
    x = np.asarray(differences, dtype=np.float64)
    low, high = interval(x)
    p = float(t_test(x))
    return Estimate(float(x.mean()), float(low), float(high), float(permutation_test(x)) if np.isnan(p) else p)


def holm(p: ArrayLike) -> Any:
    """p of several comparisons, corrected (Holm 1979): all below 0.05 are wrong together in 5% of studies at most.

    Comparisons without a p (NaN) are left out.

    Example:
        >>> [round(float(p), 3) for p in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    given = np.asarray(p, dtype=np.float64)
    found = np.full_like(given, np.nan)
    known = np.flatnonzero(~np.isnan(given))
    order = known[np.argsort(given[known], kind="stable")]
    found[order] = np.minimum(1.0, np.maximum.accumulate(given[order] * np.arange(len(order), 0, -1)))
    return found


def seeds_needed(differences: ArrayLike, *, power: float = POWER, alpha: float = ALPHA) -> int | None:
    """How many seeds a paired t-test needs to see a difference of this size and spread, four times in five.

    Returns:
        None where no number up to 10,000 is enough, or nothing can be told.

    Example:
        >>> seeds_needed([0.5, -0.2, 0.4, -0.3, 0.6])
        37
    """
    x = np.asarray(differences, dtype=np.float64)
    if x.size < 2 or not x.std(ddof=1) > 0:
        return None
    effect = abs(x.mean()) / x.std(ddof=1)

    def enough(count: int) -> bool:
        return power_of(effect, count, alpha) >= power

    if not enough(MOST_SEEDS):
        return None
    low, high = 1, 2  # too few, and perhaps enough
    while not enough(high):
        low, high = high, min(2 * high, MOST_SEEDS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def power_of(effect: float, seeds: int, alpha: float = ALPHA) -> float:
    """How often a paired t-test sees a difference of so many standard deviations."""
    limit = stats.t.ppf(1 - alpha / 2, seeds - 1)
    shift = effect * np.sqrt(seeds)
    return float(stats.nct.sf(limit, seeds - 1, shift) + stats.nct.sf(limit, seeds - 1, -shift))


def over_examples(value: float, samples: ArrayLike) -> Estimate:
    """A difference with the interval of its bootstrap samples (percentiles), and the p of 0 lying outside.

    Args:
        value: the difference on the rows as they are.
        samples: the same on rows that were drawn again, with replacement.
    """
    drawn = np.asarray(samples, dtype=np.float64)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    tail = min((drawn <= 0).sum(), (drawn >= 0).sum())
    return Estimate(value, float(low), float(high), min(1.0, 2 * (1 + float(tail)) / (1 + len(drawn))))


def seed_and_example_interval(differences: ArrayLike, samples: ArrayLike) -> Estimate:
    """A difference with both sources of chance: the half widths over seeds (t) and over examples, squared and added.

    Where a seed's difference depends on its rows too, that share is counted in both: the interval errs on the safe
    side. It is never narrower than one of its sources.

    Args:
        differences: of each seed.
        samples: their mean, on rows that were drawn again.
    """
    x, drawn = np.asarray(differences, dtype=np.float64), np.asarray(samples, dtype=np.float64)
    mean = float(x.mean())
    if x.size < 2:
        return Estimate(mean, np.nan, np.nan, np.nan)
    seeds, examples = x.std(ddof=1) / np.sqrt(x.size), drawn.std(ddof=1)

    def half(alpha: float) -> float:
        return float(np.hypot(seeds * special.stdtrit(x.size - 1, alpha / 2), examples * special.ndtri(alpha / 2)))

    width = half(1 - LEVEL)
    if not width > 0:
        return Estimate(mean, np.nan, np.nan, np.nan)
    least = 1e-12
    if half(least) <= abs(mean):
        p = least
    elif half(1.0) >= abs(mean):  # no difference at all
        p = 1.0
    else:
        p = float(optimize.brentq(lambda alpha: half(alpha) - abs(mean), least, 1.0))
    return Estimate(mean, mean - width, mean + width, p)


@dataclass(frozen=True)
class Ranks:
    """Methods ranked on several tasks: 1 is best."""

    average: dict[str, float]
    p: float  # Friedman's: are they all alike? NaN for two methods
    critical: float  # Nemenyi's: average ranks that are closer cannot be told apart
    tasks: int


def ranks(methods: list[str], figures: ArrayLike) -> Ranks:
    """Average ranks, Friedman's test and Nemenyi's critical difference (Demšar 2006).

    Args:
        methods: their names.
        figures: (tasks, methods), where higher is better; equal ones share their mean rank.

    Example:
        >>> found = ranks(["a", "b", "c"], [[3, 2, 1], [3, 1, 2], [3, 2, 1], [2, 3, 1]])
        >>> found.average, round(found.critical, 3)
        ({'a': 1.25, 'b': 2.0, 'c': 2.75}, 1.657)
    """
    values = np.asarray(figures, dtype=np.float64)
    tasks, count = values.shape
    average = stats.rankdata(-values, axis=1).mean(axis=0)
    varied = count > 2 and bool((values != values[:, :1]).any())
    p = float(stats.friedmanchisquare(*values.T).pvalue) if varied else np.nan
    spread = stats.studentized_range.ppf(1 - ALPHA, count, np.inf) / np.sqrt(2)
    critical = float(spread * np.sqrt(count * (count + 1) / (6 * tasks)))
    return Ranks(dict(zip(methods, map(float, average), strict=True)), p, critical, tasks)
