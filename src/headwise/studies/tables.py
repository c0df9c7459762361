"""Tables of an analysis for the terminal, Markdown, LaTeX (booktabs), CSV and HTML."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from headwise.csv_cells import quote_record
from headwise.studies.analysis import Analysis, Comparison, MethodRuns, Metric, TaskComparison
from headwise.studies.statistics import Estimate, Ranks
from headwise.studies.summary import format_number, format_p
from headwise.studies.verdicts import Verdict, judge_comparison

NOTE = (
    "Mean ± standard deviation over seeds. Differences are paired by seed. * marks p < 0.05 in the paired t-test after "
    "Holm correction over the methods, if both methods learned. The verdict is "
    '"no difference" if an equivalence test (two one-sided t-tests, p < 0.05) shows that the difference lies within '
    'the margin, and "not testable" if a method or its baseline did not learn. The p-value of the permutation test '
    "over seeds is not corrected. All intervals are 95% confidence intervals: of the difference over seeds (paired "
    "t-test), over test examples (paired bootstrap) and over both (the square root of the sum of the squared "
    "half-widths)."
)


@dataclass(frozen=True)
class TextTable:
    """A table of formatted cells. The first column names the row."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def build_tables(analysis: Analysis) -> list[TextTable]:
    """Return an overview, if there are several tasks, and a table for each task."""
    overview = [build_overview_table(analysis.tasks, analysis.ranks)] if len(analysis.tasks) > 1 else []
    return overview + [build_task_table(task) for task in analysis.tasks]


def build_task_table(task: TaskComparison) -> TextTable:
    """Return the metrics and comparisons of all methods on a task."""
    header = (
        "method",
        metric_label(task.metric),
        "difference",
        "verdict",
        "p (Holm)",
        "p (permutation)",
        "CI over examples",
        "CI over both",
        "seeds",
    )
    rows = [
        (
            method.name,
            format_mean(method, task.metric),
            *comparison_cells(task.comparison_of(method.name), task),
            str(len(method.values)),
        )
        for method in task.methods
    ]
    baselines = {comparison.baseline for comparison in task.comparisons}
    title = task.task
    if baselines:
        title += f", compared with {baselines.pop() if len(baselines) == 1 else 'controls'}"
    return TextTable(title, header, tuple(rows))


def metric_label(metric: Metric) -> str:
    """
    >>> metric_label(Metric("accuracy", True, "test")), metric_label(Metric("rmse", False, "test"))
    ('accuracy, %', 'rmse (lower is better)')
    """
    label = f"{metric.name}, %" if metric.unit == "points" else metric.unit
    return label if metric.higher_is_better else f"{label} (lower is better)"


def format_mean(method: MethodRuns, metric: Metric) -> str:
    """Return mean ± standard deviation over seeds."""
    std = "" if math.isnan(method.std) else f" ± {format_number(method.std, metric)}"
    return f"{format_number(method.mean, metric)}{std}"


def comparison_cells(comparison: Comparison | None, task: TaskComparison) -> tuple[str, ...]:
    """Return the cells from the difference to the interval over both."""
    if comparison is None:
        return ("",) * 6
    estimate, metric = comparison.seed_estimate, comparison.metric
    star = significance_mark(comparison, task)
    difference = format_number(estimate.value, metric, plus=True)
    return (
        f"{difference}{star} {interval_cell(estimate, metric)}".rstrip(),
        str(judge_comparison(comparison, task)),
        format_p(comparison.p_holm),
        format_p(comparison.p_permutation),
        interval_cell(comparison.example_estimate, metric),
        interval_cell(comparison.combined_estimate, metric),
    )


def significance_mark(comparison: Comparison, task: TaskComparison) -> str:
    """Return a star if the method is better or worse, which it cannot be if one of both methods did not learn."""
    return "*" if judge_comparison(comparison, task) in (Verdict.BETTER, Verdict.WORSE) else ""


def interval_cell(estimate: Estimate | None, metric: Metric) -> str:
    """Return an interval in brackets; empty if there is none."""
    if estimate is None or math.isnan(estimate.low):
        return ""
    return f"[{format_number(estimate.low, metric)}, {format_number(estimate.high, metric)}]"


def build_overview_table(tasks: Sequence[TaskComparison], ranks: Ranks | None) -> TextTable:
    """Return the metrics of all methods on all tasks, and their average ranks."""
    names = list(dict.fromkeys(method.name for task in tasks for method in task.methods))
    header = ["method", *(f"{task.task}: {metric_label(task.metric)}" for task in tasks)]
    rows = []
    for name in names:
        row = [name]
        for task in tasks:
            comparison = task.comparison_of(name)
            star = "" if comparison is None else significance_mark(comparison, task)
            runs = next((method for method in task.methods if method.name == name), None)
            row.append("" if runs is None else format_mean(runs, task.metric) + star)
        if ranks is not None:
            row.append(f"{ranks.average[name]:.2f}" if name in ranks.average else "")
        rows.append(tuple(row))
    return TextTable("all tasks", (*header, *(() if ranks is None else ("average rank",))), tuple(rows))


