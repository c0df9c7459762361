"""Verdicts on comparisons: what a study shows about a method and its baseline."""

from enum import StrEnum

from headwise.studies.analysis import Comparison, TaskComparison
from headwise.studies.learning import list_unlearned


class Verdict(StrEnum):
    """What a comparison shows. `NO_DIFFERENCE` needs an equivalence test, not only a large p-value."""

    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference"
    UNDECIDED = "undecided"
    NOT_TESTABLE = "not testable"


def judge_comparison(comparison: Comparison, task: TaskComparison) -> Verdict:
    """Return the verdict on a comparison.

    A method or baseline that did not learn proves nothing, so such a comparison is not testable.

    Args:
        comparison: the comparison.
        task: its task.
    """
    if {comparison.method, comparison.baseline} & list_unlearned(task).keys():
        return Verdict.NOT_TESTABLE
    if comparison.is_significant:
        return Verdict.BETTER if comparison.improvement > 0 else Verdict.WORSE
    return Verdict.NO_DIFFERENCE if comparison.is_equivalent else Verdict.UNDECIDED
