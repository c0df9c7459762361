"""List of the tables and figures that can be reproduced."""

import sys

from rich.console import Console
from rich.table import Table

from headwise.studies.papers import load_published_tables
from headwise.studies.reproduction.registry import DIRECT_OUTPUTS, STUDIES


def print_reproductions() -> None:
    """Print all tables and figures with their questions and tasks."""
    table = Table(title="Tables and figures of the papers", title_justify="left")
    for heading in ("name", "location", "question", "tasks"):
        table.add_column(heading, no_wrap=heading == "name")
    published = load_published_tables()
    for name, spec in STUDIES.items():
        table.add_row(name, published[name].location, spec.question, ", ".join(spec.tasks))
    for name, output in DIRECT_OUTPUTS.items():
        table.add_row(name, published[name].location, output.question, ", ".join(output.tasks) or "no data")
    Console(width=None if sys.stdout.isatty() else 140, highlight=False).print(table, markup=False)
