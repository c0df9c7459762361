"""Summary of an analysis in sentences."""

import math
from collections import Counter
from collections.abc import Sequence

from headwise.studies.analysis import Analysis, Comparison, Metric, TaskComparison
from headwise.studies.learning import average_baselines, list_unlearned
from headwise.studies.statistics import ALPHA, Estimate, Ranks, min_permutation_p, min_seeds
from headwise.studies.verdicts import Verdict, judge_comparison
from headwise.training.core.verdict import CONSTANT_ANSWERS


def summarize(analysis: Analysis) -> list[str]:
    """Return a sentence on the ranks, if there are several tasks, and sentences on each method of each task."""
    lines = [] if analysis.ranks is None else [summarize_ranks(analysis.ranks)]
    for task in analysis.tasks:
        prefix = f"{task.task}: " if len(analysis.tasks) > 1 else ""
        lines += [prefix + line for line in summarize_task(task)]
    return lines


def summarize_task(task: TaskComparison) -> list[str]:
    """Return the methods that did not learn, if there are any, and the result of each comparison on a task."""
    return [*summarize_learning(task), *(summarize_comparison(comparison, task) for comparison in task.comparisons)]


def summarize_baselines(task: TaskComparison) -> list[str]:
    """Return a sentence with the metrics of the baselines on the same rows, if the runs have some."""
    method = max(task.methods, key=lambda method: len(method.results))
    baselines = average_baselines(method, task.metric)
    if not baselines:
        return []
    values = ", ".join(f"{name} {format_number(value, task.metric)}" for name, value in baselines.items())
    return [f"Baselines, {task.metric.name} on {task.metric.split}, mean over seeds: {values}."]


def summarize_learning(task: TaskComparison) -> list[str]:
    """Return a sentence for each baseline that no method, or not every method, reaches."""
    unlearned = list_unlearned(task)
    if not unlearned:
        return []
    lines = []
    for name in dict.fromkeys(learning.baseline for learning in unlearned.values()):
        below = {method: learning for method, learning in unlearned.items() if learning.baseline == name}
        learning = next(iter(below.values()))
        baseline = f"{learning.description} ({task.metric.name} {format_number(learning.baseline_value, task.metric)})"
        degree = "clearly " if name in CONSTANT_ANSWERS else ""
        if len(task.methods) == 1:
            lines.append(
                f"{task.methods[0].name} did not learn: it is not {degree}better than {baseline}. Try more epochs, "
                "another learning rate or more rows."
            )
        elif len(below) == len(task.methods):
            lines.append(
                f"No method learned: no method is {degree}better than {baseline}. Differences between the methods are "
                "meaningless. Try more epochs, another learning rate or more rows."
            )
        elif name in CONSTANT_ANSWERS:
            lines.append(f"{', '.join(below)} did not learn enough: not {degree}better than {baseline}.")
        else:
            lines.append(f"{', '.join(below)} did not learn enough: below {baseline}.")
    return lines


