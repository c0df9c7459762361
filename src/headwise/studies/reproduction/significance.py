"""The significance test of the distance-aware paper: the best method against the second best."""

from collections.abc import Collection, Sequence

from scipy import stats

from headwise.studies.analysis import Analysis, MethodRuns, TaskComparison, paired_differences
from headwise.studies.papers import PublishedTable
from headwise.studies.statistics import seed_interval
from headwise.studies.summary import format_number, format_p
from headwise.studies.tables import TextTable, interval_cell

#: The method without positions, which the paper does not have.
CONTROL = "none"

TITLE = (
    "the paper's test: best against second best. Its t-test is not paired and not corrected for the choice of the best "
    "method, so that it finds differences too often; the paired test uses the same seeds"
)


def build_best_tables(analysis: Analysis, published: PublishedTable) -> list[TextTable]:
    """Return, for each task, the test of the best method against the second best.

    Among the methods are those that the paper reports. If it reports fewer than two, all but the control are.
    """
    tables = []
    for task in analysis.tasks:
        row = compare_best(task, published.values.get(task.task, {}))
        if row is not None:
            header = ("best", "second best", "difference", "p (paper's t-test)", "p (paired t-test)", "seeds")
            tables.append(TextTable(f"{task.task}, {TITLE}", header, (row,)))
    return tables


def compare_best(task: TaskComparison, reported: Collection[str]) -> tuple[str, ...] | None:
    """Return the cells of the test, or None if fewer than two methods have runs."""
    methods = [method for method in task.methods if method.values]
    in_paper = [method for method in methods if method.name in reported]
    if len(in_paper) < 2:
        in_paper = [method for method in methods if method.name != CONTROL]
    ranked = rank(in_paper, higher_is_better=task.metric.higher_is_better)
    if len(ranked) < 2:
        return None
    best, second = ranked[:2]
    differences = list(paired_differences(best, second).values())
    estimate = seed_interval(differences) if len(differences) > 1 else None
    difference = format_number(best.mean - second.mean, task.metric, plus=True)
    return (
        best.name,
        second.name,
        f"{difference} {interval_cell(estimate, task.metric)}".rstrip(),
        format_p(student_test(best, second)),
        format_p(float("nan") if estimate is None else estimate.p),
        f"{len(best.values)} and {len(second.values)}",
    )


def rank(methods: Sequence[MethodRuns], *, higher_is_better: bool) -> list[MethodRuns]:
    """Return methods by their means, the best first."""
    return sorted(methods, key=lambda method: method.mean, reverse=higher_is_better)


def student_test(best: MethodRuns, second: MethodRuns) -> float:
    """Return the p-value of Student's t-test of two samples; NaN with fewer than two seeds or without variation."""
    samples = [list(method.values.values()) for method in (best, second)]
    if min(map(len, samples)) < 2 or all(len(set(sample)) == 1 for sample in samples):
        return float("nan")
    return float(stats.ttest_ind(*samples).pvalue)
