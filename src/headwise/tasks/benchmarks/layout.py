"""Files of benchmarks."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from headwise.errors import UserError
from headwise.files import check_regular
from headwise.tasks import hub
from headwise.tasks.arrow_cache import Source
from headwise.tasks.formats import read_batches

#: File name patterns of each split, in the order of preference, without `.gz`.
Patterns = Mapping[str, Sequence[str]]


def find_sources(data: Path | None, patterns: Patterns, *, hub_name: str | None = None) -> dict[str, Source]:
    """Find the splits of a benchmark.

    Args:
        data: A directory; a single file, which is returned as "all"; or None for the hub.
        patterns: The patterns of file names, and of the names of splits on the hub.
        hub_name: The name on the hub.

    Raises:
        UserError: No split exists.
    """
    if data is None:
        if hub_name is None:
            raise UserError(
                f"--data is required: a directory with {format_patterns(patterns)}; this task is not on the hub"
            )
        splits = hub.load_sources(hub_name)
        names = {split: first_match(names, list(splits)) for split, names in patterns.items()}
        return {split: splits[name] for split, name in names.items() if name}
    if data.exists() and not data.is_dir():
        check_regular(data)
        return {"all": Source((data,), read_batches, "")}
    return {split: Source((file,), read_batches, "") for split, file in find_files(data, patterns).items()}


def find_files(directory: Path, patterns: Patterns) -> dict[str, Path]:
    """Find the file of each split; splits may be missing.

    Raises:
        UserError: There are no files.
    """
    if not directory.is_dir():
        raise UserError(f"{directory}: no such file or directory")
    paths = {path.name.removesuffix(".gz"): path for path in sorted(directory.iterdir()) if path.is_file()}
    files = {split: paths[name] for split, names in patterns.items() if (name := first_match(names, list(paths)))}
    if not files:
        names = ", ".join(path.name for path in paths.values()) or "no files"
        raise UserError(f"{directory}: expected {format_patterns(patterns)}, found {names}")
    return files


def first_match(patterns: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the name that matches the first pattern with a match."""
    return next((name for pattern in patterns for name in names if fnmatch(name, pattern)), None)


def format_patterns(patterns: Patterns) -> str:
    """Return the two preferred patterns of each split, for a message."""
    return ", ".join(" or ".join(names[:2]) for names in patterns.values())


def format_files(data: Path | None, sources: Mapping[str, Source]) -> str:
    """Return the names of files, for a recipe."""
    return ", ".join(
        dict.fromkeys(file.name if data else str(file) for source in sources.values() for file in source.files)
    )
