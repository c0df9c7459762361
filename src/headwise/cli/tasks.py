"""List the built-in tasks with their label type, metric, paper and data source.

example:
  headwise tasks
"""

from argparse import ArgumentParser, Namespace


def add_arguments(parser: ArgumentParser) -> None:
    """The command has no arguments."""


def run(arguments: Namespace) -> int:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from headwise import tasks

    console = Console()
    for task in tasks.list_tasks():
        console.print(f"[bold]{task.name}[/] ({task.primary})", highlight=False)
        for label, text in (("", task.about), ("paper: ", task.paper), ("data: ", task.source)):
            if text:
                console.print(Padding(Text(f"{label}{text}"), (0, 0, 0, 2), expand=False))
    return 0
