"""Kinds of inputs. An input is a directory: a valid one, some of whose files are mutated."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.robustness.fuzz.mutations import Mutation


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of input.

    Args:
        name: the name in the table.
        share: the share of this kind among all inputs. All shares add up to 250, so it is thousands of `make fuzz`.
        requires: modules that are imported before the first input; the kind is skipped if a package is missing.
        prepare: writes the valid files to a directory.
        mutate: changes the files in a copy of this directory.
        read: reads the directory in the way a command does. Temporary output goes to the second directory. It raises
            UserError for an input that is refused, and AssertionError for a wrong result.
    """

    name: str
    share: float
    requires: tuple[str, ...]
    prepare: Callable[[Path], None]
    mutate: Callable[[Random, Path], None]
    read: Callable[[Path, Path], None]


def write_file(name: str, content: bytes) -> Callable[[Path], None]:
    """Return a function that writes one file to a directory."""

    def prepare(directory: Path) -> None:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)

    return prepare


def mutate_file(name: str, mutation: Mutation) -> Callable[[Random, Path], None]:
    """Return a function that mutates one file of a directory."""

    def mutate(random: Random, directory: Path) -> None:
        path = directory / name
        path.write_bytes(mutation(random, path.read_bytes()))

    return mutate


def all_kinds() -> list[Kind]:
    """Return all kinds, in a fixed order."""
    from tests.robustness.fuzz import data_files, model_dirs, pages, studies

    return [*data_files.KINDS, *model_dirs.KINDS, *studies.KINDS, *pages.KINDS]


def choose_kind(number: int, kinds: list[Kind]) -> Kind:
    """Return the kind of an input."""
    return Random(f"kind {number}").choices(kinds, [kind.share for kind in kinds])[0]


def find_missing_package(kind: Kind) -> str | None:
    """Import what a kind requires. Return the package that is missing, if any."""
    for module in kind.requires:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            name = (error.name or module).partition(".")[0]
            if name in ("headwise", "tests"):
                raise
            return name
    return None
