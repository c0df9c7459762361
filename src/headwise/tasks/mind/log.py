"""Click logs: the task, the files, the news and all splits."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Literal

from headwise.errors import UserError
from headwise.small_files import read_json
from headwise.tasks.find_splits import SPLIT_WORDS, split_from_name
from headwise.tasks.mind.behaviors import Days, Split, find_last_day, read_split
from headwise.tasks.mind.news import News, read_news
from headwise.tasks.task import Task, TrainingDefaults

MIND = Task(
    name="mind",
    label_type="clicks",
    about="rank news for a user, given the clicks so far",
    paper="distance-aware transformer, Table 5 (500k impressions of 1m users, 161k news)",
    source="directories train, dev and test (or MINDsmall_train and so on), each with news.tsv and behaviors.tsv",
    fine_tuning=TrainingDefaults(epochs=3, learning_rate=2e-5, batch_size=64, max_length=30),
    from_scratch=TrainingDefaults(epochs=5, learning_rate=1e-3, batch_size=64, max_length=30),
)

#: How a log is split.
SplitRule = Literal["published", "last-day"]

ORACLE_FILE = "truth.json"  # of simulated logs


@dataclass(frozen=True)
class Log:
    """A click log.

    Args:
        news: The news of all splits.
        splits: Those of train, dev and test that exist.
        last_day: The day of train that is dev, if the splits are not the published ones.
    """

    news: News
    splits: Mapping[str, Split]
    last_day: date | None = None


def read(data: Path | str, *, splits: SplitRule = "published", cache: Path | None = None) -> Log:
    """Read a click log in the layout of MIND. Unchanged files are parsed only once.

    Args:
        data: A directory with directories `train`, `dev`, `test`, or such as `MINDsmall_train`, each with `news.tsv`
            and `behaviors.tsv`; or one of these directories.
        splits: `published`, as the directories; or `last-day`, for logs without a test split with labels: the published
            dev becomes test, and the last day of train becomes dev.
        cache: The cache directory; by default a subdirectory of the cache of Hugging Face's datasets.

    Raises:
        UserError: A file is missing or invalid, or train has impressions of one day only.
    """
    files = find_files(Path(data))
    news = read_news([split_files.news for split_files in files.values()], cache=cache)
    published = {name: read_split(split_files.behaviors, news, cache=cache) for name, split_files in files.items()}
    has_test = "test" in published and published["test"].labelled
    if splits == "published" or has_test or not published.keys() >= {"train", "dev"}:
        return Log(news, published)
    path = files["train"].behaviors
    last_day = find_last_day(path)
    train, dev = (read_split(path, news, cache=cache, days=Days(last_day, x)) for x in (True, False))
    return Log(news, {"train": train, "dev": dev, "test": published["dev"]}, last_day)


def oracle(data: Path | str) -> Mapping[str, Mapping[str, float]]:
    """Return the best possible metrics of each split of a simulated log; empty for other logs.

    Raises:
        UserError: `truth.json` was not written by `headwise simulate mind`.
    """
    path = Path(data) / ORACLE_FILE
    if not path.is_file():
        return {}
    try:
        metrics: Mapping[str, Mapping[str, float]] = read_json(path)["oracle"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: no metrics of the oracle; expected a file of headwise simulate mind") from None
    return metrics


@dataclass(frozen=True)
class SplitFiles:
    """The files of a split."""

    news: Path
    behaviors: Path


def find_files(data: Path) -> dict[str, SplitFiles]:
    """Find the files of each split.

    Args:
        data: The directory of the log, or of a split; the latter is test if its name does not contain a split.

    Raises:
        UserError: There is no split, a split has two directories, or a file is missing.
    """
    if not data.is_dir():
        raise UserError(f"{data}: no such directory")
    if any((data / f"behaviors.tsv{suffix}").is_file() for suffix in ("", ".gz")):
        return {split_from_name(data.resolve().name) or "test": find_split_files(data)}
    directories = [path for path in sorted(data.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    by_split: dict[str, list[Path]] = {split: [] for split in SPLIT_WORDS}
    for directory in directories:
        if split := split_from_name(directory.name):
            by_split[split].append(directory)
    for split, matches in by_split.items():
        if len(matches) > 1:
            raise UserError(f"{data}: several directories for {split}: {', '.join(path.name for path in matches)}")
    files = {split: find_split_files(matches[0]) for split, matches in by_split.items() if matches}
    if not files:
        names = ", ".join(directory.name for directory in directories) or "none"
        raise UserError(
            f"{data}: expected directories train, dev and test, or such as MINDsmall_train; found directories: {names}"
        )
    return files


def find_split_files(directory: Path) -> SplitFiles:
    """Find the files of a split.

    Raises:
        UserError: One is missing.
    """
    return SplitFiles(find_file(directory, "news.tsv"), find_file(directory, "behaviors.tsv"))


def find_file(directory: Path, name: str) -> Path:
    """Return the path of a file, gzipped or not.

    Raises:
        UserError: It is missing.
    """
    for path in (directory / name, directory / f"{name}.gz"):
        if path.is_file():
            return path
    raise UserError(f"{directory}: {name} is missing")
