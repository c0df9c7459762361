"""Tuning on dev: candidates of a method are trained with a seed of their own, and the best one is used in the study.

A study with tuned methods runs in two phases. The first one trains the candidates, and the methods that are not tuned.
`enqueue_chosen` then adds the runs of the tuned methods, with the values that were best on dev and with other seeds.
"""

import csv
import io
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from headwise.csv_cells import quote_formula
from headwise.errors import UserError
from headwise.studies.analysis import Metric
from headwise.studies.methods import Method
from headwise.studies.plan import Result, Run, build_config, plan_more_seeds, plan_runs
from headwise.studies.search_space import Dimension, build_candidate
from headwise.studies.study import Study
from headwise.studies.tables import TextTable
from headwise.training.core.config import RunConfig

logger = logging.getLogger(__name__)

#: The seed of candidates is the study's first seed plus this number, so that it is not one of the study's seeds.
TUNING_SEED_OFFSET = 1000

#: The separator of a method's name and the values of a candidate.
SEPARATOR = ": "


@dataclass(frozen=True)
class TunedMethod:
    """A method whose values are chosen on dev, on one task.

    Args:
        task: the task's name in the study.
        method: the method's name.
        candidates: the names under which the candidates are run.
    """

    task: str
    method: str
    candidates: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the values that the study's database stores."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TunedMethod":
        """Return the method that a study's database stores."""
        return cls(values["task"], values["method"], tuple(values["candidates"]))


@dataclass(frozen=True)
class Choice:
    """The candidate of a tuned method that is best on dev.

    Args:
        tuned: the method.
        result: the run of the best candidate.
        num_finished: the number of candidates that finished.
    """

    tuned: TunedMethod
    result: Result
    num_finished: int

    @property
    def values(self) -> str:
        """The chosen values, such as `mdg=0.01 pdg=0.1`."""
        return self.result.method.removeprefix(f"{self.tuned.method}{SEPARATOR}")

    @property
    def dev_value(self) -> float:
        return dev_metric(self.result).value(self.result)


def build_candidates(base: RunConfig, method: Method, search_space: Sequence[Dimension]) -> list[Method]:
    """Return the candidates of a method: all combinations of the values of a search space.

    Args:
        base: the configuration that the methods of the task share.
        method: the method. Weights of guides in the search space replace those of its guides.
        search_space: the dimensions; if there are none, the method is its only candidate.
    """
    config = build_config(base, method, base.seed)
    names = [dimension.name for dimension in search_space]
    candidates = []
    for values in product(*(dimension.values for dimension in search_space)):
        candidate = build_candidate(search_space, dict(zip(names, values, strict=True)), config)
        name = SEPARATOR.join(filter(None, [method.name, candidate.name]))
        candidates.append(Method(name, {**method.overrides, **candidate.overrides}))
    return candidates


def plan_candidates(
    base: RunConfig, method: Method, candidates: Sequence[Method], task: str
) -> tuple[TunedMethod, list[Run]]:
    """Return a tuned method and the runs of its candidates, under the task's name in the study."""
    runs = plan_runs([base], candidates, [base.seed + TUNING_SEED_OFFSET])
    tuned = TunedMethod(task, method.name, tuple(candidate.name for candidate in candidates))
    return tuned, [replace(run, task=task) for run in runs]


def get_tuned_methods(study: Study) -> list[TunedMethod]:
    """Return the tuned methods of a study."""
    return [TunedMethod.from_dict(values) for values in study.metadata.get("tuning", ())]


def select_final(study: Study, runs: Sequence[Any]) -> list[Any]:
    """Return the runs or results that are not those of candidates."""
    candidates = {(tuned.task, name) for tuned in get_tuned_methods(study) for name in tuned.candidates}
    return [run for run in runs if (run.task, run.method) not in candidates]


