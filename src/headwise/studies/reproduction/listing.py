"""What there is to reproduce, at a glance."""

import sys

from rich.console import Console
from rich.table import Table

from headwise.studies.papers import published
from headwise.studies.reproduction.registry import PICTURES, STUDIES


def print_reproductions() -> None:
    """All tables and figures: what each asks, and how it is had."""
    told = Table(title="Tables and figures of the papers", title_justify="left")
    for heading in ("name", "of", "asks", "tasks"):
        told.add_column(heading, no_wrap=heading == "name")
    for name, found in STUDIES.items():
        told.add_row(name, published()[name].where, found.asks, ", ".join(found.tasks))
    for name, picture in PICTURES.items():
        told.add_row(name, "inspection", picture.shows, picture.command)
    Console(width=None if sys.stdout.isatty() else 140, highlight=False).print(told, markup=False)
