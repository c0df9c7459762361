"""What came of a comparison, in plain words."""

import math
from collections.abc import Sequence

from headwise.studies.comparison import Comparison, Measure, TaskComparison
from headwise.studies.statistics import ALPHA, Estimate, Ranks, min_permutation_p


def told(found: TaskComparison) -> list[str]:
    """A sentence for each method of a task."""
    return [sentence(one) for one in found.comparisons]


def sentence(found: Comparison) -> str:
    """What a comparison says, and what it does not."""
    seeds = len(found.differences)
    size = found.over_seeds
    if seeds < 2:
        told = signed(size.value, found.measure)
        return f"{found.method}: {told} against {found.baseline} with one seed, which says nothing about chance."
    p = chance(found.corrected) + (" after Holm" if found.family > 1 else "")
    if found.significant:
        verb = "beats" if found.gain > 0 else "is worse than"
        amount = f"{abs(size.value):.{found.measure.digits}f} {found.measure.unit}"
        ends = between(size, found.measure, turned=size.value < 0)
        return (
            f"{found.method} {verb} {found.baseline} by {amount} ({ends}, {p}, {seeds} seeds)."
            f"{doubts(found, turned=size.value < 0)}"
        )
    start = "did not help here" if found.gain <= 0 else "is not shown to help"
    ends = between(size, found.measure)
    p += f", {probability(size.p)} by itself" if size.p < ALPHA else ""
    return (
        f"{found.method} {start}: {signed(size.value, found.measure)} against {found.baseline} ({ends}), "
        f"not significant ({p}, {seeds} seeds); {needed(found)}."
    )


def needed(found: Comparison) -> str:
    if found.over_seeds.value == 0:
        return "there is no difference to see"
    if found.needed is None:
        return "no number of seeds that anyone would run could show a difference of this size"
    if found.needed <= len(found.differences):
        return "by itself, without the correction for several methods, this many seeds would be enough"
    return f"about {found.needed:,} seeds would be needed to see a difference of this size"


def doubts(found: Comparison, *, turned: bool) -> str:
    """What speaks against a significant difference."""
    told = ""
    if found.permutation >= ALPHA:
        told += f" The permutation test does not confirm it ({chance(found.permutation)})."
    both = found.over_both
    if both is not None and both.low <= 0 <= both.high:
        ends = between(both, found.measure, turned=turned)
        told += f" With other test examples too, it is not certain: {ends}."
    return told


def warnings(found: TaskComparison) -> list[str]:
    """What a reader should know before believing anything."""
    told = []
    if found.comparisons:
        told += few_seeds(found.comparisons)
    most = found.seeds
    for method in found.methods:
        if len(method.figures) < most:
            told.append(f"{method.name} has {len(method.figures)} of {most} seeds; differences are of those it has.")
    told += [f"{name} shares no seed with what it is to be compared with." for name in found.unpaired]
    if found.measure.split == "dev":
        told.append("There is no test split: figures are those of dev, which also chose the epoch.")
    if found.comparisons and found.comparisons[0].over_examples is None:
        told.append("Chance in the test examples is not counted: there are no predictions to draw from.")
    return told


def few_seeds(comparisons: Sequence[Comparison]) -> list[str]:
    """Where a permutation test cannot become significant, however clear the difference."""
    seeds, family = max(len(one.differences) for one in comparisons), comparisons[0].family
    if seeds < 2:
        return ["One seed: nothing can be said about chance."]
    if min_permutation_p(seeds) * family < ALPHA:
        return []
    enough = next(n for n in range(2, 100) if min_permutation_p(n) * family < ALPHA)
    among = f" among {family} methods" if family > 1 else ""
    return [
        f"{seeds} seeds cannot go below p = {min_permutation_p(seeds):.4g} in a permutation test: nothing{among} can "
        f"be significant by it; with {enough} seeds it could."
    ]


def ranking(found: Ranks) -> str:
    """What average ranks say."""
    order = ", ".join(f"{name} {rank:.2f}" for name, rank in sorted(found.average.items(), key=lambda x: x[1]))
    alike = "" if math.isnan(found.p) else f" Friedman: {chance(found.p)}."
    spread = max(found.average.values()) - min(found.average.values())
    tell = "no two methods can be told apart" if spread < found.critical else "methods farther apart differ"
    return (
        f"Average ranks over {found.tasks} tasks: {order}.{alike} "
        f"Nemenyi's critical difference is {found.critical:.2f} ranks: {tell}."
    )


def between(size: Estimate, measure: Measure, *, turned: bool = False) -> str:
    """An interval in words; turned round where a loss is told as a positive number."""
    if math.isnan(size.low):
        return "every seed gave this difference"
    low, high = (-size.high, -size.low) if turned else (size.low, size.high)
    return f"95% CI {number(low, measure)} to {number(high, measure)}"


def signed(value: float, measure: Measure) -> str:
    return f"{number(value, measure, plus=True)} {measure.unit}"


def number(value: float, measure: Measure, *, plus: bool = False) -> str:
    """With a real minus, and no sign at 0.

    >>> accuracy = Measure("accuracy", True, "test")
    >>> number(-0.214, accuracy), number(0.5, accuracy, plus=True), number(-0.001, accuracy)
    ('−0.21', '+0.50', '0.00')
    """
    text = f"{value:{'+' if plus else ''}.{measure.digits}f}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", "−")


def chance(p: float) -> str:
    """
    >>> chance(0.03), chance(0.00004)
    ('p = 0.03', 'p < 0.001')
    """
    return f"p {probability(p)}" if p < 0.001 else f"p = {probability(p)}"


def probability(p: float) -> str:
    """
    >>> probability(0.0625), probability(0.4), probability(0.00004), probability(float("nan"))
    ('0.062', '0.4', '< 0.001', '–')
    """
    return "–" if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.2g}"
