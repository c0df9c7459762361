"""Trials of tuned methods: which settings are tried, and that every method gets as many trials."""

from typing import Any

import numpy as np
import pytest

from headwise.studies.methods import Method, parse_method
from headwise.studies.plan import build_config
from headwise.studies.search_space import Dimension
from headwise.studies.trial_design import DEFAULTS, TrialPlan, build_design, build_trials, default_learning_rate
from headwise.training import TextConfig
from headwise.training.core.config import RunConfig
from headwise.training.recommendation.config import RecommendationConfig
from headwise.training.translation.config import TranslationConfig

TEXTS = TextConfig(data=("reviews.csv",))
CLICKS = RecommendationConfig(task="mind", data=("log",))
PAIRS = TranslationConfig(data=("pairs",), source="en", target="de", model="small")


def plan(base: RunConfig, method: Method | str, count: int = 8, **options: Any) -> TrialPlan:
    method = parse_method(method) if isinstance(method, str) else method
    return build_trials(build_config(base, method, 0), method, count, **options)


def trials(base: RunConfig, method: Method | str, count: int = 8, **options: Any) -> list[Method]:
    """Return the trials of a method if the default learning rate is the best of the first ones."""
    planned = plan(base, method, count, **options)
    return [*planned.first, *planned.second.get(planned.first[0].name, [])]


def tuned(base: RunConfig, method: Method | str) -> set[str]:
    """Return the options in which the trials of a method differ."""
    given = parse_method(method).overrides if isinstance(method, str) else method.overrides
    return {name for trial in trials(base, method) for name, x in trial.overrides.items() if x != given.get(name)}


@pytest.mark.parametrize(
    ("base", "method", "options"),
    [
        (TEXTS, "none", {"learning_rate"}),
        (TEXTS, "plain", {"learning_rate", "position_scale"}),
        (TEXTS, "tener", {"learning_rate", "scheme_learning_rate"}),
        (TEXTS, "rpr", {"learning_rate", "scheme_learning_rate", "scheme_options"}),
        (TEXTS, "distance-aware", {"learning_rate", "scheme_learning_rate", "scheme_options"}),
        (TEXTS, "bert", {"learning_rate"}),
        (TEXTS, "bert+mdg+pdg", {"learning_rate", "guide_share"}),
        (TEXTS, "bert+mdg=0.1", {"learning_rate"}),
        (TEXTS, "bert+retrofit:rpr", {"learning_rate", "scheme_learning_rate"}),
        (TEXTS, Method("fixed", {"model": "rpr", "scheme_learning_rate": 0.1}), {"learning_rate", "scheme_options"}),
        (CLICKS, "distance-aware", {"learning_rate", "scheme_learning_rate", "scheme_options"}),
        (CLICKS, "none", {"learning_rate"}),
        (PAIRS, Method("rpr", {"scheme": "rpr"}), {"learning_rate", "scheme_learning_rate"}),
        (PAIRS, Method("plain", {"scheme": "plain"}), {"learning_rate"}),
    ],
)
def test_what_is_tuned(base: RunConfig, method: Method | str, options: set[str]) -> None:
    assert tuned(base, method) == options


@pytest.mark.parametrize("count", [2, 5, 8])
def test_all_methods_have_the_same_number_of_trials_and_learning_rates(count: int) -> None:
    methods = ("none", "plain", "rpr", "distance-aware")
    by_method = {name: trials(TEXTS, name, count) for name in methods}
    for name, method_trials in by_method.items():
        assert len(method_trials) == count
        repeated = [x.name for i, x in enumerate(method_trials) if x.name in [y.name for y in method_trials[:i]]]
        assert repeated in ([], [method_trials[0].name]), "the center of the second trials"
        # With few rows, another rate is the default. The rate is set, so that the second trials are around it.
        rate = {} if count == 2 else {"learning_rate": 1e-3}
        assert method_trials[0].overrides == {"model": name, **rate}
        for trial in method_trials:
            build_config(TEXTS, trial, 0)  # valid options
    rates = {name: sorted(str(x.overrides.get("learning_rate")) for x in by_method[name]) for name in methods}
    assert all(rates[name] == rates["none"] for name in methods)


def test_settings_vary_independently_of_each_other() -> None:
    """In a Latin hypercube, each value is tried once, and two settings are hardly correlated."""
    for num_trials, num_settings in ((8, 2), (8, 3), (16, 3)):
        design = build_design(num_trials, [3] * num_settings)
        assert (np.sort(design, axis=0) == np.arange(num_trials)[:, None]).all()
        assert (design[0] == 3).all(), "the first trial has the defaults"
        correlations = np.corrcoef(design.T)[np.triu_indices(num_settings, 1)]
        assert np.abs(correlations).max() < 0.5


