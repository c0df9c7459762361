"""Which files of a folder are which split of a benchmark."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from headwise.errors import UserError
from headwise.tasks import hub
from headwise.tasks.arrow_cache import Source
from headwise.tasks.formats import read_batches

Patterns = Mapping[str, Sequence[str]]  # by split: names, the first that is there counts; .gz is added where needed


def sources(data: Path | None, patterns: Patterns, *, hub_name: str | None = None) -> dict[str, Source]:
    """The splits of a benchmark that are there.

    Args:
        data: its folder; one file stands for everything ("all"); None for the hub.
        patterns: the names of each split's files; of its splits on the hub, too.
        hub_name: what it is called on the hub.

    Raises:
        UserError: none of them is there.
    """
    if data is None:
        if hub_name is None:
            raise UserError(
                f"say where the data is (--data FOLDER with {expected(patterns)}); it is not taken from the hub"
            )
        there = hub.sources(hub_name)
        return {split: there[name] for split, wanted in patterns.items() if (name := match(wanted, list(there)))}
    if data.is_file():
        return {"all": Source((data,), read_batches, "")}
    return {split: Source((file,), read_batches, "") for split, file in files(data, patterns).items()}


def files(folder: Path, patterns: Patterns) -> dict[str, Path]:
    """The file of each split that is there."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such file or folder")
    there = {path.name.removesuffix(".gz"): path for path in sorted(folder.iterdir()) if path.is_file()}
    found = {split: there[name] for split, wanted in patterns.items() if (name := match(wanted, list(there)))}
    if not found:
        names = ", ".join(path.name for path in there.values()) or "nothing"
        raise UserError(f"{folder}: expected {expected(patterns)}; there: {names}")
    return found


def match(wanted: Sequence[str], names: Sequence[str]) -> str | None:
    return next((name for pattern in wanted for name in names if fnmatch(name, pattern)), None)


def expected(patterns: Patterns) -> str:
    return ", ".join(" or ".join(wanted[:2]) for wanted in patterns.values())


def named(data: Path | None, found: Mapping[str, Source]) -> str:
    """The files' names, for a recipe."""
    return ", ".join(
        dict.fromkeys(file.name if data else str(file) for source in found.values() for file in source.files)
    )
