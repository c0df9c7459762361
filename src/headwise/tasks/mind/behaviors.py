"""The impressions of a click log: what a user had clicked before, what was shown, and what was clicked then."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headwise.errors import UserError
from headwise.tasks.arrow_cache import Field, Rows, Source, store
from headwise.tasks.formats import Batch
from headwise.tasks.metrics.clicks import impression_metrics
from headwise.tasks.mind.layout import BEHAVIORS, rows
from headwise.tasks.mind.lists import Lists, mapped
from headwise.tasks.mind.news import News

LABELS = {"-0": 0, "-1": 1}  # how a candidate ends


@dataclass(frozen=True)
class Impressions:
    """Some impressions as flat arrays: number i has its candidates from `offsets[i]` to `offsets[i + 1]`.

    Args:
        candidates: the numbers of the news that were shown.
        offsets: where each impression's candidates begin, and where the last one's end.
        clicked: 0 or 1 for each candidate; None where the log does not tell.
        history: the numbers of the news clicked before, the latest last.
        history_offsets: where each impression's history begins, and where the last one's ends.
    """

    candidates: Any
    offsets: Any
    clicked: Any | None
    history: Any
    history_offsets: Any


@dataclass(frozen=True)
class Split:
    """A split's impressions, memory-mapped.

    Args:
        rows: impression (its id), user, time, history, candidates, clicked; and where each came from.
        labelled: whether the log tells what was clicked.
    """

    rows: Rows
    labelled: bool

    def __len__(self) -> int:
        return len(self.rows.data)

    def parts(self) -> Iterator[Impressions]:
        """All impressions in order, some at a time, without copies."""
        names = self.columns
        for chunks in zip(*(self.rows.column(name).chunks for name in names), strict=True):
            yield self.impressions(dict(zip(names, map(flat, chunks), strict=True)))

    def take(self, rows: Any) -> Impressions:
        """Any impressions, by their numbers, in the order of these; what is not asked for is not read."""
        return self.impressions({name: lists.take(rows) for name, lists in self.lists.items()})

    def impressions(self, found: Mapping[str, tuple[Any, Any]]) -> Impressions:
        candidates, offsets = found["candidates"]
        return Impressions(candidates, offsets, found["clicked"][0] if self.labelled else None, *found["history"])

    @property
    def columns(self) -> tuple[str, ...]:
        return ("candidates", "clicked", "history") if self.labelled else ("candidates", "history")

    @cached_property
    def lists(self) -> dict[str, Lists]:
        return mapped(self.rows.file, self.columns)

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many impressions there are, without a history, and, where the log tells, of only clicks or non-clicks."""
        counts = {"impressions": 0, "without_history": 0}
        counts |= {"only_clicks": 0, "only_non_clicks": 0} if self.labelled else {}
        for part in self.parts():
            sizes = np.diff(part.offsets)
            counts["impressions"] += len(sizes)
            counts["without_history"] += int((np.diff(part.history_offsets) == 0).sum())
            if part.clicked is not None:
                clicks = impression_metrics(part.clicked, part.offsets)
                counts["only_clicks"] += int((clicks == sizes).sum())
                counts["only_non_clicks"] += int((clicks == 0).sum())
        return counts


def flat(lists: pa.ListArray) -> tuple[Any, Any]:
    """Values and offsets, of a part of a longer array too."""
    offsets = lists.offsets.to_numpy()
    return lists.values.to_numpy()[offsets[0] : offsets[-1]], offsets - offsets[0]


def read(path: Path, news: News, *, cache: Path | None = None) -> Split:
    """A split's impressions; ids of news become their numbers.

    Raises:
        UserError: a line with another number of fields, a news that is not there, a label that is neither 0 nor 1.
    """
    labelled = is_labelled(path, news.numbers)
    numbers = {"type": pa.list_(pa.int32()), "way": news.fingerprint}
    fields = {
        "impression": Field("id", pa.string(), str),
        "user": Field("user", pa.string(), str),
        "time": Field("time", pa.string(), str),
        "history": Field("history", convert=history(news.numbers), **numbers),
    }
    if labelled:  # first: a candidate without a sound label has no sound id either
        fields["clicked"] = Field("impressions", pa.list_(pa.int8()), clicked)
    fields["candidates"] = Field("impressions", convert=candidates(news.numbers, labelled), **numbers)
    way = f"MIND's behaviors, {'with' if labelled else 'without'} labels"
    return Split(store(Source((path,), batches, way), fields, cache=cache), labelled)


def batches(path: Path, columns: Sequence[str] | None = None) -> Iterator[Batch]:
    return rows(path, BEHAVIORS)


def is_labelled(path: Path, numbers: Mapping[str, int]) -> bool:
    """Whether the first candidate has a label, as in N123-1; logs to be ranked for the leaderboard have none."""
    first = next(batches(path), None)
    if first is None:
        raise UserError(f"{path}: holds no rows")
    candidate = first.columns["impressions"][0].partition(" ")[0]
    return candidate not in numbers and "-" in candidate


def history(numbers: Mapping[str, int]) -> Callable[[str], list[int]]:
    """News with spaces between them, or none → their numbers."""

    def convert(names: str) -> list[int]:
        return numbered(names.split(), numbers)

    return convert


def candidates(numbers: Mapping[str, int], labelled: bool) -> Callable[[str], list[int]]:
    """News with spaces between them, each with its label or none → their numbers."""

    def convert(shown: str) -> list[int]:
        names = shown.split()
        if not names:
            raise ValueError("no candidates")
        return numbered([name[:-2] for name in names] if labelled else names, numbers)

    return convert


def clicked(shown: str) -> list[int]:
    """Their labels."""
    return [LABELS[name[-2:]] if name[-2:] in LABELS else unlabelled(name) for name in shown.split()]


def unlabelled(name: str) -> int:
    raise ValueError(f"expected a news and its label, such as N123-0 or N123-1, got {name!r}")


def numbered(names: Sequence[str], numbers: Mapping[str, int]) -> list[int]:
    try:
        return [numbers[name] for name in names]
    except KeyError as error:
        raise ValueError(f"news {error.args[0]!r} is in no news.tsv") from None
