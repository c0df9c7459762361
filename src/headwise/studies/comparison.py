"""Methods beside a baseline, on one task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np

from headwise.studies import statistics
from headwise.studies.bootstrap import resampled
from headwise.studies.result import Result
from headwise.studies.statistics import Estimate
from headwise.tasks import Task

#: Figures that are shown as they are; all others are shares, shown in percent.
OWN_SCALE = {"rmse": "rmse", "mae": "mae", "bleu": "BLEU", "chrf": "chrF"}


@dataclass(frozen=True)
class Measure:
    """What methods are judged by."""

    name: str
    higher_is_better: bool
    split: str

    @property
    def scale(self) -> float:
        return 1.0 if self.name in OWN_SCALE else 100.0

    @property
    def unit(self) -> str:
        return OWN_SCALE.get(self.name, "points")

    @property
    def digits(self) -> int:
        return 4 if self.name in ("rmse", "mae") else 2

    @classmethod
    def of(cls, metrics: dict[str, Any]) -> "Measure":
        """The primary metric of a run, on its first test split; on dev, where there is none."""
        task = Task(name=metrics["task"], label_type=metrics["label_type"], about="")
        split = next((split for split in metrics["metrics"] if split != "dev"), "dev")
        return cls(metrics["primary_metric"], task.higher_is_better, split)

    def figure(self, result: Result) -> float:
        return self.scale * float(result.metrics["metrics"][self.split][self.name])


@dataclass(frozen=True)
class Runs:
    """A method's runs on a task: its figure and its cost, by seed."""

    name: str
    figures: dict[int, float]
    runs: dict[int, Result]

    @property
    def mean(self) -> float:
        return fmean(self.figures.values())

    @property
    def std(self) -> float:
        return stdev(self.figures.values()) if len(self.figures) > 1 else float("nan")

    @property
    def seconds(self) -> float:
        return fmean(run.metrics["train_seconds"] for run in self.runs.values())

    @property
    def memory(self) -> tuple[float, str] | None:
        """The peak, in MiB, and of what; None where a run did not measure it."""
        found = [run.metrics.get("peak_memory") for run in self.runs.values()]
        known = [one for one in found if one is not None]
        return (max(one["peak_mib"] for one in known), known[0]["of"]) if len(known) == len(found) else None


@dataclass(frozen=True)
class Comparison:
    """A method against the baseline: paired differences, method − baseline, and what can be said about them.

    Args:
        differences: by seed, of the seeds that both were run with.
        over_seeds: their mean, the interval of the paired t-test, and its p.
        corrected: that p after Holm's correction over the methods of the task.
        permutation: p of the permutation test over seeds.
        over_examples: the same difference, with the bootstrap over test examples; None without predictions.
        over_both: seeds and examples together.
        needed: seeds to see a difference of this size; None for more than anyone will run.
        family: how many methods were corrected for.
    """

    method: str
    baseline: str
    measure: Measure
    differences: dict[int, float]
    over_seeds: Estimate
    corrected: float
    permutation: float
    over_examples: Estimate | None
    over_both: Estimate | None
    needed: int | None
    family: int

    @property
    def significant(self) -> bool:
        return self.corrected < statistics.ALPHA

    @property
    def gain(self) -> float:
        """The difference, above 0 where the method is better."""
        return self.over_seeds.value if self.measure.higher_is_better else -self.over_seeds.value


@dataclass(frozen=True)
class TaskComparison:
    """All methods on one task; the recipe of its data is that of the baseline's first seed."""

    task: str
    measure: Measure
    methods: tuple[Runs, ...]
    comparisons: tuple[Comparison, ...]
    unpaired: tuple[str, ...]
    recipe: str

    @property
    def seeds(self) -> int:
        """The most seeds that a method was run with."""
        return max(len(method.figures) for method in self.methods)


def compared(results: Sequence[Result], baseline: str, controls: Mapping[str, str]) -> TaskComparison:
    """The methods of one task, the baseline first, then in the order of the results.

    A method is compared with its control, or else with the baseline. Controls themselves, and methods that share no
    seed with what they are compared with, are shown only.
    """
    measure = Measure.of(results[0].metrics)
    names = list(dict.fromkeys([baseline, *(result.method for result in results)]))
    controls = {name: control for name, control in controls.items() if name in names and control in names}
    methods = tuple(runs_of(name, results, measure) for name in names)
    samples = draws(results, measure)
    by_name = {one.name: one for one in methods}
    shown_only = set(controls.values()) - controls.keys() | {baseline}
    pairs = [(own, by_name[controls.get(own.name, baseline)]) for own in methods if own.name not in shown_only]
    found = [(own, other, paired(own, other)) for own, other in pairs if paired(own, other)]
    over_seeds = [statistics.seed_interval(list(differences.values())) for *_, differences in found]
    corrected = statistics.holm([estimate.p for estimate in over_seeds])
    comparisons = []
    for (own, other, differences), estimate, p in zip(found, over_seeds, corrected, strict=True):
        each = list(differences.values())
        drawn = None
        if samples is not None:
            drawn = np.mean([samples[own.name, seed] - samples[other.name, seed] for seed in differences], axis=0)
            drawn = drawn[~np.isnan(drawn)]
        comparisons.append(
            Comparison(
                method=own.name,
                baseline=other.name,
                measure=measure,
                differences=differences,
                over_seeds=estimate,
                corrected=float(p),
                permutation=float(statistics.permutation_test(each)),
                over_examples=None if drawn is None else statistics.over_examples(estimate.value, drawn),
                over_both=None if drawn is None else statistics.seed_and_example_interval(each, drawn),
                needed=statistics.seeds_needed(each),
                family=len(found),
            )
        )
    return TaskComparison(
        task=results[0].task,
        measure=measure,
        methods=methods,
        comparisons=tuple(comparisons),
        unpaired=tuple(own.name for own, other in pairs if not paired(own, other)),
        recipe=next(iter(methods[0].runs.values()), results[0]).metrics.get("dataset", ""),
    )


def paired(own: Runs, other: Runs) -> dict[int, float]:
    """The differences of the seeds that both have."""
    return {seed: figure - other.figures[seed] for seed, figure in own.figures.items() if seed in other.figures}


def runs_of(name: str, results: Sequence[Result], measure: Measure) -> Runs:
    runs = {result.seed: result for result in sorted(results, key=lambda r: r.seed) if result.method == name}
    return Runs(name, {seed: measure.figure(run) for seed, run in runs.items()}, runs)


def draws(results: Sequence[Result], measure: Measure) -> dict[tuple[str, int], Any] | None:
    """The figure of each run on rows that were drawn again, by method and seed."""
    found = resampled(results, measure.split)
    if found is None:
        return None
    return {(result.method, result.seed): measure.scale * found[:, run] for run, result in enumerate(results)}
