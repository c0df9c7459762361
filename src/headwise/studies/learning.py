"""Whether methods learned: whether they are at least as good as a linear model and better than a constant answer."""

from dataclasses import dataclass
from statistics import fmean

from headwise.studies.analysis import MethodRuns, Metric, TaskComparison
from headwise.training.core.verdict import CLEAR, CONSTANT_ANSWERS, ORACLE


@dataclass(frozen=True)
class Learning:
    """A method and the baseline that it must reach, as means over seeds.

    Args:
        baseline: the baseline's name, such as `most frequent label` or `TF-IDF + logistic regression`.
        baseline_value: the baseline's metric.
        has_learned: whether the method is clearly better than a constant answer, or not below another baseline.
    """

    baseline: str
    baseline_value: float
    has_learned: bool

    @property
    def description(self) -> str:
        """The baseline as a phrase."""
        return CONSTANT_ANSWERS.get(self.baseline, self.baseline)


def get_learning(method: MethodRuns, task: TaskComparison) -> Learning | None:
    """Compare a method with its baselines; return the first that it does not reach, or the best one.

    Returns:
        None if the runs have no baselines.
    """
    metric = task.metric
    errors = [run.metrics.get("standard_error", {}).get(metric.split, 0.0) for run in method.results.values()]
    sign = 1 if metric.higher_is_better else -1
    learning = []
    for name, value in average_baselines(method, metric).items():
        gain = sign * (method.mean - value)
        is_reached = gain > CLEAR * metric.scale * fmean(errors) if name in CONSTANT_ANSWERS else gain >= 0
        learning.append(Learning(name, value, is_reached))
    learning.sort(key=lambda x: (x.has_learned, x.baseline not in CONSTANT_ANSWERS, -sign * x.baseline_value))
    return learning[0] if learning else None


def average_baselines(method: MethodRuns, metric: Metric) -> dict[str, float]:
    """Return the metric of each baseline that all runs of a method have, as the mean over seeds."""
    baselines = [run.metrics.get("baselines", {}).get(metric.split, {}) for run in method.results.values()]
    names = [name for name in (baselines[0] if baselines else {}) if name != ORACLE]
    return {
        name: fmean(metric.scale * values[name][metric.name] for values in baselines)
        for name in names
        if all(values.get(name, {}).get(metric.name) is not None for values in baselines)
    }


def list_unlearned(task: TaskComparison) -> dict[str, Learning]:
    """Return the methods that did not learn."""
    learning = {method.name: get_learning(method, task) for method in task.methods if method.values}
    return {name: value for name, value in learning.items() if value is not None and not value.has_learned}
