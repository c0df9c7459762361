"""Statistics compared with scipy, and on simulated data with known differences."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from headwise.studies import statistics

NUM_STUDIES = 4000  # simulated studies


def is_at_most(rate: float, expected: float, studies: int = NUM_STUDIES) -> bool:
    """Return whether a rate is at most the expected one, up to four binomial standard errors."""
    return bool(rate <= expected + 4 * np.sqrt(expected * (1 - expected) / studies))


def is_close(rate: float, expected: float, studies: int = NUM_STUDIES) -> bool:
    return bool(abs(rate - expected) <= 4 * np.sqrt(expected * (1 - expected) / studies))


differences = st.lists(st.floats(-10, 10).map(lambda x: round(x, 3)), min_size=2, max_size=11)


@given(differences)
def test_t_test_and_interval_equal_scipy(values: list[float]) -> None:
    if np.std(values) < 1e-9:
        assert np.isnan(statistics.t_test(values))
        return
    expected = stats.ttest_1samp(values, 0.0)
    assert statistics.t_test(values) == pytest.approx(expected.pvalue, rel=1e-9, abs=1e-12)
    assert statistics.t_interval(values) == pytest.approx(tuple(expected.confidence_interval(0.95)), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("count", [2, 5, 8, 12])
def test_permutation_test_equals_scipy(count: int) -> None:
    x = np.random.default_rng(count).normal(0.3, 1.0, count)
    expected = stats.permutation_test((x,), np.mean, permutation_type="samples", n_resamples=np.inf, axis=0)
    assert statistics.permutation_test(x) == pytest.approx(expected.pvalue, abs=1e-12)


def test_random_sign_patterns_for_many_seeds() -> None:
    x = np.random.default_rng(0).normal(0.4, 1.0, 30)
    assert statistics.permutation_test(x) == pytest.approx(statistics.t_test(x), abs=0.02)
    assert statistics.permutation_test(x + 100) == 1 / statistics.MAX_SIGN_PATTERNS


def test_a_missing_difference_gives_no_p_value() -> None:
    estimate = statistics.seed_interval([np.nan, 1.0, 2.0])
    assert np.isnan([estimate.p, estimate.low, estimate.high]).all()


def test_smallest_p_of_five_seeds() -> None:
    assert statistics.permutation_test([5.0, 6.0, 7.0, 8.0, 9.0]) == statistics.min_permutation_p(5) == 0.0625


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_correction_is_the_step_down_rule(p: list[float]) -> None:
    corrected = statistics.holm_correction(p)
    order = np.argsort(p, kind="stable")
    highest = 0.0
    for place, which in enumerate(order):
        highest = max(highest, min(1.0, p[which] * (len(p) - place)))
        assert corrected[which] == pytest.approx(highest)


def test_holm_correction_ignores_nan() -> None:
    assert statistics.holm_correction([0.02, np.nan, 0.5]) == pytest.approx([0.04, np.nan, 0.5], nan_ok=True)


@pytest.mark.parametrize(("effect", "expected"), [(0.2, 199), (0.5, 34), (0.8, 15)])
def test_seeds_needed_equal_power_tables(effect: float, expected: int) -> None:
    x = np.array([-1.0, 1.0]) / np.sqrt(2) + effect  # standard deviation 1
    assert statistics.seeds_needed(x) == expected


def test_seeds_needed_give_the_requested_power() -> None:
    effect, random = 0.7, np.random.default_rng(0)
    count = statistics.seeds_needed(np.array([-1.0, 1.0]) / np.sqrt(2) + effect)
    assert count is not None
    power = (statistics.t_test(random.normal(effect, 1.0, (NUM_STUDIES, count))) < 0.05).mean()
    assert 0.8 - 0.03 < power < 0.83


@pytest.mark.parametrize("values", [[0.1], [0.0, 0.0, 0.0], [1.0, -1.0]])
def test_seeds_needed_is_none_without_difference_or_variance(values: list[float]) -> None:
    assert statistics.seeds_needed(values) is None


@pytest.mark.parametrize("seeds", [3, 5, 10, 20])
def test_false_positive_rate(seeds: int) -> None:
    random = np.random.default_rng(seeds)
    normal = random.normal(0.0, 1.0, (NUM_STUDIES, seeds))
    assert is_close((statistics.t_test(normal) < 0.05).mean(), 0.05)
    assert is_at_most((statistics.permutation_test(normal) < 0.05).mean(), 0.05)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_false_positive_rate_on_small_test_sets(seeds: int) -> None:
    """Accuracies on 50 rows often give equal differences, for which the t-test has no p-value."""
    random = np.random.default_rng(seeds)
    right = random.binomial(50, 0.9, (2, NUM_STUDIES, seeds)) / 50
    x = right[0] - right[1]
    p = statistics.t_test(x)
    p = np.where(np.isnan(p), statistics.permutation_test(x), p)
    assert [statistics.seed_interval(one).p for one in x[:200]] == pytest.approx(p[:200])
    assert is_at_most((p < 0.05).mean(), 0.05)


def test_false_positive_rate_of_several_methods() -> None:
    random = np.random.default_rng(0)
    seeds, methods = 10, 4
    runs = random.normal(0.0, 1.0, (NUM_STUDIES, methods + 1, seeds))
    p = statistics.t_test(runs[:, 1:] - runs[:, :1])  # the methods share a baseline
    has_false_positive = [bool((statistics.holm_correction(one) < 0.05).any()) for one in p]
    assert is_at_most(float(np.mean(has_false_positive)), 0.05)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_coverage_of_seed_intervals(seeds: int) -> None:
    random = np.random.default_rng(seeds)
    low, high = statistics.t_interval(random.normal(0.7, 2.0, (NUM_STUDIES, seeds)))
    assert is_close(((low <= 0.7) & (high >= 0.7)).mean(), 0.95)


@pytest.mark.parametrize(("seed_std", "row_std"), [(1.0, 0.0), (0.02, 1.0), (0.1, 1.0)])
def test_coverage_of_seed_and_example_intervals(seed_std: float, row_std: float) -> None:
    """The difference of seed s on row r is truth + a_s + b_r + noise, with new seeds and rows in every study."""
    studies, seeds, rows, samples, truth = 500, 5, 60, 200, 0.3
    random = np.random.default_rng(0)
    is_covered, is_false_positive = [], []
    for _ in range(studies):
        a = random.normal(0, seed_std, (seeds, 1))
        b = random.normal(0, row_std, (1, rows))
        x = truth + a + b + random.normal(0, 0.3, (seeds, rows))
        counts = random.multinomial(rows, np.full(rows, 1 / rows), samples)
        estimate = statistics.seed_and_example_interval(x.mean(axis=1), counts @ x.mean(axis=0) / rows)
        is_covered.append(estimate.low <= truth <= estimate.high)
        shifted = statistics.seed_and_example_interval(x.mean(axis=1) - truth, counts @ (x.mean(axis=0) - truth) / rows)
        is_false_positive.append(shifted.p < 0.05)
    assert np.mean(is_covered) >= 0.95 - 4 * np.sqrt(0.95 * 0.05 / studies)
    assert is_at_most(float(np.mean(is_false_positive)), 0.05, studies)


@given(differences, st.floats(0.0, 3.0))
def test_combined_interval_is_wider_than_seed_interval(values: list[float], scale: float) -> None:
    samples = np.mean(values) + scale * np.linspace(-1, 1, 50)
    combined, seeds = statistics.seed_and_example_interval(values, samples), statistics.seed_interval(values)
    if not np.isnan(combined.low) and not np.isnan(seeds.low):
        assert combined.high - combined.low >= seeds.high - seeds.low - 1e-9
        assert combined.p >= seeds.p - 1e-9
        assert (combined.p < 0.05) == (not combined.low <= 0 <= combined.high) or combined.p == pytest.approx(0.05)


def test_coverage_of_example_intervals() -> None:
    studies, rows, samples, truth = 400, 100, 400, 0.1
    random = np.random.default_rng(1)
    is_covered = []
    for _ in range(studies):
        x = random.choice((-1.0, 0.0, 1.0), p=(0.1, 0.7, 0.2), size=rows)  # both right, or one of two methods
        counts = random.multinomial(rows, np.full(rows, 1 / rows), samples)
        estimate = statistics.example_interval(float(x.mean()), counts @ x / rows)
        is_covered.append(estimate.low <= truth <= estimate.high)
    assert is_close(float(np.mean(is_covered)), 0.95, studies)


def test_ranks_equal_demsar() -> None:
    """The example of Demšar 2006: four methods on fourteen datasets. One tie due to rounding is broken as there."""
    values = [
        [0.763, 0.768, 0.771, 0.798],
        [0.599, 0.591, 0.590, 0.569],
        [0.954, 0.971, 0.968, 0.967],
        [0.628, 0.661, 0.654, 0.657],
        [0.882, 0.888, 0.886, 0.898],
        [0.936, 0.931, 0.916, 0.931],
        [0.661, 0.668, 0.609, 0.685],
        [0.583, 0.583, 0.563, 0.625],
        [0.775, 0.838, 0.866, 0.875],
        [1.000, 1.000, 1.000, 1.000],
        [0.940, 0.962, 0.965, 0.962],
        [0.619, 0.666, 0.614, 0.669],
        [0.972, 0.981, 0.9751, 0.975],
        [0.957, 0.978, 0.946, 0.970],
    ]
    ranks = statistics.average_ranks(["C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf"], values)
    assert list(ranks.average.values()) == pytest.approx([3.143, 2.000, 2.893, 1.964], abs=6e-4)
    assert ranks.critical_difference == pytest.approx(1.25, abs=0.005)
    assert ranks.p == pytest.approx(stats.friedmanchisquare(*np.array(values).T).pvalue)


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_critical_differences_equal_the_tables(methods: int, q: float) -> None:
    names = [str(i) for i in range(methods)]
    values = np.random.default_rng(0).normal(size=(7, methods))
    assert statistics.average_ranks(names, values).critical_difference == pytest.approx(
        q * np.sqrt(methods * (methods + 1) / 42), abs=2e-3
    )


@given(differences, st.floats(0.01, 20))
def test_equivalence_test_is_the_larger_of_two_one_sided_tests(values: list[float], margin: float) -> None:
    if np.std(values) < 1e-9:
        assert np.isnan(statistics.equivalence_test(values, margin))
        return
    above = stats.ttest_1samp(values, -margin, alternative="greater").pvalue
    below = stats.ttest_1samp(values, margin, alternative="less").pvalue
    assert statistics.equivalence_test(values, margin) == pytest.approx(max(above, below), rel=1e-9, abs=1e-12)


def test_equivalence_is_claimed_in_at_most_5_percent_of_studies_with_a_difference_at_the_margin() -> None:
    studies = np.random.default_rng(0).normal(1.0, 0.5, (NUM_STUDIES, 10))
    assert is_close(float((statistics.equivalence_test(studies, 1.0) < statistics.ALPHA).mean()), statistics.ALPHA)


@pytest.mark.parametrize("seeds", [3, 6, 10, 40])
def test_detectable_difference_has_the_power(seeds: int) -> None:
    difference = statistics.min_detectable_difference(2.0, seeds, num_comparisons=1)
    assert difference is not None
    assert statistics.t_test_power(difference / 2.0, seeds) == pytest.approx(statistics.POWER, abs=1e-6)
    assert statistics.min_detectable_difference(2.0, 1) is None


@pytest.mark.parametrize("num_comparisons", [9, 36])
def test_detectable_differences_of_two_seeds_and_many_comparisons(num_comparisons: int) -> None:
    difference = statistics.min_detectable_difference(2.0, 2, num_comparisons=num_comparisons)
    assert difference is not None
    level = statistics.ALPHA / num_comparisons
    assert statistics.t_test_power(difference / 2.0, 2, level) == pytest.approx(statistics.POWER, abs=1e-3)