def summarize_comparison(comparison: Comparison, task: TaskComparison) -> str:
    """Return the result of a comparison: its direction, size, interval and p-value."""
    verdict = judge_comparison(comparison, task)
    num_seeds, estimate, metric = len(comparison.differences), comparison.seed_estimate, comparison.metric
    signed_value = f"{format_number(estimate.value, metric, plus=True)} {metric.unit}"
    if num_seeds < 2:
        return (
            f"{comparison.method}: {signed_value} compared with {comparison.baseline}, with one seed. "
            "One seed allows no statistical statement."
        )
    if verdict == Verdict.NOT_TESTABLE:
        unlearned = [name for name in (comparison.method, comparison.baseline) if name in list_unlearned(task)]
        return (
            f"{comparison.method} and {comparison.baseline}: not testable here, because {' and '.join(unlearned)} did "
            f"not learn. The difference is {signed_value} ({format_interval(estimate, metric)}, {num_seeds} seeds)."
        )
    p = format_p_equation(comparison.p_holm) + (" after Holm correction" if comparison.num_comparisons > 1 else "")
    if comparison.is_significant:
        is_negative = estimate.value < 0
        direction = "better" if comparison.improvement > 0 else "worse"
        size = f"{abs(estimate.value):.{metric.digits}f} {metric.unit}"
        interval = format_interval(estimate, metric, negate=is_negative)
        return (
            f"{comparison.method} is {direction} than {comparison.baseline} by {size} "
            f"({interval}, {p}, {num_seeds} seeds).{summarize_doubts(comparison, negate=is_negative)}"
        )
    margin = f"{format_number(comparison.margin, metric)} {metric.unit}"
    if verdict == Verdict.NO_DIFFERENCE:
        return (
            f"{comparison.method} and {comparison.baseline} do not differ by more than {margin}: {signed_value} "
            f"({format_interval(estimate, metric)}, equivalence test {format_p_equation(comparison.p_equivalence)}, "
            f"{num_seeds} seeds)."
        )
    p += f", {format_p(estimate.p)} before" if estimate.p < ALPHA else ""
    return (
        f"{comparison.method} is not significantly different from {comparison.baseline}: {signed_value} "
        f"({format_interval(estimate, metric)}, {p}, {num_seeds} seeds). A difference of more than {margin} is not "
        f"excluded. {summarize_seeds_needed(comparison)}"
    )


def summarize_seeds_needed(comparison: Comparison) -> str:
    """Return a sentence on the number of seeds that would make a difference of this size significant."""
    if comparison.seed_estimate.value == 0:
        return "The mean difference is 0, so no number of seeds would make it significant."
    if math.isnan(comparison.seed_estimate.low):
        return "The differences do not vary, so the number of seeds that would be needed is unknown."
    if comparison.seeds_needed is None:
        return "No feasible number of seeds would detect a difference of this size."
    return f"About {comparison.seeds_needed:,} seeds would be needed to detect a difference of this size."


def summarize_doubts(comparison: Comparison, *, negate: bool) -> str:
    """Return the tests that do not confirm a significant difference."""
    text = ""
    if comparison.p_permutation >= ALPHA:
        text += f" The permutation test does not confirm this ({format_p_equation(comparison.p_permutation)})."
    combined = comparison.combined_estimate
    if combined is not None and combined.low <= 0 <= combined.high:
        interval = format_interval(combined, comparison.metric, negate=negate)
        text += f" The interval over seeds and test examples contains 0 ({interval})."
    return text


def list_warnings(task: TaskComparison) -> list[str]:
    """Return limitations of a comparison."""
    warnings = []
    if task.comparisons:
        warnings += warn_few_seeds(task.comparisons)
    warnings += [
        f"{comparison.method} and {comparison.baseline} are compared over {len(comparison.differences)} of "
        f"{task.num_seeds} seeds, those that both have. Means are over all seeds of a method."
        for comparison in task.comparisons
        if len(comparison.differences) < task.num_seeds
    ]
    warnings += [f"{name} shares no seed with its baseline and is not compared." for name in task.unpaired_methods]
    if has_changed_rows(task):
        warnings.append(
            f"Runs have different {task.metric.split} rows, because files changed during the study or methods have "
            "different data. Differences between the methods are meaningless. Repeat the study in a new directory."
        )
    if task.metric.split == "dev":
        warnings.append("There is no test split. Metrics are those on dev, which also selected the epoch.")
    if task.comparisons and task.comparisons[0].example_estimate is None:
        warnings.append("There are no predictions, so the variation over test examples is unknown.")
    return warnings