def enqueue_chosen(study: Study, seeds: int | None = None) -> None:
    """Add the runs of tuned methods whose candidates have finished, and the seeds that are missing for all methods.

    A choice is final: it does not change if further candidates finish later.

    Args:
        study: the study.
        seeds: the number of seeds; by default the largest number that the study was created or resumed with.

    Raises:
        UserError: the data has no dev split, or the study has more seeds.
    """
    runs = [status.run for status in study.trials.statuses()]
    final_runs = select_final(study, runs)
    first, num_seeds = int(study.metadata["first_seed"]), int(study.metadata["seeds"])
    num_seeds = max([num_seeds, *(run.seed - first + 1 for run in final_runs)])
    if seeds is not None and seeds < num_seeds:
        raise UserError(f"--seeds {seeds}: the study in {study.study_dir.path} already has {num_seeds} seeds")
    existing = {(run.task, run.method) for run in final_runs}
    for choice in choose_candidates(study):
        tuned = choice.tuned
        if (tuned.task, tuned.method) not in existing:
            logger.info("%s, %s: chosen on dev: %s", tuned.task, tuned.method, choice.values)
            chosen = next(run for run in runs if (run.task, run.method) == (tuned.task, choice.result.method))
            final_runs.append(Run(tuned.task, tuned.method, first, replace(chosen.config, seed=first)))
    study.trials.enqueue([*final_runs, *plan_more_seeds(final_runs, range(first, first + (seeds or num_seeds)))])


def choose_candidates(study: Study) -> list[Choice]:
    """Return, for each tuned method with finished candidates, the best one on dev; of several, the first.

    Raises:
        UserError: the data has no dev split.
    """
    results = {(result.task, result.method): result for result in study.results()}
    choices = []
    for tuned in get_tuned_methods(study):
        finished = [results[tuned.task, name] for name in tuned.candidates if (tuned.task, name) in results]
        if finished:
            metric = dev_metric(finished[0])
            sign = 1 if metric.higher_is_better else -1
            best = max(finished, key=lambda result: sign * metric.value(result))
            choices.append(Choice(tuned, best, len(finished)))
    return choices


def dev_metric(result: Result) -> Metric:
    """Return the primary metric on dev.

    Raises:
        UserError: the data has no dev split.
    """
    if "dev" not in result.metrics["metrics"]:
        raise UserError(f"{result.task}: values are chosen on dev, and the data has no dev split")
    return replace(Metric.from_metrics(result.metrics), split="dev")


def build_choice_tables(study: Study) -> list[TextTable]:
    """Return a table of the chosen values for each task."""
    choices = choose_candidates(study)
    tables = []
    for task in dict.fromkeys(choice.tuned.task for choice in choices):
        rows = [
            (
                choice.tuned.method,
                choice.values,
                f"{choice.dev_value:.{dev_metric(choice.result).digits}f}",
                f"{choice.num_finished} of {len(choice.tuned.candidates)}",
            )
            for choice in choices
            if choice.tuned.task == task
        ]
        metric = dev_metric(next(choice.result for choice in choices if choice.tuned.task == task))
        header = ("method", "chosen", f"dev {metric.name}", "candidates")
        tables.append(
            TextTable(f"{task}: values chosen on dev, with a seed that the study does not use", header, tuple(rows))
        )
    return tables


def candidates_csv(study: Study) -> str:
    """Return the dev metrics of all candidates as CSV."""
    results = {(result.task, result.method): result for result in study.results()}
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["task", "method", "values", "dev_metric", "dev_value"])
    for tuned in get_tuned_methods(study):
        for name in tuned.candidates:
            result = results.get((tuned.task, name))
            metric = None if result is None else dev_metric(result)
            value = math.nan if result is None or metric is None else metric.value(result)
            values = name.removeprefix(f"{tuned.method}{SEPARATOR}")
            cells = (tuned.task, tuned.method, values, "" if metric is None else metric.name)
            rows.writerow([*map(quote_formula, cells), value])
    return text.getvalue()
