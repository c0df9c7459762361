"""Trials of a tuned method: which settings are tried on dev. Every method of a study gets the same number of trials.

The first trials have the default settings and three learning rates, the same for all methods. The other trials have
learning rates near the best of them. At the same time the other settings of the method vary (learning rate and initial
values of its scheme, scale of positions, strength of guides), in a Latin hypercube: each setting has as many values as
there are trials, and each value is tried once. A method without other settings has only learning rates to try.

Weights of guides are given as a grid. The first trials have the smallest ones, and the other trials the next larger
ones, one order of magnitude after another. The weights of two guides grow together at first.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from scipy.stats import qmc

from headwise.scheme_names import RETROFIT_RATE_FACTOR
from headwise.studies.methods import SCHEMES, SEPARATOR, Method
from headwise.studies.search_space import Dimension, build_candidate, format_assignment
from headwise.tasks.benchmarks import get_task
from headwise.training.core.config import RunConfig
from headwise.training.core.defaults import choose_settings
from headwise.training.text.config import TextConfig, is_automatic

#: The number of learning rates in the first trials: the default, the default divided by `FIRST_FACTOR` and times it.
NUM_FIRST_TRIALS = 3
FIRST_FACTOR = 4.0

#: The learning rates of the other trials: from the best of the first trials divided by this factor to that times it.
SECOND_FACTOR = 2.0

#: The same for studies with weights of guides: so near that a weight is not judged by its learning rate.
SECOND_FACTOR_WITH_WEIGHTS = 2.0**0.5

#: With fewer trials, there are no first trials: learning rates and other settings vary at the same time, the former in
#: the whole range.
MIN_TRIALS_FOR_TWO_STAGES = NUM_FIRST_TRIALS + 2

#: The name of the trial with default settings.
DEFAULTS = "default settings"

#: Of a Latin hypercube, the best of this number of random ones is used.
NUM_DESIGNS = 200


@dataclass(frozen=True)
class Range:
    """A setting that is tuned over a range, on a logarithmic scale.

    Args:
        name: the name of a training option or, for initial values, of an option of the scheme.
        low: the lowest value. That of scheme_learning_rate is a multiple of the learning rate.
        high: the highest value.
        default: the value that the default corresponds to.
    """

    name: str
    low: float
    high: float
    default: float

    def values(self, count: int) -> list[float | None]:
        """Return values from low to high. The one that is closest to the default is None."""
        values = [float(f"{x:.3g}") for x in np.geomspace(self.low, self.high, count)]
        closest = min(range(count), key=lambda i: abs(math.log(values[i] / self.default)))
        return [None if i == closest else value for i, value in enumerate(values)]


@dataclass(frozen=True)
class TrialPlan:
    """The trials of a method.

    Args:
        first: the trials that are run first.
        second: the trials that follow, by the name of the best of the first trials. Empty if there is one stage.
    """

    first: list[Method]
    second: dict[str, list[Method]] = field(default_factory=dict)


#: The initial values of schemes that are tuned: the standard deviation of w, of vectors or of biases.
INITIAL_VALUES = {
    "distance-aware": Range("w_std", 0.01, 1.0, 0.1),
    "rpr": Range("std", 0.01, 1.0, 0.25),
    "t5-bias": Range("std", 0.002, 0.2, 0.02),
    "disentangled": Range("std", 0.002, 0.2, 0.02),
}


def list_ranges(config: RunConfig) -> list[Range]:
    """Return what is tuned beside the learning rate: the settings that the method has and the user did not set.

    Args:
        config: the configuration of the method.
    """
    ranges = []
    if config.has_scheme_parameters and config.scheme_learning_rate is None:
        is_retrofit = isinstance(config, TextConfig) and config.model not in SCHEMES
        ranges.append(Range("scheme_learning_rate", 1.0, 300.0, RETROFIT_RATE_FACTOR if is_retrofit else 1.0))
    scheme_options = getattr(config, "scheme_options", None)
    initial = INITIAL_VALUES.get(config.model)
    if initial is not None and scheme_options is not None:
        given = [option.partition("=")[0].replace("-", "_") for option in scheme_options]
        ranges += [] if initial.name in given else [initial]
    has_sinusoids = config.model == "plain" and getattr(config, "positions", None) in (None, "sinusoidal")
    if has_sinusoids and getattr(config, "position_scale", 1.0) is None:
        ranges.append(Range("position_scale", 0.05, 1.0, 0.25))
    if isinstance(config, TextConfig) and config.guide_share is None and any(map(is_automatic, config.guides)):
        ranges.append(Range("guide_share", 0.0002, 0.1, 0.02))
    return ranges


def default_learning_rate(config: RunConfig) -> float:
    """Return the learning rate of the user, or the default, which for texts is that of `--rows` or a few thousand."""
    if config.learning_rate is not None:
        return config.learning_rate
    if isinstance(config, TextConfig):
        num_rows = config.rows if isinstance(config.rows, int) else 4000
        is_pair = config.pair is not None or (config.task is not None and get_task(config.task).pair)
        rate = choose_settings(num_rows, from_scratch=config.model in SCHEMES, is_pair=is_pair).learning_rate
        if config.lora:
            from headwise.training.text.lora import LEARNING_RATE_FACTOR  # imports transformers

            rate *= LEARNING_RATE_FACTOR
        return rate
    if config.task == "translation":
        return translation_learning_rate(config)
    from headwise.tasks.mind import MIND

    return (MIND.from_scratch if config.model in SCHEMES else MIND.fine_tuning).learning_rate


def translation_learning_rate(config: Any) -> float:
    """Return the peak learning rate of a translator: 1/√(width · warm-up steps)."""
    from headwise.models.translator_configuration import PRESETS
    from headwise.training.translation.pipeline import DEFAULTS as TRAINING_DEFAULTS

    sizes = {name: getattr(config, name) or PRESETS[config.model][name] for name in ("heads", "head_dim")}
    warmup = config.warmup or TRAINING_DEFAULTS[config.model].warmup
    return float((sizes["heads"] * sizes["head_dim"] * warmup) ** -0.5)


def build_trials(
    config: RunConfig,
    method: Method,
    num_trials: int,
    grid: Sequence[Dimension] = (),
    *,
    grid_only: bool = False,
    second_factor: float = SECOND_FACTOR,
) -> TrialPlan:
    """Return the trials of a method.

    Args:
        config: the configuration of the method.
        method: the method.
        num_trials: the number of trials.
        grid: dimensions with given values; all combinations are tried if there are enough trials.
        grid_only: tune nothing but the grid. If it has fewer combinations, some trials are the same, for other seeds.
        second_factor: the factor between the best learning rate of the first trials and the highest of the others.
    """
    stage = Stage(config, method, tuple(grid))
    if grid_only:
        return TrialPlan(stage.build_trials([], [], num_trials))
    names = {dimension.name for dimension in grid}
    ranges = [x for x in list_ranges(config) if x.name not in names]
    if any(dimension.is_guide_weight for dimension in grid):
        ranges = [x for x in ranges if x.name != "guide_share" or has_other_guides(config, names)]
    rate = default_learning_rate(config)
    if num_trials < MIN_TRIALS_FOR_TWO_STAGES:
        factor = FIRST_FACTOR * SECOND_FACTOR
        rates = Range("learning_rate", rate / factor, rate * factor, rate).values(num_trials)
        return TrialPlan(stage.build_trials(rates, ranges, num_trials, starts_with_defaults=True))
    weakest = tuple(replace(x, values=(min(x.values),)) for x in grid if x.is_guide_weight)
    depends_on_rows = isinstance(config, TextConfig) and config.learning_rate is None and config.model in SCHEMES
    default = None if depends_on_rows else rate  # the rows are not counted yet
    first: list[Method] = []
    second: dict[str, list[Method]] = {}
    for first_rate in (rate, rate / FIRST_FACTOR, rate * FIRST_FACTOR):
        (trial,) = Stage(config, method, weakest).build_trials(list_rates(first_rate, default), [], 1)
        first.append(trial)
        num_second = num_trials - NUM_FIRST_TRIALS
        rates = list_rates(first_rate, default, second_factor, num_second)
        second[trial.name] = stage.build_trials(rates, ranges, num_second, follows=bool(weakest))
    return TrialPlan(first, second)


def list_rates(center: float, default: float | None, factor: float = 1.0, count: int = 1) -> list[float | None]:
    """Return learning rates from center/factor to center · factor. The default, if it is known, is None.

    >>> list_rates(4e-3, 1e-3, 4.0, 3)
    [None, 0.004, 0.016]
    """
    digits = 3 if count <= 50 else 6
    rates = [float(f"{x:.{digits}g}") for x in np.geomspace(center / factor, center * factor, count)]
    return [None if default is not None and x == float(f"{default:.{digits}g}") else x for x in rates]


@dataclass(frozen=True)
class Stage:
    """Builds trials of a method in which all settings vary at the same time.

    Args:
        config: the configuration of the method.
        method: the method.
        grid: dimensions with given values.
    """

    config: RunConfig
    method: Method
    grid: tuple[Dimension, ...]

    def build_trials(
        self,
        rates: Sequence[float | None],
        ranges: Sequence[Range],
        num_trials: int,
        *,
        starts_with_defaults: bool = False,
        follows: bool = False,
    ) -> list[Method]:
        """Return trials. Each learning rate is that of one trial.

        Args:
            rates: a learning rate for each trial; None for the default. If empty, it is not varied.
            ranges: the other settings.
            num_trials: the number of trials.
            starts_with_defaults: whether the first trial has the defaults of all settings.
            follows: whether earlier trials had the smallest weights of guides. If there are too few trials for all
                combinations of the grid, these weights are left out.
        """
        columns: list[list[Any]] = [list(rates)] if rates else []
        columns += [x.values(num_trials) for x in ranges]
        names = ["learning_rate"] * bool(rates) + [x.name for x in ranges]
        defaults = [column.index(None) if starts_with_defaults else None for column in columns]
        if self.grid:
            combinations = order_combinations(self.grid)
            if follows and num_trials < len(combinations):
                combinations = combinations[1:]
            if any(x.is_guide_weight for x in self.grid):
                combinations = combinations[:num_trials]
            columns, defaults = [*columns, repeat_evenly(combinations, num_trials)], [*defaults, None]
        if not columns:  # nothing varies but the seed
            return [build_trial(self.config, self.method, (), {}, {})] * num_trials
        trials = []
        for row in build_design(num_trials, defaults):
            row_values = [column[i] for column, i in zip(columns, row, strict=True)]
            combination = row_values.pop() if self.grid else {}
            settings = {name: x for name, x in zip(names, row_values, strict=True) if x is not None}
            trials.append(build_trial(self.config, self.method, self.grid, combination, settings))
        return trials


def order_combinations(grid: Sequence[Dimension]) -> list[dict[str, Any]]:
    """Return all combinations of a grid, small weights of guides first.

    Weights of several guides are ranked from the smallest one on. Combinations of equal ranks are the first,
    followed by those whose ranks differ by one, and so on.

    >>> grid = [Dimension("mdg", (0.1, 0.01), True), Dimension("pdg", (0.1, 0.01, 0.001), True)]
    >>> [tuple(x.values()) for x in order_combinations(grid)]
    [(0.01, 0.001), (0.1, 0.01), (0.1, 0.001), (0.01, 0.01), (0.1, 0.1), (0.01, 0.1)]
    """
    names = [x.name for x in grid]
    weights = {x.name: sorted(x.values) for x in grid if x.is_guide_weight}

    def key(combination: Mapping[str, Any]) -> tuple[int, int]:
        ranks = [values.index(combination[name]) for name, values in weights.items()] or [0]
        return max(ranks) - min(ranks), sum(ranks)

    return sorted((dict(zip(names, x, strict=True)) for x in product(*(x.values for x in grid))), key=key)


def has_other_guides(config: Any, names: set[str]) -> bool:
    """Return whether a method has guides with automatic weights that are not in a grid."""
    return any(is_automatic(guide) and guide not in names for guide in config.guides)


def repeat_evenly(items: Sequence[Any], count: int) -> list[Any]:
    """Return a list of this length in which all items are about equally frequent, or that omits items evenly.

    >>> repeat_evenly("ab", 5), repeat_evenly("abcdefg", 3)
    (['a', 'b', 'a', 'b', 'a'], ['a', 'd', 'g'])
    """
    if count >= len(items):
        return [items[i % len(items)] for i in range(count)]
    return [items[round(i * (len(items) - 1) / max(1, count - 1))] for i in range(count)]


def build_design(num_trials: int, defaults: Sequence[int | None]) -> Any:
    """Return a Latin hypercube (trials, settings) of indices of values. It is always the same.

    Args:
        num_trials: the number of trials, and of values of each setting.
        defaults: the index of each setting's default, which the first trial has; None for a setting without one.
    """
    rng = np.random.default_rng(0)
    others = [[i for i in range(num_trials) if i != default] for default in defaults]
    firsts = [[] if default is None else [default] for default in defaults]
    if len(defaults) == 1:  # in the order of the values
        return np.array([[i] for i in firsts[0] + others[0]])
    designs = [
        np.stack([[*first, *rng.permutation(rest)] for first, rest in zip(firsts, others, strict=True)], axis=1)
        for _ in range(NUM_DESIGNS)
    ]
    return min(designs, key=lambda design: qmc.discrepancy((design + 0.5) / num_trials))


def build_trial(
    config: RunConfig,
    method: Method,
    grid: Sequence[Dimension],
    combination: Mapping[str, Any],
    settings: Mapping[str, float],
) -> Method:
    """Return a trial: the method with a combination of the grid and further settings."""
    overrides: dict[str, Any] = {**method.overrides, **build_candidate(grid, combination, config).overrides}
    named: dict[str, Any] = dict(combination)
    rate = settings.get("learning_rate", overrides.get("learning_rate") or default_learning_rate(config))
    for name, value in settings.items():
        if name in vars(config):
            named[name] = float(f"{value * rate:.3g}") if name == "scheme_learning_rate" else value
            overrides[name] = named[name]
        else:  # an initial value
            named[name] = value
            scheme_options = overrides.get("scheme_options", getattr(config, "scheme_options", ()))
            overrides["scheme_options"] = (*scheme_options, f"{name}={value:g}")
    text = " ".join(format_assignment(name, value) for name, value in named.items())
    return Method(f"{method.name}{SEPARATOR}{text or DEFAULTS}", overrides)
