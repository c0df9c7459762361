"""Hyperparameter search with an Optuna sampler and early stopping of runs that are worse than others."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import ExperimentalWarning, TrialPruned
from optuna.storages import BaseStorage

from headwise.studies.outages import waits_for_database
from headwise.studies.plan import Run, build_config, parse_config
from headwise.studies.search_space import Dimension, build_candidate
from headwise.studies.trials import ClaimedTrial, Trials

if TYPE_CHECKING:
    from transformers import TrainerCallback

#: The number of trials that are sampled at random, and that must finish before any trial is pruned.
NUM_STARTUP_TRIALS = 5

#: The method name of the model without guides and retrofit, or with the base configuration.
CONTROL = "unchanged"


@dataclass(frozen=True)
class SearchSpec:
    """What a search samples, and how often.

    Args:
        task: the task's name in the study.
        config: the base configuration, as in `run.yaml`.
        search_space: the dimensions, each sampled between its lowest and its highest value.
        trials: the number of trials.
        sampler: tpe or random.
    """

    task: str
    config: str
    search_space: tuple[Dimension, ...]
    trials: int
    sampler: str

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as the study's database stores it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SearchSpec":
        """Return the spec that a study's database stores."""
        search_space = tuple(Dimension(**{**x, "values": tuple(x["values"])}) for x in values["search_space"])
        return cls(**{**values, "search_space": search_space})


class Search(Trials):
    """Trials that are sampled while the study runs."""

    def __init__(self, storage: BaseStorage, name: str) -> None:
        super().__init__(storage, name)
        self.spec = SearchSpec.from_dict(self.metadata["search"])
        self.study.pruner = optuna.pruners.MedianPruner(n_startup_trials=NUM_STARTUP_TRIALS, n_warmup_steps=1)

    def num_to_sample(self, num_runs: int) -> int:
        return self.spec.trials + 1 - num_runs  # one run is the control

    def group(self, run: Run) -> str:
        return run.task

    @waits_for_database
    def sample(self) -> ClaimedTrial:
        base = parse_config(self.spec.config)
        # A seed for each trial: a search that is resumed continues with the values that it would have had.
        self.study.sampler = build_sampler(self.spec.sampler, (base.seed, len(self.by_run())))
        trial = self.study.ask({x.name: build_distribution(x) for x in self.spec.search_space})
        method = build_candidate(self.spec.search_space, trial.params, base)
        run = Run(self.spec.task, f"{trial.number}: {method.name}", base.seed, build_config(base, method, base.seed))
        trial_id = self.storage.get_trial_id_from_study_id_trial_number(self.id, trial.number)
        for name, value in run.to_attributes().items():
            self.storage.set_trial_user_attr(trial_id, name, value)
        return ClaimedTrial(run, trial_id, self.group(run))

    @contextmanager
    def pruning(self, claimed: ClaimedTrial) -> Iterator[None]:
        from headwise.training.core.callbacks import extra_callbacks

        with extra_callbacks(dev_metric_callback(lambda epoch, value: self.report(claimed, epoch, value))):
            yield

    def report(self, claimed: ClaimedTrial, epoch: int, value: float) -> None:
        """Record the dev metric of a run after an epoch.

        Raises:
            TrialPruned: the metric is worse than the median of other runs at this epoch.
        """
        self.outages.run(lambda: self.storage.set_trial_intermediate_value(claimed.trial_id, epoch, value))
        if self.outages.run(lambda: self.study.pruner.prune(self.study, self.storage.get_trial(claimed.trial_id))):
            raise TrialPruned


def dev_metric_callback(report: Callable[[int, float], None]) -> "TrainerCallback":
    """Return a callback that calls `report(epoch, dev metric)` after each evaluation."""
    from transformers import TrainerCallback  # takes seconds to import

    class DevMetricCallback(TrainerCallback):
        def on_evaluate(
            self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **kwargs: Any
        ) -> None:
            name = args.metric_for_best_model
            if name is not None and metrics is not None and name in metrics:
                report(round(state.epoch or 0), float(metrics[name]))

    return DevMetricCallback()


def build_sampler(name: str, seeds: Sequence[int]) -> optuna.samplers.BaseSampler:
    """Return the sampler `tpe` or `random`, seeded with these numbers."""
    seed = int(np.random.SeedSequence(seeds).generate_state(1)[0])
    if name == "random":
        return optuna.samplers.RandomSampler(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=NUM_STARTUP_TRIALS, constant_liar=True)


def build_distribution(dimension: Dimension) -> BaseDistribution:
    """Return a range from the lowest to the highest value, logarithmic from a ratio of 10; or the categories."""
    if not dimension.is_numeric:
        return CategoricalDistribution(dimension.values)
    low, high = min(dimension.values), max(dimension.values)
    log = low > 0 and high / low >= 10
    if all(isinstance(value, int) for value in dimension.values):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(float(low), float(high), log=log)