def has_changed_rows(task: TaskComparison) -> bool:
    """Return whether the rows of runs differ, other than by a split that is drawn anew for each seed."""
    rows_by_seed: dict[int, set[str]] = {}
    for method in task.methods:
        for seed, result in method.results.items():
            fingerprint = result.metrics.get("fingerprints", {}).get(task.metric.split)
            if fingerprint is not None:
                rows_by_seed.setdefault(seed, set()).add(fingerprint)
    counts = Counter(fingerprint for rows in rows_by_seed.values() for fingerprint in rows)
    return any(len(rows) > 1 for rows in rows_by_seed.values()) or len(counts) not in (0, 1, counts.total())


def warn_few_seeds(comparisons: Sequence[Comparison]) -> list[str]:
    """Return a warning if no permutation test can be significant with this number of seeds."""
    num_seeds = max(len(comparison.differences) for comparison in comparisons)
    num_comparisons = comparisons[0].num_comparisons
    if num_seeds < 2:
        return ["One seed allows no statistical statement."]
    if min_permutation_p(num_seeds) * num_comparisons < ALPHA:
        return []
    correction = f" after correction for {num_comparisons} methods" if num_comparisons > 1 else ""
    return [
        f"A permutation test with {num_seeds} seeds has p ≥ {min_permutation_p(num_seeds):.4g} and cannot be "
        f"significant{correction}; at least {min_seeds(num_comparisons)} seeds are needed."
    ]


def summarize_ranks(ranks: Ranks) -> str:
    """Return average ranks with the results of Friedman's and Nemenyi's tests."""
    order = ", ".join(f"{name} {rank:.2f}" for name, rank in sorted(ranks.average.items(), key=lambda item: item[1]))
    friedman = "" if math.isnan(ranks.p) else f" Friedman test: {format_p_equation(ranks.p)}."
    rank_range = max(ranks.average.values()) - min(ranks.average.values())
    if rank_range < ranks.critical_difference:
        conclusion = "no two methods differ significantly"
    else:
        conclusion = "methods that are farther apart differ significantly"
    return (
        f"Average ranks over {ranks.num_tasks} tasks: {order}.{friedman} "
        f"Nemenyi's critical difference is {ranks.critical_difference:.2f} ranks: {conclusion}."
    )


def format_interval(estimate: Estimate, metric: Metric, *, negate: bool = False) -> str:
    """Return a confidence interval, negated for a negative difference that is stated as a positive number."""
    if math.isnan(estimate.low):
        return "the same difference for every seed"
    low, high = (-estimate.high, -estimate.low) if negate else (estimate.low, estimate.high)
    return f"95% CI {format_number(low, metric)} to {format_number(high, metric)}"


def format_number(value: float, metric: Metric, *, plus: bool = False) -> str:
    """Format a number with a typographic minus, and without a sign if it rounds to 0.

    >>> accuracy = Metric("accuracy", True, "test")
    >>> format_number(-0.214, accuracy), format_number(0.5, accuracy, plus=True), format_number(-0.001, accuracy)
    ('−0.21', '+0.50', '0.00')
    """
    text = f"{value:{'+' if plus else ''}.{metric.digits}f}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", "−")


def format_p_equation(p: float) -> str:
    """
    >>> format_p_equation(0.03), format_p_equation(0.00004)
    ('p = 0.03', 'p < 0.001')
    """
    return f"p {format_p(p)}" if p < 0.001 else f"p = {format_p(p)}"


def format_p(p: float) -> str:
    """Format a p-value with two digits, or with more if it would round to the significance level.

    >>> format_p(0.0625), format_p(0.4), format_p(0.00004), format_p(float("nan"))
    ('0.062', '0.4', '< 0.001', '–')
    >>> format_p(0.0496), format_p(0.0504), format_p(0.04999)
    ('0.0496', '0.0504', '0.04999')
    """
    if math.isnan(p):
        return "–"
    digits = next((n for n in range(2, 10) if float(f"{p:.{n}g}") != ALPHA), 2)
    return "< 0.001" if p < 0.001 else f"{p:.{digits}g}"
