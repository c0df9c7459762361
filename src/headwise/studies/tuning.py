"""Tuning on dev: trials of a method are trained with a seed of their own, and the best settings are used in the study.

A study with tuned methods first trains the first trials of each method, and the methods that are not tuned. As soon as
the first trials of a method have ended, `ChosenRuns` adds the other trials, near the best of them (`trial_design`), and
then the method's runs, with the settings that were best on dev and with other seeds. The workers do not wait for the
trials of other methods.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

from headwise.errors import UserError
from headwise.studies.analysis import Metric
from headwise.studies.methods import SEPARATOR, Method
from headwise.studies.plan import Result, Run, build_config, plan_more_seeds
from headwise.studies.study import Study
from headwise.studies.trial_design import TrialPlan
from headwise.studies.trials import TrialStatus
from headwise.training.core.config import RunConfig

logger = logging.getLogger(__name__)

#: The first seed of trials is the study's first seed plus this number, so that it is not one of the study's seeds.
TUNING_SEED_OFFSET = 1000


@dataclass(frozen=True)
class TunedMethod:
    """A method whose settings are chosen on dev, on one task.

    Args:
        task: the task's name in the study.
        method: the method's name.
        candidates: the names of all possible trials, one for each combination of settings.
        num_trials: the number of trials. A candidate can have several, with different seeds.
        second: the runs that follow the first trials, by the best first candidate, as the database stores them.
    """

    task: str
    method: str
    candidates: tuple[str, ...]
    num_trials: int
    second: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the values that the study's database stores."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TunedMethod":
        """Return the method that a study's database stores."""
        second = values.get("second", {})
        return cls(values["task"], values["method"], tuple(values["candidates"]), values["num_trials"], second)

    @property
    def num_second(self) -> int:
        """The number of trials after the first ones."""
        return max(map(len, self.second.values()), default=0)

    def find_second_trials(self, existing: Collection[tuple[str, str, int]], best: str | None = None) -> list[Run]:
        """Return the trials after the first ones that are missing. Those that were begun are continued.

        Args:
            existing: the keys of the study's runs.
            best: the best first candidate; by default any.
        """
        groups = {name: [Run.from_attributes(x) for x in runs] for name, runs in self.second.items()}
        names = [*groups] if best is None else [best, *groups]
        begun = max(names, key=lambda name: sum(run.key in existing for run in groups[name]), default=None)
        return [] if begun is None else [run for run in groups[begun] if run.key not in existing]

    def settings(self, candidate: str) -> str:
        """Return the settings of a candidate, such as `learning_rate=0.001`."""
        return candidate.removeprefix(f"{self.method}{SEPARATOR}")


@dataclass(frozen=True)
class Choice:
    """The candidate of a tuned method that is best on dev.

    Args:
        tuned: the method.
        results: the trials of the best candidate.
        num_finished: the number of trials of all candidates that finished.
        best_first: the best of the first candidates; None if none of them finished.
    """

    tuned: TunedMethod
    results: tuple[Result, ...]
    num_finished: int
    best_first: str | None = None

    @property
    def values(self) -> str:
        """The chosen settings, such as `mdg=0.01 pdg=0.1`."""
        return self.tuned.settings(self.results[0].method)

    @property
    def dev_value(self) -> float:
        return dev_mean(self.results)


def plan_trials(
    base: RunConfig,
    method: Method,
    plan: TrialPlan,
    task: str,
    complete: Callable[[RunConfig], RunConfig] = lambda config: config,
) -> tuple[TunedMethod, list[Run]]:
    """Return a tuned method and the runs of its first trials.

    A trial that is in the list several times is run with several seeds.

    Args:
        base: the configuration that all methods share.
        method: the method.
        plan: its trials.
        task: the task's name in the study.
        complete: sets further options of each run.
    """

    def build_run(trial: Method, seed: int) -> Run:
        return Run(task, trial.name, seed, complete(build_config(base, trial, seed)))

    counts = Counter(trial.name for trial in plan.first)
    candidates = {trial.name: trial for trial in plan.first}
    seed = base.seed + TUNING_SEED_OFFSET
    runs = [build_run(trial, seed + i) for name, trial in candidates.items() for i in range(counts[name])]
    # Settings that were tried before are tried with another seed.
    second = {
        name: [build_run(trial, seed + counts[trial.name]).to_attributes() for trial in trials]
        for name, trials in plan.second.items()
    }
    names = dict.fromkeys([*candidates, *(trial.name for trials in plan.second.values() for trial in trials)])
    tuned = TunedMethod(task, method.name, tuple(names), len(plan.first), second)
    return replace(tuned, num_trials=len(plan.first) + tuned.num_second), runs


def get_tuned_methods(study: Study) -> list[TunedMethod]:
    """Return the tuned methods of a study."""
    return [TunedMethod.from_dict(values) for values in study.metadata.get("tuning", ())]


def select_final(study: Study, runs: Sequence[Any]) -> list[Any]:
    """Return the runs or results that are not those of candidates."""
    candidates = {(tuned.task, name) for tuned in get_tuned_methods(study) for name in tuned.candidates}
    return [run for run in runs if (run.task, run.method) not in candidates]


