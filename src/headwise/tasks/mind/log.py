"""A whole click log: its news and its splits."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headwise.tasks.mind import behaviors, layout, news


@dataclass(frozen=True)
class Log:
    """A click log.

    Args:
        news: all news of all splits.
        splits: those of train, dev and test that are there.
    """

    news: news.News
    splits: Mapping[str, behaviors.Split]


def read(data: Path | str, *, cache: Path | None = None) -> Log:
    """A click log in MIND's layout. What was read before, and has not changed since, is not read again.

    Args:
        data: a folder with folders `train`, `dev`, `test`, or such as `MINDsmall_train`; in each `news.tsv` and
            `behaviors.tsv`.
        cache: the folder for what is stored; by default one beside Hugging Face's data sets.

    Raises:
        UserError: what is not as published, with its file and line.
    """
    files = layout.find(Path(data))
    everything = news.read([found.news for found in files.values()], cache=cache)
    splits = {name: behaviors.read(found.behaviors, everything, cache=cache) for name, found in files.items()}
    return Log(everything, splits)
