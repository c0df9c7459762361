"""List the built-in tasks with their label type, metric, paper and data source.

example:
  headwise tasks
"""

from argparse import ArgumentParser, Namespace


def add_arguments(parser: ArgumentParser) -> None:
    """The command has no arguments."""


def run(arguments: Namespace) -> int:
    from headwise.training.core.printing import print_tasks

    print_tasks()
    return 0