def build_cost_table(task: TaskComparison) -> TextTable:
    """Return mean training time and peak memory of all methods."""
    baseline = task.methods[0]
    baseline_seconds = baseline.seconds or math.nan
    rows = []
    for method in task.methods:
        memory = "" if method.peak_memory is None else f"{method.peak_memory[0]:,.0f}"
        rows.append((method.name, f"{method.seconds:,.1f}", f"{method.seconds / baseline_seconds:.2f}×", memory))
    scope = next((method.peak_memory[1] for method in task.methods if method.peak_memory is not None), None)
    memory_label = "peak memory, MiB" + ("" if scope is None else f" ({scope})")
    header = ("method", "seconds", f"relative to {baseline.name}", memory_label)
    return TextTable(f"{task.task}: cost of a run", header, tuple(rows))


def to_rich(table: TextTable) -> Table:
    """Convert a table for the terminal."""
    rich_table = Table(title=Text(table.title, "table.title"), title_justify="left")  # no markup
    for column, name in enumerate(table.header):
        rich_table.add_column(Text(name), justify="right" if column else "left", no_wrap=not column)
    for row in table.rows:
        rich_table.add_row(*map(Text, row))
    return rich_table


def to_markdown(table: TextTable) -> str:
    """
    >>> print(to_markdown(TextTable("sst2", ("method", "accuracy"), (("a|b", "90.1"),))))
    **sst2**
    <BLANKLINE>
    | method | accuracy |
    |---|--:|
    | a\\|b | 90.1 |
    <BLANKLINE>
    """
    header, *rows = (
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (table.header, *table.rows)
    )
    rule = "|---|" + "--:|" * (len(table.header) - 1)
    return "\n".join([f"**{table.title}**", "", header, rule, *rows, ""])


LATEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "–": "--",
    "<": "$<$",
    ">": "$>$",
}


def to_latex(table: TextTable, note: str = "") -> str:
    """Convert a table for LaTeX with `\\usepackage{booktabs}`.

    Args:
        table: the table.
        note: text that follows the title in the caption.
    """
    columns = "l" + "r" * (len(table.header) - 1)
    header, *rows = (" & ".join(map(escape_latex, row)) + r" \\" for row in (table.header, *table.rows))
    rows = [f"{{}}{row}" if row.startswith(("[", "*")) else row for row in rows]  # no arguments of the \\ before
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            r"  \footnotesize",
            rf"  \caption{{{escape_latex(f'{table.title}. {note}'.strip())}}}",
            rf"  \begin{{tabular}}{{{columns}}}",
            r"    \toprule",
            f"    {header}",
            r"    \midrule",
            *(f"    {row}" for row in rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def escape_latex(text: str) -> str:
    """
    >>> print(escape_latex("50 % & −1 ± 2, a_b"))
    50 \\% \\& $-$1 $\\pm$ 2, a\\_b
    """
    return "".join(LATEX_ESCAPES.get(character, character) for character in text)


def to_csv(tasks: Sequence[TaskComparison]) -> str:
    """Return all numbers of all methods, not rounded."""
    records = [build_record(task, method) for task in tasks for method in task.methods]
    file = io.StringIO()
    writer = csv.DictWriter(file, records[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(quote_record, records))
    return file.getvalue()


def build_record(task: TaskComparison, method: MethodRuns) -> dict[str, object]:
    """Return the CSV record of a method on a task."""
    comparison = task.comparison_of(method.name)
    return {
        "task": task.task,
        "method": method.name,
        "baseline": task.methods[0].name if comparison is None else comparison.baseline,
        "metric": task.metric.name,
        "split": task.metric.split,
        "seeds": len(method.values),
        "mean": method.mean,
        "std": method.std,
        "difference": None if comparison is None else comparison.seed_estimate.value,
        **estimate_record("", None if comparison is None else comparison.seed_estimate),
        "p_holm": None if comparison is None else comparison.p_holm,
        "p_permutation": None if comparison is None else comparison.p_permutation,
        "p_equivalence": None if comparison is None else comparison.p_equivalence,
        "margin": None if comparison is None else comparison.margin,
        "verdict": None if comparison is None else str(judge_comparison(comparison, task)),
        **estimate_record("examples_", None if comparison is None else comparison.example_estimate),
        **estimate_record("both_", None if comparison is None else comparison.combined_estimate),
        "seeds_needed": None if comparison is None else comparison.seeds_needed,
        "train_seconds": method.seconds,
        "peak_mib": None if method.peak_memory is None else method.peak_memory[0],
    }


def estimate_record(prefix: str, estimate: Estimate | None) -> dict[str, object]:
    """Return the CSV fields of an interval and its p-value."""
    fields = {"ci_low": "low", "ci_high": "high", "p": "p"}
    return {f"{prefix}{name}": None if estimate is None else getattr(estimate, x) for name, x in fields.items()}