class ChosenRuns:
    """Adds the runs of each tuned method to a study that runs, when the method's trials have ended; an `AddRuns`.

    Args:
        study: the study.
        after_trials: called once the trials of all methods have ended.
    """

    def __init__(self, study: Study, after_trials: Callable[[], None]) -> None:
        self.study, self.after_trials = study, after_trials
        self.tuned = get_tuned_methods(study)
        self.num_seeds = int(study.metadata["seeds"])
        self.pending = self._find_pending(study.trials.statuses())
        if not self.pending:
            after_trials()

    @property
    def num_planned(self) -> int:
        return sum(self.num_seeds + num_trials for _, num_trials in self.pending)

    def __call__(self, statuses: Sequence[TrialStatus]) -> bool:
        if self._find_pending(statuses) == self.pending:
            return False
        enqueue_chosen(self.study)
        self.pending = self._find_pending(self.study.trials.statuses())
        if not self.pending:
            self.after_trials()
        return True

    def _find_pending(self, statuses: Sequence[TrialStatus]) -> list[tuple[TunedMethod, int]]:
        """Return the methods with trials that have not ended, and the number of trials that are to be added."""
        not_ended = find_not_ended(statuses)
        existing = {x.run.key for x in statuses}
        return [
            (x, len(x.find_second_trials(existing)))
            for x in self.tuned
            if any((x.task, name) in not_ended for name in x.candidates)
        ]


def find_not_ended(statuses: Sequence[TrialStatus]) -> set[tuple[str, str]]:
    """Return the tasks and methods with runs that wait or run."""
    return {(x.run.task, x.run.method) for x in statuses if x.state in ("waiting", "running")}


def enqueue_chosen(study: Study, seeds: int | None = None) -> None:
    """Add the second trials of tuned methods, the runs of those whose trials have ended, and missing seeds.

    Settings are chosen once all trials of a method have ended. A choice is final: it does not change if failed trials
    are repeated later.

    Args:
        study: the study.
        seeds: the number of seeds; by default the largest number that the study was created or resumed with.

    Raises:
        UserError: the data has no dev split, or the study has more seeds.
    """
    statuses = study.trials.statuses()
    runs = [status.run for status in statuses]
    not_ended = find_not_ended(statuses)
    final_runs = select_final(study, runs)
    first, num_seeds = int(study.metadata["first_seed"]), int(study.metadata["seeds"])
    if seeds is not None and seeds < num_seeds:
        raise UserError(f"--seeds {seeds}: the study in {study.study_dir.path} already has {num_seeds} seeds")
    check_seeds(num_seeds if seeds is None else seeds)
    if seeds is not None:
        study.trials.set_metadata("seeds", seeds)  # also for methods whose trials have not ended
    existing, names = {run.key for run in runs}, {(run.task, run.method) for run in runs}
    second_trials = []
    for choice in choose_candidates(study):
        tuned = choice.tuned
        has_ended = not any((tuned.task, name) in not_ended for name in tuned.candidates)
        if not has_ended or (tuned.task, tuned.method) in names:
            continue
        missing = tuned.find_second_trials(existing, choice.best_first)
        if missing:
            second_trials += missing
        else:
            best = next(run for run in runs if (run.task, run.method) == (tuned.task, choice.results[0].method))
            logger.info("%s, %s: chosen on dev: %s", tuned.task, tuned.method, choice.values)
            final_runs.append(Run(tuned.task, tuned.method, first, replace(best.config, seed=first)))
    study.trials.enqueue(second_trials)
    study.trials.enqueue([*final_runs, *plan_more_seeds(final_runs, range(first, first + (seeds or num_seeds)))])


def check_seeds(seeds: int) -> None:
    """Check that the seeds of a study are not those of its trials.

    Raises:
        UserError: there are too many seeds.
    """
    if seeds > TUNING_SEED_OFFSET:
        raise UserError(f"--seeds must be at most {TUNING_SEED_OFFSET} in a tuned study, got {seeds}")


def choose_candidates(study: Study) -> list[Choice]:
    """Return the candidate with the best mean on dev, for each tuned method with finished trials.

    If the runs of a method have been added, it is the candidate whose settings they have.

    Raises:
        UserError: the data has no dev split.
    """
    results = group_results(study)
    configs = {(run.task, run.method): replace(run.config, seed=0) for run in (x.run for x in study.trials.statuses())}
    choices = []
    for tuned in get_tuned_methods(study):
        finished = [results[tuned.task, name] for name in tuned.candidates if (tuned.task, name) in results]
        if finished:
            sign = 1 if dev_metric(finished[0][0]).higher_is_better else -1
            used = configs.get((tuned.task, tuned.method))  # a choice is final
            possible = [x for x in finished if used in (None, configs[tuned.task, x[0].method])]
            best = max(possible or finished, key=lambda trials: sign * dev_mean(trials))
            first = [trials for trials in finished if trials[0].method in tuned.second]
            best_first = max(first, key=lambda trials: sign * dev_mean(trials), default=None)
            name = None if best_first is None else best_first[0].method
            choices.append(Choice(tuned, tuple(best), sum(map(len, finished)), name))
    return choices


def group_results(study: Study) -> dict[tuple[str, str], list[Result]]:
    """Return the finished runs by task and method."""
    results: dict[tuple[str, str], list[Result]] = {}
    for result in study.results():
        results.setdefault((result.task, result.method), []).append(result)
    return results


def dev_mean(results: Sequence[Result]) -> float:
    """Return the mean over seeds of the primary metric on dev."""
    return fmean(dev_metric(result).value(result) for result in results)


def dev_metric(result: Result) -> Metric:
    """Return the primary metric on dev.

    Raises:
        UserError: the data has no dev split.
    """
    if "dev" not in result.metrics["metrics"]:
        raise UserError(f"{result.task}: values are chosen on dev, and the data has no dev split")
    return replace(Metric.from_metrics(result.metrics), split="dev")
