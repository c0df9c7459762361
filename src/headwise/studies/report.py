"""Reports of an analysis: printed, as one HTML page, and as tables in Markdown, LaTeX and CSV."""

import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console

from headwise.inspection import Page, draw_boxes, draw_curves, draw_differences, draw_ranks
from headwise.studies import tables
from headwise.studies.analysis import Analysis, MethodRuns, TaskComparison
from headwise.studies.summary import (
    list_warnings,
    summarize,
    summarize_baselines,
    summarize_ranks,
    summarize_task,
)
from headwise.studies.tables import TextTable
from headwise.training.core.run_dir import atomic_write

REPORT, MARKDOWN, LATEX, CSV = "report.html", "table.md", "table.tex", "table.csv"

#: A figure and its caption.
CaptionedFigure = tuple[Figure, str]

#: Learning curves are drawn for up to this number of methods.
MAX_CURVES = 8


def stdout_console() -> Console:
    """Return a console for results, 140 columns wide if stdout is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 140, highlight=False)


def print_analysis(analysis: Analysis, console: Console | None = None) -> None:
    """Print the tables and the summary of an analysis.

    Args:
        analysis: the analysis.
        console: where to print; by default stdout.
    """
    console = console or stdout_console()
    for task in analysis.tasks:
        console.print(tables.to_rich(tables.build_task_table(task)))
        for line in list_warnings(task):
            console.print(f"Warning: {line}", style="yellow", markup=False)
        for line in [*summarize_baselines(task), *summarize_task(task)]:
            console.print(line, markup=False)
    if len(analysis.tasks) > 1:
        console.print(tables.to_rich(tables.build_overview_table(analysis.tasks, analysis.ranks)))
    if analysis.ranks is not None:
        console.print(summarize_ranks(analysis.ranks), markup=False)
    console.print(tables.NOTE, style="dim", markup=False)


def write_report(
    analysis: Analysis,
    out_dir: Path,
    *,
    introduction: Sequence[str] = (),
    extra_tables: Sequence[TextTable] = (),
    extra_figures: Sequence[CaptionedFigure] = (),
) -> None:
    """Write report.html, table.md, table.tex and table.csv, each atomically.

    Args:
        analysis: the analysis.
        out_dir: the directory.
        introduction: paragraphs that precede the results.
        extra_tables: tables that are added to those of the analysis.
        extra_figures: figures that are added to those of the analysis.
    """
    warnings = [f"Warning: {line}" for task in analysis.tasks for line in list_warnings(task)]
    prefixes = [f"{task.task}: " if len(analysis.tasks) > 1 else "" for task in analysis.tasks]
    baselines = [
        prefix + line
        for prefix, task in zip(prefixes, analysis.tasks, strict=True)
        for line in summarize_baselines(task)
    ]
    lines = dict.fromkeys([*introduction, *baselines, *summarize(analysis), *warnings])
    all_tables = [*tables.build_tables(analysis), *extra_tables]
    cost_tables = map(tables.build_cost_table, analysis.tasks)
    markdown = ["\n".join(f"- {line}" for line in lines), "", *map(tables.to_markdown, [*all_tables, *cost_tables])]
    atomic_write(out_dir / MARKDOWN, "\n".join([*markdown, tables.NOTE, ""]))
    atomic_write(out_dir / LATEX, "\n".join(tables.to_latex(table, tables.NOTE) for table in all_tables))
    atomic_write(out_dir / CSV, tables.to_csv(analysis.tasks))
    atomic_write(out_dir / REPORT, build_page(analysis, introduction, extra_tables, extra_figures).html())


def build_page(
    analysis: Analysis,
    introduction: Sequence[str] = (),
    extra_tables: Sequence[TextTable] = (),
    extra_figures: Sequence[CaptionedFigure] = (),
) -> Page:
    """Build the HTML page of a report; the arguments are those of `write_report`."""
    page = Page(f"Comparison on {', '.join(task.task for task in analysis.tasks)}")
    for line in introduction:
        page.text(line)
    for figure, caption in extra_figures:
        page.figure(figure, caption)
    for table in extra_tables:
        page.section(table.title)
        page.table(table.header, table.rows)
    if len(analysis.tasks) > 1:
        page.section("All tasks")
        overview = tables.build_overview_table(analysis.tasks, analysis.ranks)
        page.table(overview.header, overview.rows)
    if analysis.ranks is not None:
        page.text(summarize_ranks(analysis.ranks))
        page.figure(
            draw_ranks(analysis.ranks.average, analysis.ranks.critical_difference),
            "Average ranks over tasks, 1 is best. Bars join methods that do not differ significantly (Nemenyi).",
        )
    for task in analysis.tasks:
        add_task(page, task)
    page.section("Statistics")
    page.text(tables.NOTE)
    return page


def add_task(page: Page, task: TaskComparison) -> None:
    """Add the summary, tables and figures of a task to a page."""
    metric = task.metric
    table = tables.build_task_table(task)
    page.section(table.title)
    for line in [
        *summarize_baselines(task),
        *summarize_task(task),
        *(f"Warning: {line}" for line in list_warnings(task)),
    ]:
        page.text(line)
    page.table(table.header, table.rows)
    page.text(task.dataset)
    page.figure(
        draw_boxes({m.name: list(m.values.values()) for m in task.methods}, x=tables.metric_label(metric)),
        "One point per seed. Boxes show quartiles and median.",
    )
    if task.comparisons:
        better_side = "right" if metric.higher_is_better else "left"
        page.figure(
            draw_differences(
                {c.method: list(c.differences.values()) for c in task.comparisons},
                x=f"difference in {metric.name} for the same seed, {metric.unit}",
                intervals={c.method: (c.seed_estimate.low, c.seed_estimate.high) for c in task.comparisons},
            ),
            f"One point per seed, with the mean and its 95% confidence interval. Better is to the {better_side}.",
        )
    guides = sorted({name for method in task.methods for name in guide_terms(method)})
    for name, label, caption in (
        (f"eval_{metric.name}", f"{metric.name} on dev", "One line per run, up to its last epoch."),
        ("loss", "training loss", "One line per run. The task's own loss, without the terms of guides."),
        *(
            (name, f"{name.removeprefix('guide/')}, unweighted", "The guide's term, one line per run.")
            for name in guides
        ),
    ):
        curves = {method.name: read_curves(method, name) for method in task.methods}
        curves = {method: lines for method, lines in curves.items() if lines}
        if 0 < len(curves) <= MAX_CURVES:
            page.figure(draw_curves(curves, x="epoch", y=label), caption)
    cost_table = tables.build_cost_table(task)
    page.table(cost_table.header, cost_table.rows)
    page.text("Seconds are the mean training time over seeds. Memory is the maximum over runs.")


def read_curves(method: MethodRuns, name: str) -> list[list[tuple[float, float]]]:
    """Return a logged value over epochs, for every run that logged it; of guided runs the task's own loss."""
    curves = [
        [
            (log["epoch"], log.get("task_loss", log[name]) if name == "loss" else log[name])
            for log in result.metrics.get("history", ())
            if name in log
        ]
        for result in method.results.values()
    ]
    return [curve for curve in curves if curve]


def guide_terms(method: MethodRuns) -> set[str]:
    """Return the names of the guides' terms that the runs of a method logged."""
    logs = [log for result in method.results.values() for log in result.metrics.get("history", ())]
    return {name for log in logs for name in log if name.startswith("guide/") and not name.endswith("/weight")}
