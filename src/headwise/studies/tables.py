"""Tables of an answer: on a terminal, in Markdown, LaTeX (booktabs), CSV and HTML, from the same cells."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from headwise.studies.comparison import Comparison, Measure, Runs, TaskComparison
from headwise.studies.statistics import Estimate, Ranks
from headwise.studies.summary import number, probability

NOTE = (
    "Mean ± standard deviation over seeds. Differences are paired, seed by seed; * where p of the paired t-test is "
    "below 0.05 after Holm's correction over the methods; the p of the permutation test over seeds is not corrected. "
    "Intervals are 95%: beside the difference over seeds, by the paired t-test; over test examples, by a paired "
    "bootstrap; over both, by adding the squares of their half widths."
)


@dataclass(frozen=True)
class Grid:
    """A table's cells, as text; the first column names the row."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def on_task(found: TaskComparison) -> Grid:
    """All that is known about the methods of a task."""
    measure = found.measure
    by_name = {one.method: one for one in found.comparisons}
    header = (
        "method",
        heading(measure),
        "difference",
        "p, Holm",
        "permutation",
        "over examples",
        "over both",
        "seeds",
    )
    rows = [(m.name, spread(m, measure), *cells(by_name.get(m.name)), str(len(m.figures))) for m in found.methods]
    baselines = {one.baseline for one in found.comparisons}
    title = f"{found.task}, compared with {baselines.pop()}" if len(baselines) == 1 else f"{found.task}, by controls"
    return Grid(title, header, tuple(rows))


def heading(measure: Measure) -> str:
    unit = ", %" if measure.unit == "points" else ""
    return (
        f"{measure.unit if not unit else measure.name}{unit}{'' if measure.higher_is_better else ' (lower is better)'}"
    )


def spread(method: Runs, measure: Measure) -> str:
    std = "" if math.isnan(method.std) else f" ± {number(method.std, measure)}"
    return f"{number(method.mean, measure)}{std}"


def cells(found: Comparison | None) -> tuple[str, ...]:
    if found is None:
        return ("",) * 5
    size, measure = found.over_seeds, found.measure
    star = "*" if found.significant else ""
    return (
        f"{number(size.value, measure, plus=True)}{star} {ends(size, measure)}".rstrip(),
        probability(found.corrected),
        probability(found.permutation),
        ends(found.over_examples, measure),
        ends(found.over_both, measure),
    )


def ends(size: Estimate | None, measure: Measure) -> str:
    if size is None or math.isnan(size.low):
        return ""
    return f"[{number(size.low, measure)}, {number(size.high, measure)}]"


def overview(tasks: Sequence[TaskComparison], ranks: Ranks | None) -> Grid:
    """Every method on every task, and its average rank."""
    names = list(dict.fromkeys(method.name for task in tasks for method in task.methods))
    header = ["method", *(f"{task.task}: {heading(task.measure)}" for task in tasks)]
    rows = []
    for name in names:
        row = [name]
        for task in tasks:
            star = "*" if any(one.significant for one in task.comparisons if one.method == name) else ""
            own = next((method for method in task.methods if method.name == name), None)
            row.append("" if own is None else spread(own, task.measure) + star)
        rows.append(row + ([] if ranks is None else [f"{ranks.average[name]:.2f}" if name in ranks.average else ""]))
    return Grid("all tasks", (*header, *(() if ranks is None else ("average rank",))), tuple(map(tuple, rows)))


def cost(found: TaskComparison) -> Grid:
    """Time and memory of a run, each method's mean and peak."""
    first = found.methods[0].seconds or math.nan
    rows = []
    for method in found.methods:
        memory = "" if method.memory is None else f"{method.memory[0]:,.0f}"
        rows.append((method.name, f"{method.seconds:,.1f}", f"{method.seconds / first:.2f}×", memory))
    known = next((method.memory[1] for method in found.methods if method.memory is not None), None)
    peak = "peak memory, MiB" + ("" if known is None else f" ({known})")
    return Grid(f"{found.task}: cost of a run", ("method", "seconds", f"of {found.methods[0].name}", peak), tuple(rows))


def rich(grid: Grid) -> Table:
    table = Table(title=grid.title, title_justify="left")
    for column, name in enumerate(grid.header):
        table.add_column(name, justify="right" if column else "left", no_wrap=not column)
    for row in grid.rows:
        table.add_row(*(cell.replace("[", "\\[") for cell in row))
    return table


def markdown(grid: Grid) -> str:
    """
    >>> print(markdown(Grid("sst2", ("method", "accuracy"), (("a|b", "90.1"),))))
    **sst2**
    <BLANKLINE>
    | method | accuracy |
    |---|--:|
    | a\\|b | 90.1 |
    <BLANKLINE>
    """
    lines = [grid.header, *grid.rows]
    told = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    rule = "|---|" + "--:|" * (len(grid.header) - 1)
    return "\n".join([f"**{grid.title}**", "", told[0], rule, *told[1:], ""])


LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "–": "--",
    "<": "$<$",
    ">": "$>$",
}


def latex(grid: Grid, note: str = "") -> str:
    """A table for `\\usepackage{booktabs}`."""
    columns = "l" + "r" * (len(grid.header) - 1)
    lines = [" & ".join(map(in_latex, line)) + r" \\" for line in (grid.header, *grid.rows)]
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{in_latex(f'{grid.title}. {note}'.strip())}}}",
            rf"  \begin{{tabular}}{{{columns}}}",
            r"    \toprule",
            f"    {lines[0]}",
            r"    \midrule",
            *(f"    {line}" for line in lines[1:]),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def in_latex(text: str) -> str:
    """
    >>> print(in_latex("50 % & −1 ± 2, a_b"))
    50 \\% \\& $-$1 $\\pm$ 2, a\\_b
    """
    return "".join(LATEX.get(sign, sign) for sign in text)


def comma_separated(tasks: Sequence[TaskComparison]) -> str:
    """Every number of every method, a line each, not rounded."""
    lines = [line(task, method) for task in tasks for method in task.methods]
    file = io.StringIO()
    writer = csv.DictWriter(file, lines[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def line(task: TaskComparison, method: Runs) -> dict[str, object]:
    found = next((one for one in task.comparisons if one.method == method.name), None)
    return {
        "task": task.task,
        "method": method.name,
        "baseline": task.methods[0].name,
        "metric": task.measure.name,
        "split": task.measure.split,
        "seeds": len(method.figures),
        "mean": method.mean,
        "std": method.std,
        "difference": None if found is None else found.over_seeds.value,
        **numbers("", None if found is None else found.over_seeds),
        "p_holm": None if found is None else found.corrected,
        "p_permutation": None if found is None else found.permutation,
        **numbers("examples_", None if found is None else found.over_examples),
        **numbers("both_", None if found is None else found.over_both),
        "seeds_needed": None if found is None else found.needed,
        "train_seconds": method.seconds,
        "peak_mib": None if method.memory is None else method.memory[0],
    }


def numbers(start: str, size: Estimate | None) -> dict[str, object]:
    return {f"{start}{name}": None if size is None else getattr(size, name) for name in ("low", "high", "p")}
