"""Statistics against scipy's, and against simulated data, whose truth is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from headwise.studies import statistics

STUDIES = 4000  # simulated at once


def at_most(rate: float, wanted: float, studies: int = STUDIES) -> bool:
    """Whether a rate is at most what is wanted, within binomial error (four standard errors)."""
    return bool(rate <= wanted + 4 * np.sqrt(wanted * (1 - wanted) / studies))


def about(rate: float, wanted: float, studies: int = STUDIES) -> bool:
    return bool(abs(rate - wanted) <= 4 * np.sqrt(wanted * (1 - wanted) / studies))


differences = st.lists(st.floats(-10, 10).map(lambda x: round(x, 3)), min_size=2, max_size=11)


@given(differences)
def test_t_test_and_interval_are_scipys(values: list[float]) -> None:
    if np.std(values) < 1e-9:
        assert np.isnan(statistics.t_test(values))
        return
    wanted = stats.ttest_1samp(values, 0.0)
    assert statistics.t_test(values) == pytest.approx(wanted.pvalue, rel=1e-9, abs=1e-12)
    assert statistics.interval(values) == pytest.approx(tuple(wanted.confidence_interval(0.95)), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("count", [2, 5, 8, 12])
def test_permutation_test_is_scipys(count: int) -> None:
    x = np.random.default_rng(count).normal(0.3, 1.0, count)
    wanted = stats.permutation_test((x,), np.mean, permutation_type="samples", n_resamples=np.inf, axis=0)
    assert statistics.permutation_test(x) == pytest.approx(wanted.pvalue, abs=1e-12)


def test_many_seeds_are_permuted_at_random() -> None:
    x = np.random.default_rng(0).normal(0.4, 1.0, 30)
    assert statistics.permutation_test(x) == pytest.approx(statistics.t_test(x), abs=0.02)
    assert statistics.permutation_test(x + 100) == 1 / statistics.PATTERNS  # never 0


def test_five_seeds_cannot_go_below_a_sixteenth() -> None:
    assert statistics.permutation_test([5.0, 6.0, 7.0, 8.0, 9.0]) == statistics.min_permutation_p(5) == 0.0625


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_step_down_rule(p: list[float]) -> None:
    corrected = statistics.holm(p)
    order = np.argsort(p, kind="stable")
    highest = 0.0
    for place, which in enumerate(order):
        highest = max(highest, min(1.0, p[which] * (len(p) - place)))
        assert corrected[which] == pytest.approx(highest)


def test_holm_leaves_out_what_has_no_p() -> None:
    assert statistics.holm([0.02, np.nan, 0.5]) == pytest.approx([0.04, np.nan, 0.5], nan_ok=True)


@pytest.mark.parametrize(("effect", "wanted"), [(0.2, 199), (0.5, 34), (0.8, 15)])
def test_seeds_needed_are_those_of_power_tables(effect: float, wanted: int) -> None:
    x = np.array([-1.0, 1.0]) / np.sqrt(2) + effect  # of standard deviation 1
    assert statistics.seeds_needed(x) == wanted


def test_seeds_needed_give_the_power_they_promise() -> None:
    effect, draw = 0.7, np.random.default_rng(0)
    count = statistics.seeds_needed(np.array([-1.0, 1.0]) / np.sqrt(2) + effect)
    assert count is not None
    power = (statistics.t_test(draw.normal(effect, 1.0, (STUDIES, count))) < 0.05).mean()
    assert 0.8 - 0.03 < power < 0.83


@pytest.mark.parametrize("values", [[0.1], [0.0, 0.0, 0.0], [1.0, -1.0]])
def test_no_number_of_seeds_shows_nothing(values: list[float]) -> None:
    assert statistics.seeds_needed(values) is None


@pytest.mark.parametrize("seeds", [3, 5, 10, 20])
def test_no_difference_is_found_in_five_percent_at_most(seeds: int) -> None:
    draw = np.random.default_rng(seeds)
    normal = draw.normal(0.0, 1.0, (STUDIES, seeds))
    assert about((statistics.t_test(normal) < 0.05).mean(), 0.05)
    assert at_most((statistics.permutation_test(normal) < 0.05).mean(), 0.05)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_figures_of_small_test_sets_do_not_mislead(seeds: int) -> None:
    """Accuracies on 50 rows are so coarse that seeds often give equal differences, for which a t-test has no p."""
    draw = np.random.default_rng(seeds)
    right = draw.binomial(50, 0.9, (2, STUDIES, seeds)) / 50
    x = right[0] - right[1]
    p = statistics.t_test(x)
    p = np.where(np.isnan(p), statistics.permutation_test(x), p)
    assert [statistics.seed_interval(one).p for one in x[:200]] == pytest.approx(p[:200])
    assert at_most((p < 0.05).mean(), 0.05)


def test_several_methods_without_a_difference_are_found_in_five_percent_of_studies_at_most() -> None:
    draw = np.random.default_rng(0)
    seeds, methods = 10, 4
    runs = draw.normal(0.0, 1.0, (STUDIES, methods + 1, seeds))
    p = statistics.t_test(runs[:, 1:] - runs[:, :1])  # one baseline for all: they are not independent
    found = [bool((statistics.holm(one) < 0.05).any()) for one in p]
    assert at_most(float(np.mean(found)), 0.05)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_intervals_hold_the_truth_in_95_percent(seeds: int) -> None:
    draw = np.random.default_rng(seeds)
    low, high = statistics.interval(draw.normal(0.7, 2.0, (STUDIES, seeds)))
    assert about(((low <= 0.7) & (high >= 0.7)).mean(), 0.95)


@pytest.mark.parametrize(("seed_spread", "row_spread"), [(1.0, 0.0), (0.02, 1.0), (0.1, 1.0)])
def test_both_sources_together_hold_the_truth(seed_spread: float, row_spread: float) -> None:
    """Differences of seed s on row r are truth + a_s + b_r + noise; other studies have other seeds and other rows."""
    studies, seeds, rows, samples, truth = 500, 5, 60, 200, 0.3
    draw = np.random.default_rng(0)
    held, wrong = [], []
    for _ in range(studies):
        a = draw.normal(0, seed_spread, (seeds, 1))
        b = draw.normal(0, row_spread, (1, rows))
        x = truth + a + b + draw.normal(0, 0.3, (seeds, rows))
        times = draw.multinomial(rows, np.full(rows, 1 / rows), samples)
        found = statistics.seed_and_example_interval(x.mean(axis=1), times @ x.mean(axis=0) / rows)
        held.append(found.low <= truth <= found.high)
        shifted = statistics.seed_and_example_interval(x.mean(axis=1) - truth, times @ (x.mean(axis=0) - truth) / rows)
        wrong.append(shifted.p < 0.05)
    assert np.mean(held) >= 0.95 - 4 * np.sqrt(0.95 * 0.05 / studies)
    assert at_most(float(np.mean(wrong)), 0.05, studies)


@given(differences, st.floats(0.0, 3.0))
def test_both_sources_are_wider_than_one(values: list[float], spread: float) -> None:
    drawn = np.mean(values) + spread * np.linspace(-1, 1, 50)
    found, seeds = statistics.seed_and_example_interval(values, drawn), statistics.seed_interval(values)
    if not np.isnan(found.low) and not np.isnan(seeds.low):
        assert found.high - found.low >= seeds.high - seeds.low - 1e-9
        assert found.p >= seeds.p - 1e-9
        assert (found.p < 0.05) == (not found.low <= 0 <= found.high) or found.p == pytest.approx(0.05)


def test_bootstrap_over_examples_holds_the_truth() -> None:
    studies, rows, samples, truth = 400, 100, 400, 0.1
    draw = np.random.default_rng(1)
    held = []
    for _ in range(studies):
        x = draw.choice((-1.0, 0.0, 1.0), p=(0.1, 0.7, 0.2), size=rows)  # right or wrong, of two methods
        times = draw.multinomial(rows, np.full(rows, 1 / rows), samples)
        found = statistics.over_examples(float(x.mean()), times @ x / rows)
        held.append(found.low <= truth <= found.high)
    assert about(float(np.mean(held)), 0.95, studies)


def test_ranks_are_demsars() -> None:
    """The example of Demšar 2006: four methods on fourteen sets; one rounded tie is broken as the ranks there are."""
    figures = [
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
    found = statistics.ranks(["C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf"], figures)
    assert list(found.average.values()) == pytest.approx([3.143, 2.000, 2.893, 1.964], abs=6e-4)
    assert found.critical == pytest.approx(1.25, abs=0.005)
    assert found.p == pytest.approx(stats.friedmanchisquare(*np.array(figures).T).pvalue)


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_critical_differences_are_those_of_the_tables(methods: int, q: float) -> None:
    names = [str(i) for i in range(methods)]
    figures = np.random.default_rng(0).normal(size=(7, methods))
    assert statistics.ranks(names, figures).critical == pytest.approx(
        q * np.sqrt(methods * (methods + 1) / 42), abs=2e-3
    )
