"""Settings that a sampler of Optuna's tries, one after the other, and gives up early where others do better."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import ExperimentalWarning, TrialPruned
from optuna.storages import RDBStorage

from headwise.studies.plan import Run, read_settings, settings_of
from headwise.studies.search_space import Axis, candidate
from headwise.studies.trials import ClaimedTrial, Trials, TrialStatus

#: Trials that are drawn at random before a sampler has learnt anything, and that none is measured against.
FIRST = 5


@dataclass(frozen=True)
class Scope:
    """What a search is asked.

    Args:
        task: what the study calls the task.
        settings: those that all trials share, as `run.yaml` has them.
        axes: what is tried, each between its least and its greatest value.
        trials: how often.
        sampler: tpe or random.
    """

    task: str
    settings: str
    axes: tuple[Axis, ...]
    trials: int
    sampler: str

    def written(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> "Scope":
        axes = tuple(Axis(axis["name"], tuple(axis["values"]), axis["guide"]) for axis in found["axes"])
        return cls(**{**found, "axes": axes})


class Search(Trials):
    """A study whose runs are drawn as it goes on."""

    def __init__(self, storage: RDBStorage, name: str) -> None:
        super().__init__(storage, name)
        self.scope = Scope.read(self.about["search"])
        self.study.sampler = sampler(self.scope.sampler)
        self.study.pruner = optuna.pruners.MedianPruner(n_startup_trials=FIRST, n_warmup_steps=1)

    def to_begin(self, entries: Any) -> int:
        return super().to_begin(entries) + self.scope.trials - drawn_among(entries)

    def drawn(self, worker: str) -> ClaimedTrial | None:
        if drawn_among(self.entries()) >= self.scope.trials:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the heart is ours to beat
            trial = self.study.ask({axis.name: distribution(axis) for axis in self.scope.axes})
        base = read_settings(self.scope.settings)
        method = candidate(self.scope.axes, trial.params, base)
        run = Run(self.scope.task, f"{trial.number}: {method.name}", base.seed, settings_of(base, method, base.seed))
        number = self.storage.get_trial_id_from_study_id_trial_number(self.id, trial.number)
        self.storage.record_heartbeat(number)
        for name, value in {"worker": worker, **run.written()}.items():
            self.storage.set_trial_user_attr(number, name, value)
        return ClaimedTrial(run, number)

    @contextmanager
    def looked_on(self, claim: ClaimedTrial) -> Iterator[None]:
        from headwise.studies.watching import Watcher
        from headwise.training.core.callbacks import extra_callbacks

        with extra_callbacks(Watcher(lambda epoch, figure: self.judge(claim, epoch, figure))):
            yield

    def judge(self, claim: ClaimedTrial, epoch: int, figure: float) -> None:
        """Keep a dev figure of a run.

        Raises:
            TrialPruned: it is worse than what others had by then.
        """
        self.storage.set_trial_intermediate_value(claim.trial, epoch, figure)
        if self.study.pruner.prune(self.study, self.storage.get_trial(claim.trial)):
            raise TrialPruned


def drawn_among(entries: list[TrialStatus]) -> int:
    return sum(entry.run.method != CONTROL for entry in entries)


CONTROL = "unchanged"


def sampler(name: str) -> optuna.samplers.BaseSampler:
    if name == "random":
        return optuna.samplers.RandomSampler()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return optuna.samplers.TPESampler(n_startup_trials=FIRST, constant_liar=True)


def distribution(axis: Axis) -> BaseDistribution:
    """Between the least and the greatest value, by orders of magnitude where they are far apart; or one of names."""
    if not axis.numeric:
        return CategoricalDistribution(axis.values)
    low, high = min(axis.values), max(axis.values)
    log = low > 0 and high / low >= 10
    if all(isinstance(value, int) for value in axis.values):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(float(low), float(high), log=log)
