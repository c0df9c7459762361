"""Where a click log's files are, and their lines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headwise.errors import UserError
from headwise.tasks.find_splits import WORDS, split_in
from headwise.tasks.formats import Batch, Rows, in_lines, read_lines

NEWS = ("id", "category", "subcategory", "title", "abstract", "url", "title_entities", "abstract_entities")
BEHAVIORS = ("id", "user", "time", "history", "impressions")


@dataclass(frozen=True)
class Files:
    news: Path
    behaviors: Path


def find(data: Path) -> dict[str, Files]:
    """The files of each split that is there.

    Args:
        data: a folder with one folder for each split: `train`, `dev`, `test`, or MIND's own names, such as
            `MINDsmall_train`; in each a `news.tsv` and a `behaviors.tsv`, gzipped or not. Or such a split's folder
            itself; it is test's if its name does not tell.

    Raises:
        UserError: there is none, two of the same split, or one without its files.
    """
    if not data.is_dir():
        raise UserError(f"{data}: no such folder")
    if any((data / f"behaviors.tsv{packed}").is_file() for packed in ("", ".gz")):
        return {split_in(data.resolve().name) or "test": Files(file(data, "news.tsv"), file(data, "behaviors.tsv"))}
    folders = [path for path in sorted(data.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    by_split: dict[str, list[Path]] = {split: [] for split in WORDS}
    for folder in folders:
        if split := split_in(folder.name):
            by_split[split].append(folder)
    for split, found in by_split.items():
        if len(found) > 1:
            raise UserError(f"{data}: which folder is {split}? {' or '.join(folder.name for folder in found)}")
    files = {
        split: Files(file(folder, "news.tsv"), file(folder, "behaviors.tsv"))
        for split, found in by_split.items()
        for folder in found
    }
    if not files:
        there = ", ".join(folder.name for folder in folders) or "none"
        raise UserError(
            f"{data}: expected folders train, dev and test, or such as MINDsmall_train; folders there: {there}"
        )
    return files


def file(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise UserError(f"{folder}: {name} is missing")


def rows(path: Path, names: Sequence[str]) -> Iterator[Batch]:
    """The rows of a file without a header, whose fields stand between tabs.

    Raises:
        UserError: a line with more or fewer fields than names.
    """
    return in_lines(path, lambda path: (names, fields(path, names)))


def fields(path: Path, names: Sequence[str]) -> Rows:
    for number, line in enumerate(read_lines(path), 1):
        values = line.rstrip("\r\n").split("\t")
        if len(values) != len(names):
            raise UserError(f"{path}, line {number}: {told(len(values))}, expected {len(names)}: {', '.join(names)}")
        yield number, values


def told(count: int) -> str:
    return f"{count} field" if count == 1 else f"{count} fields"
