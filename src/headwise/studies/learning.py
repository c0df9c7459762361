"""Whether methods learned: whether they are clearly better than a baseline that gives every row the same answer."""

from dataclasses import dataclass
from statistics import fmean

from headwise.studies.analysis import MethodRuns, TaskComparison
from headwise.training.core.verdict import CLEAR, CONSTANT_ANSWERS


@dataclass(frozen=True)
class Learning:
    """A method and a baseline that gives every row the same answer, as means over seeds.

    Args:
        baseline: the baseline's name, a key of `CONSTANT_ANSWERS`.
        baseline_value: the baseline's metric.
        has_learned: whether the method is better than the baseline.
    """

    baseline: str
    baseline_value: float
    has_learned: bool


def get_learning(method: MethodRuns, task: TaskComparison) -> Learning | None:
    """Compare a method with the baseline of constant answers; None if its runs have no such baseline."""
    metric = task.metric
    runs = list(method.results.values())
    baselines = [run.metrics.get("baselines", {}).get(metric.split, {}) for run in runs]
    name = next((name for name in CONSTANT_ANSWERS if runs and all(name in values for values in baselines)), None)
    if name is None:
        return None
    value = fmean(metric.scale * values[name][metric.name] for values in baselines)
    errors = [run.metrics.get("standard_error", {}).get(metric.split, 0.0) for run in runs]
    sign = 1 if metric.higher_is_better else -1
    margin = CLEAR * metric.scale * fmean(errors)
    return Learning(name, value, sign * (method.mean - value) > margin)


def list_unlearned(task: TaskComparison) -> dict[str, Learning]:
    """Return the methods that did not learn."""
    learning = {method.name: get_learning(method, task) for method in task.methods if method.values}
    return {name: value for name, value in learning.items() if value is not None and not value.has_learned}