@pytest.mark.parametrize("method", ["none", "distance-aware"])
def test_learning_rates_are_tried_around_the_best_of_the_first_trials(method: str) -> None:
    """The learning rate of the user is the center of the first trials."""
    base = TextConfig(data=("reviews.csv",), learning_rate=1e-2)
    planned = plan(base, method, 9)
    rates = [trial.overrides.get("learning_rate", 1e-2) for trial in planned.first]
    assert rates == pytest.approx([1e-2, 2.5e-3, 4e-2])
    assert all(trial.overrides.keys() <= {"model", "learning_rate"} for trial in planned.first), "other defaults"
    for center, first in zip(rates, planned.first, strict=True):
        second = sorted(trial.overrides.get("learning_rate", 1e-2) for trial in planned.second[first.name])
        assert second == pytest.approx(list(np.geomspace(center / 2, center * 2, 6)), rel=1e-2)


@pytest.mark.parametrize(("rows", "rate"), [(100, 3e-3), (2000, 1e-3), (None, 1e-3)])
def test_the_default_learning_rate_depends_on_the_rows(rows: int | None, rate: float) -> None:
    base = TextConfig(data=("reviews.csv",), rows=rows)
    assert [x.overrides["learning_rate"] for x in plan(base, "none").first] == pytest.approx([rate, rate / 4, rate * 4])


@pytest.mark.parametrize("count", [8, 60, 300])
def test_trials_have_names_of_their_own(count: int) -> None:
    for method in ("none", "bert"):
        for trials_of_best in plan(TEXTS, method, count).second.values():
            assert len({trial.name for trial in trials_of_best}) == count - 3


def test_methods_without_values_of_the_grid_are_repeated() -> None:
    assert {x.name for x in trials(TEXTS, "none", 4, grid_only=True)} == {f"none: {DEFAULTS}"}
    assert len(trials(TEXTS, "none", 4, grid_only=True)) == 4


def test_few_trials_have_one_stage() -> None:
    planned = plan(TEXTS, "distance-aware", 4)
    assert planned.second == {}
    rates = [trial.overrides.get("learning_rate", 1e-3) for trial in planned.first]
    assert sorted(rates) == pytest.approx([1e-3 / 8, 1e-3, 2e-3, 8e-3], rel=1e-2)
    assert planned.first[0].name == f"distance-aware: {DEFAULTS}"


def test_scheme_learning_rates_are_multiples_of_the_learning_rate() -> None:
    for method in ("bert+retrofit:distance-aware", "distance-aware"):
        ratios = [
            x.overrides["scheme_learning_rate"] / x.overrides["learning_rate"]
            for x in trials(TEXTS, method)
            if {"scheme_learning_rate", "learning_rate"} <= x.overrides.keys()
        ]
        assert 1 <= min(ratios) < 10 < max(ratios) <= 310


def test_initial_values_keep_other_options_of_the_scheme() -> None:
    method = Method("sigmoid", {"model": "distance-aware", "scheme_options": ("mapping=sigmoid",)})
    assert all(trial.overrides["scheme_options"][0] == "mapping=sigmoid" for trial in trials(TEXTS, method))
    given = Method("given", {"model": "distance-aware", "scheme_options": ("w_std=0.3",)})
    assert {trial.overrides["scheme_options"] for trial in trials(TEXTS, given)} == {("w_std=0.3",)}


def test_grids_are_tried_completely() -> None:
    grid = [Dimension("mdg", (0.1, 0.01), True), Dimension("pdg", (0.1, 0.01), True)]
    guided = trials(TEXTS, "bert+mdg+pdg", 11, grid=grid)
    assert [trial.overrides["guides"] for trial in guided[:3]] == 3 * [("mdg=0.01", "pdg=0.01")], "the smallest weights"
    assert sorted(trial.overrides["guides"] for trial in guided[3:]) == sorted(
        2 * [(f"mdg={x}", f"pdg={y}") for x in ("0.1", "0.01") for y in ("0.1", "0.01")]
    )
    assert not any("guide_share" in trial.overrides for trial in guided), "there are no automatic weights"
    assert len({trial.overrides.get("learning_rate") for trial in guided[3:]}) == 8
    few = [trial.overrides["guides"] for trial in trials(TEXTS, "bert+mdg+pdg", 5, grid=grid)[3:]]
    assert set(few) == {("mdg=0.1", "pdg=0.1"), ("mdg=0.1", "pdg=0.01")}, "the smallest weights were tried before"
    only = trials(TEXTS, "bert+mdg+pdg", grid=grid, grid_only=True)
    assert len(only) == 8
    assert len({trial.name for trial in only}) == 4


def test_default_learning_rates() -> None:
    assert default_learning_rate(TextConfig(data=("x",), model="bert")) == 5e-5
    assert default_learning_rate(TextConfig(data=("x",), model="bert", lora=True)) == pytest.approx(5e-4)
    assert default_learning_rate(TEXTS) == 1e-3
    assert default_learning_rate(CLICKS) == 1e-3
    assert default_learning_rate(PAIRS) == pytest.approx((256 * 400) ** -0.5)
