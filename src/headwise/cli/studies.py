"""List studies with their state and best result. Two studies are also compared side by side.

examples:
  headwise studies
  headwise studies studies/2026
  headwise studies first second
  headwise studies --storage postgresql://me@host/studies
  headwise studies study --storage postgresql://me@host/studies
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "directories",
        nargs="*",
        type=Path,
        metavar="DIR",
        help="directories of studies, or directories that contain them (default: the current directory)",
    )
    parser.add_argument(
        "--storage",
        metavar="URL",
        help="list the studies of this database; with directories, the database of their studies (an address that only "
        "a directory contains is not used)",
    )


def run(arguments: Namespace) -> int:
    from headwise.studies.listing import print_studies

    print_studies(tuple(arguments.directories), arguments.storage)
    return 0
