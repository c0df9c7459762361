"""Tables and figures that need no training."""

from collections.abc import Mapping
from pathlib import Path

from headwise.errors import UserError
from headwise.inspection import Page
from headwise.inspection.output_dir import FIGURES, write_figures
from headwise.studies import tables
from headwise.studies.papers import load_published_tables
from headwise.studies.report import MARKDOWN, REPORT, stdout_console
from headwise.studies.reproduction.charts import name_figures
from headwise.studies.reproduction.registry import DIRECT_OUTPUTS
from headwise.training.core.run_dir import atomic_write


def write_direct_output(name: str, data_by_task: Mapping[str, str | None], out_dir: Path) -> None:
    """Write a table or figure to a directory, and print it.

    Args:
        name: the table or figure.
        data_by_task: tasks with the paths of their data, for tables.
        out_dir: the directory, new or empty.

    Raises:
        UserError: the directory is not empty, or the data is missing or invalid.
    """
    output, published = DIRECT_OUTPUTS[name], load_published_tables()[name]
    if out_dir.exists() and (not out_dir.is_dir() or any(out_dir.iterdir())):
        raise UserError(f"--out {out_dir}: is not empty; name a new directory")
    page = Page(f"{name}: {output.question}")
    page.text(f"{published.citation}, {published.location}.")
    console = stdout_console()
    if output.build_table is not None:
        table = output.build_table(data_by_task)
        out_dir.mkdir(parents=True, exist_ok=True)
        page.section(table.title)
        page.table(table.header, table.rows)
        atomic_write(out_dir / MARKDOWN, tables.to_markdown(table))
        console.print(tables.to_rich(table))
    if output.draw is not None:
        figures = list(output.draw())
        out_dir.mkdir(parents=True, exist_ok=True)
        for figure, caption in figures:
            page.figure(figure, caption)
        write_figures(name_figures(name, figures), out_dir)
        console.print(f"{out_dir / FIGURES}: {name}.png and {name}.svg", markup=False)
    atomic_write(out_dir / REPORT, page.html())
