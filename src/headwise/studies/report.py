"""A study's report: one page that opens from disk, and its tables as Markdown, LaTeX and CSV."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from headwise.inspection import Page, draw_boxes, draw_curves, draw_differences, draw_ranks
from headwise.studies import tables
from headwise.studies.analysis import Analysis
from headwise.studies.comparison import Runs, TaskComparison
from headwise.studies.summary import ranking, told, warnings
from headwise.training.core.run_dir import atomic_write

REPORT, MARKDOWN, LATEX, CSV = "report.html", "table.md", "table.tex", "table.csv"


#: A picture and its caption.
Captioned = tuple[Figure, str]

#: Curves of more methods cannot be told apart.
MOST_CURVES = 8


def write(
    answer: Analysis,
    folder: Path,
    *,
    words: Sequence[str] = (),
    grids: Sequence[tables.Grid] = (),
    figures: Sequence[Captioned] = (),
) -> None:
    """report.html, table.md, table.tex and table.csv, each whole or as it was before.

    Args:
        answer: what to tell.
        folder: where to.
        words: what to say before it.
        grids, figures: more tables and pictures.
    """
    lines = [*words, *answer.sentences, *(f"Warning: {line}" for task in answer.tasks for line in warnings(task))]
    found = [*answer.grids, *grids]
    text = "\n".join(f"- {line}" for line in dict.fromkeys(lines))
    costs = map(tables.cost, answer.tasks)
    atomic_write(folder / MARKDOWN, "\n".join([text, "", *map(tables.markdown, [*found, *costs]), tables.NOTE, ""]))
    atomic_write(folder / LATEX, "\n".join(tables.latex(grid, tables.NOTE) for grid in found))
    atomic_write(folder / CSV, tables.comma_separated(answer.tasks))
    atomic_write(folder / REPORT, page(answer, words, grids, figures).html())


def page(
    answer: Analysis,
    words: Sequence[str] = (),
    grids: Sequence[tables.Grid] = (),
    figures: Sequence[Captioned] = (),
) -> Page:
    """The report as a page; the arguments are those of `write`."""
    found = Page(f"Does it help? {', '.join(task.task for task in answer.tasks)}")
    for line in words:
        found.text(line)
    for drawn, caption in figures:
        found.figure(drawn, caption)
    for grid in grids:
        found.section(grid.title)
        add_table(found, grid)
    if len(answer.tasks) > 1:
        found.section("All tasks")
        add_table(found, tables.overview(answer.tasks, answer.ranks))
    if answer.ranks is not None:
        found.text(ranking(answer.ranks))
        found.figure(
            draw_ranks(answer.ranks.average, answer.ranks.critical),
            "Average ranks over tasks, 1 is best. A bar joins methods that Nemenyi's test cannot tell apart.",
        )
    for task in answer.tasks:
        add_task(found, task)
    found.section("What the figures mean")
    found.text(tables.NOTE)
    return found


def add_task(found: Page, task: TaskComparison) -> None:
    """A task's answer, table and pictures."""
    grid = tables.on_task(task)
    found.section(grid.title)
    for line in [*told(task), *(f"Warning: {line}" for line in warnings(task))]:
        found.text(line)
    add_table(found, grid)
    found.text(task.recipe)
    found.figure(
        draw_boxes({m.name: list(m.figures.values()) for m in task.methods}, x=tables.heading(task.measure)),
        "A point for each seed, a box from quartile to quartile, a line at the median.",
    )
    if task.comparisons:
        better = "to the right" if task.measure.higher_is_better else "to the left"
        found.figure(
            draw_differences(
                {one.method: list(one.differences.values()) for one in task.comparisons},
                x=f"difference in {task.measure.name} under the same seed, {task.measure.unit}",
                intervals={one.method: (one.over_seeds.low, one.over_seeds.high) for one in task.comparisons},
            ),
            f"A point for each seed, a bar at their mean, a line over its 95% interval; better is {better}.",
        )
    for name, what, caption in (
        (f"eval_{task.measure.name}", f"{task.measure.name} on dev", "A line for each run, as long as it learnt."),
        ("loss", "loss on training rows", "A line for each run. A guided model's loss contains its guides' terms."),
    ):
        lines = {method.name: curves(method, name) for method in task.methods}
        lines = {method: drawn for method, drawn in lines.items() if drawn}
        if 0 < len(lines) <= MOST_CURVES:
            found.figure(draw_curves(lines, x="epoch", y=what), caption)
    add_table(found, tables.cost(task))
    found.text("Seconds of training, the mean over seeds; memory is the most that any run took.")


def curves(method: Runs, name: str) -> list[list[tuple[float, float]]]:
    """A figure over epochs, of every run that kept it."""
    found = [
        [(log["epoch"], log[name]) for log in run.metrics.get("history", ()) if name in log]
        for run in method.runs.values()
    ]
    return [line for line in found if line]


def add_table(found: Page, grid: tables.Grid) -> None:
    found.table(grid.header, grid.rows)
