"""Statistical analysis of finished runs: which methods are better than their baseline, and by how much."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np

from headwise.errors import UserError
from headwise.studies import statistics
from headwise.studies.bootstrap import bootstrap_primary_metric
from headwise.studies.plan import Result
from headwise.studies.statistics import Estimate, Ranks
from headwise.tasks import Task
from headwise.training.core.run_dir import METRICS

__all__ = ["Analysis", "Comparison", "MethodRuns", "Metric", "Result", "TaskComparison", "analyze"]

logger = logging.getLogger(__name__)

#: Units of metrics that are shown unscaled. All other metrics are fractions and are shown in percent.
UNITS = {"rmse": "rmse", "mae": "mae", "bleu": "BLEU", "chrf": "chrF"}


@dataclass(frozen=True)
class Metric:
    """The metric by which methods are compared.

    Args:
        name: its name in metrics.json.
        higher_is_better: whether a higher value is better.
        split: the split it is computed on.
    """

    name: str
    higher_is_better: bool
    split: str

    @property
    def scale(self) -> float:
        return 1.0 if self.name in UNITS else 100.0

    @property
    def unit(self) -> str:
        """The unit of differences."""
        return UNITS.get(self.name, "points")

    @property
    def digits(self) -> int:
        """The number of decimals in tables."""
        return 4 if self.name in ("rmse", "mae") else 2

    def default_margin(self, baseline_mean: float) -> float:
        """Return the largest difference that counts as none: 0.5 BLEU, 2% of an error, or one point.

        Args:
            baseline_mean: the metric of the baseline.
        """
        if self.name in ("rmse", "mae"):
            return 0.02 * abs(baseline_mean)
        return 0.5 if self.name in UNITS else 1.0

    @classmethod
    def from_metrics(cls, metrics: Mapping[str, Any]) -> "Metric":
        """Return the primary metric of a run on its first test split, or on dev if there is no other split.

        Args:
            metrics: the contents of metrics.json.
        """
        task = Task(name=metrics["task"], label_type=metrics["label_type"], about="")
        split = next((split for split in metrics["metrics"] if split != "dev"), "dev")
        return cls(metrics["primary_metric"], task.higher_is_better, split)

    def value(self, result: Result) -> float:
        """Return the metric of a run, in percent if it is a fraction.

        Raises:
            UserError: The run has no such metric or split.
        """
        try:
            return self.scale * float(result.metrics["metrics"][self.split][self.name])
        except KeyError:
            raise UserError(
                f"{result.run_dir / METRICS}: has no {self.name} on {self.split}, unlike other runs of the study; "
                "repeat the run, or delete it from the study"
            ) from None


@dataclass(frozen=True)
class MethodRuns:
    """The runs of a method on a task, by seed."""

    name: str
    values: dict[int, float]
    results: dict[int, Result]

    @property
    def mean(self) -> float:
        return fmean(self.values.values())

    @property
    def std(self) -> float:
        return stdev(self.values.values()) if len(self.values) > 1 else float("nan")

    @property
    def seconds(self) -> float:
        """The mean training time."""
        return fmean(result.metrics["train_seconds"] for result in self.results.values())

    @property
    def peak_memory(self) -> tuple[float, str] | None:
        """The largest peak of all runs in MiB, and the kind of memory; None if a run has no measurement."""
        peaks = [result.metrics.get("peak_memory") for result in self.results.values()]
        measured = [peak for peak in peaks if peak is not None]
        if len(measured) < len(peaks):
            return None
        return max(peak["peak_mib"] for peak in measured), measured[0]["of"]


@dataclass(frozen=True)
class Comparison:
    """A method compared with its baseline by paired differences (method − baseline).

    Args:
        method: the method's name.
        baseline: the baseline's name.
        metric: the metric.
        differences: the difference for each seed that both methods were run with.
        seed_estimate: the mean difference with the interval and p-value of the paired t-test.
        p_holm: the p-value of the t-test with Holm's correction over the methods of the task.
        p_permutation: the p-value of the permutation test over seeds, not corrected.
        p_equivalence: the p-value of the equivalence test over seeds: the difference lies within the margin.
        margin: the largest difference that counts as none.
        example_estimate: the mean difference with the bootstrap interval over test examples; None without predictions.
        combined_estimate: the mean difference with the interval over seeds and examples; None without predictions.
        seeds_needed: the number of seeds to detect a difference of this size after correction; None if it is above
            10,000 or undefined.
        num_comparisons: the number of comparisons that Holm's method corrects for.
    """

    method: str
    baseline: str
    metric: Metric
    differences: dict[int, float]
    seed_estimate: Estimate
    p_holm: float
    p_permutation: float
    p_equivalence: float
    margin: float
    example_estimate: Estimate | None
    combined_estimate: Estimate | None
    seeds_needed: int | None
    num_comparisons: int

    @property
    def is_significant(self) -> bool:
        return self.p_holm < statistics.ALPHA

    @property
    def is_equivalent(self) -> bool:
        return self.p_equivalence < statistics.ALPHA

    @property
    def improvement(self) -> float:
        """The difference, positive if the method is better."""
        return self.seed_estimate.value if self.metric.higher_is_better else -self.seed_estimate.value


@dataclass(frozen=True)
class TaskComparison:
    """All methods on one task.

    Args:
        task: the task's name.
        metric: the metric.
        methods: the runs of each method, the baseline first.
        comparisons: the comparison of each method that has a baseline and shares seeds with it.
        unpaired_methods: the methods that share no seed with their baseline.
        dataset: the description of the data, from the baseline's first run.
    """

    task: str
    metric: Metric
    methods: tuple[MethodRuns, ...]
    comparisons: tuple[Comparison, ...]
    unpaired_methods: tuple[str, ...]
    dataset: str

    @property
    def num_seeds(self) -> int:
        """The largest number of seeds of a method."""
        return max(len(method.values) for method in self.methods)

    def comparison_of(self, method: str) -> Comparison | None:
        """Return the comparison of a method, or None if it is not compared."""
        return next((comparison for comparison in self.comparisons if comparison.method == method), None)


@dataclass(frozen=True)
class Analysis:
    """The analysis of a study.

    Args:
        baseline: the method that the others are compared with.
        tasks: the comparison on each task.
        ranks: average ranks of the methods that were run on all tasks; None for one task.
    """

    baseline: str
    tasks: tuple[TaskComparison, ...]
    ranks: Ranks | None


def analyze(
    results: Sequence[Result],
    baseline: str,
    controls: Mapping[str, str] | None = None,
    margin: float | None = None,
) -> Analysis:
    """Compare methods with a baseline on one task or several. Tasks without a run of the baseline are left out.

    Args:
        results: finished runs; runs of a method and of the baseline with the same seed are paired.
        baseline: a method that was run on at least one task.
        controls: the control of each method that is compared with its control instead of the baseline.
        margin: the largest difference that counts as none, in the unit of the metric; see `Metric.default_margin`.

    Raises:
        UserError: there are no runs, or none of the baseline.
    """
    if not results:
        raise UserError("nothing to compare: no run has finished")
    results_by_task: dict[str, list[Result]] = {}
    for result in results:
        results_by_task.setdefault(result.task, []).append(result)
    for task, task_results in list(results_by_task.items()):
        if all(result.method != baseline for result in task_results):
            message = f"{task}: nothing to compare with: no run of the baseline {baseline!r} has finished"
            del results_by_task[task]
            if not results_by_task:
                raise UserError(message)
            logger.warning("%s", message)
    tasks = tuple(
        compare_methods(task_results, baseline, controls or {}, margin) for task_results in results_by_task.values()
    )
    return Analysis(baseline, tasks, rank_methods(tasks))


def compare_methods(
    results: Sequence[Result], baseline: str, controls: Mapping[str, str], margin: float | None = None
) -> TaskComparison:
    """Compare the methods of one task with their controls, or with the baseline if they have none.

    Controls themselves, and methods that share no seed with their baseline, are not compared.

    Args:
        results: the runs of the task.
        baseline: the baseline's name.
        controls: the control of each method that has one.
        margin: the largest difference that counts as none; None for the metric's default.
    """
    metric = Metric.from_metrics(results[0].metrics)
    names = list(dict.fromkeys([baseline, *(result.method for result in results)]))
    methods = {name: collect_runs(name, results, metric) for name in names}
    baseline_of = map_baselines(names, baseline, controls)
    differences_of = {name: paired_differences(methods[name], methods[other]) for name, other in baseline_of.items()}
    paired = [name for name, differences in differences_of.items() if differences]
    seed_estimates = [statistics.seed_interval(list(differences_of[name].values())) for name in paired]
    corrected = statistics.holm_correction([estimate.p for estimate in seed_estimates])
    samples = bootstrap_by_run(results, metric)
    comparisons = []
    for name, seed_estimate, p_holm in zip(paired, seed_estimates, corrected, strict=True):
        differences = differences_of[name]
        values = list(differences.values())
        other = methods[baseline_of[name]]
        own_margin = metric.default_margin(other.mean) if margin is None else margin
        example_estimate = combined_estimate = None
        if samples is not None:
            seed_samples = [samples[name, seed] - samples[baseline_of[name], seed] for seed in differences]
            seed_samples = [sample for sample in np.transpose(seed_samples) if not np.isnan(sample).all()]
            mean_samples = np.nanmean(seed_samples, axis=1)  # a sample can have no row of a seed
            example_estimate = statistics.example_interval(seed_estimate.value, mean_samples)
            combined_estimate = statistics.seed_and_example_interval(values, mean_samples)
        comparisons.append(
            Comparison(
                method=name,
                baseline=baseline_of[name],
                metric=metric,
                differences=differences,
                seed_estimate=seed_estimate,
                p_holm=float(p_holm),
                p_permutation=float(statistics.permutation_test(values)),
                p_equivalence=float(statistics.equivalence_test(values, own_margin)),
                margin=own_margin,
                example_estimate=example_estimate,
                combined_estimate=combined_estimate,
                seeds_needed=statistics.seeds_needed(values, num_comparisons=len(paired)),
                num_comparisons=len(paired),
            )
        )
    return TaskComparison(
        task=results[0].task,
        metric=metric,
        methods=tuple(methods.values()),
        comparisons=tuple(comparisons),
        unpaired_methods=tuple(name for name, differences in differences_of.items() if not differences),
        dataset=next(iter(methods[baseline].results.values()), results[0]).metrics.get("dataset", ""),
    )


def map_baselines(names: Sequence[str], baseline: str, controls: Mapping[str, str]) -> dict[str, str]:
    """Return the method that each method is compared with.

    The baseline is not compared, and controls are compared only with a baseline that is no control itself.

    Args:
        names: the methods of a task.
        baseline: the baseline.
        controls: the control of each method that has one.

    Example:
        >>> map_baselines(["none", "plain", "rpr", "bert"], "none", {"plain": "none", "rpr": "none"})
        {'plain': 'none', 'rpr': 'none', 'bert': 'none'}
        >>> map_baselines(["truncate", "tile", "tile+rpr"], "truncate", {"tile+rpr": "tile"})
        {'tile': 'truncate', 'tile+rpr': 'tile'}
    """
    controls = {name: control for name, control in controls.items() if name in names and control in names}
    not_compared = {baseline}
    if baseline in controls.values():
        not_compared |= set(controls.values()) - controls.keys()
    return {name: controls.get(name, baseline) for name in names if name not in not_compared}


def collect_runs(name: str, results: Sequence[Result], metric: Metric) -> MethodRuns:
    """Return the runs of a method, ordered by seed."""
    by_seed = {result.seed: result for result in sorted(results, key=lambda r: r.seed) if result.method == name}
    return MethodRuns(name, {seed: metric.value(result) for seed, result in by_seed.items()}, by_seed)


def paired_differences(runs: MethodRuns, baseline_runs: MethodRuns) -> dict[int, float]:
    """Return the differences for the seeds that both methods were run with."""
    baseline_values = baseline_runs.values
    return {seed: value - baseline_values[seed] for seed, value in runs.values.items() if seed in baseline_values}


def bootstrap_by_run(results: Sequence[Result], metric: Metric) -> dict[tuple[str, int], Any] | None:
    """Return the metric on bootstrap samples by method and seed; None if it cannot be computed."""
    samples = bootstrap_primary_metric(results, metric.split)
    if samples is None:
        return None
    return {(result.method, result.seed): metric.scale * samples[:, run] for run, result in enumerate(results)}


def rank_methods(tasks: Sequence[TaskComparison]) -> Ranks | None:
    """Return average ranks over tasks; None for one task, or if fewer than two methods were run on all tasks."""
    means = [{method.name: method.mean for method in task.methods} for task in tasks]
    shared = [name for name in means[0] if all(name in task_means for task_means in means)]
    if len(tasks) < 2 or len(shared) < 2:
        return None
    values = np.array([[task_means[name] for name in shared] for task_means in means])
    signs = np.array([[1.0 if task.metric.higher_is_better else -1.0] for task in tasks])
    return statistics.average_ranks(shared, values * signs)
