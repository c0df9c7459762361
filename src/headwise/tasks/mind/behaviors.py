"""Impressions of a click log: the user's earlier clicks, the candidates, and the clicks on them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwise.errors import UserError
from headwise.tasks.arrow_cache import Field, Rows, Source, load_rows
from headwise.tasks.formats import Batch
from headwise.tasks.metrics.clicks import sum_per_impression
from headwise.tasks.mind.news import News, read_headerless_tsv

COLUMNS = ("id", "user", "time", "history", "impressions")
MAPPED_COLUMNS = ("impression", "user", "history", "clicked", "candidates")
LABEL_SUFFIXES = {"-0": 0, "-1": 1}  # of candidates


@dataclass(frozen=True)
class Impressions:
    """Impressions as flat arrays: impression i has the candidates `offsets[i]` to `offsets[i + 1]`.

    Args:
        candidates: The indices of the candidates in the news.
        offsets: The start of each impression's candidates, and the end of the last.
        clicked: 0 or 1 for each candidate; None if the log has no labels.
        history: The indices of the news that were clicked before, the latest last.
        history_offsets: The start of each impression's history, and the end of the last.
    """

    candidates: Any
    offsets: Any
    clicked: Any | None
    history: Any
    history_offsets: Any


@dataclass(frozen=True)
class Split:
    """The impressions of a split, memory-mapped.

    Args:
        rows: The columns impression (the id), user, time, history, candidates and clicked, and their locations.
        columns: The columns of `MAPPED_COLUMNS`.
        labelled: Whether the log contains the clicks.
        start: The first impression.
        stop: The impression after the last; None for the end of the log.
    """

    rows: Rows
    columns: Mapping[str, "MappedColumn"]
    labelled: bool
    start: int = 0
    stop: int | None = None

    @classmethod
    def open(cls, rows: Rows, labelled: bool, start: int = 0, stop: int | None = None) -> "Split":
        """Memory-map the columns of cached rows."""
        names = [name for name in MAPPED_COLUMNS if labelled or name != "clicked"]
        return cls(rows, map_columns(rows.file, names), labelled, start, stop)

    def __reduce__(self) -> tuple[Any, ...]:
        """Other processes memory-map the file, too."""
        return Split.open, (self.rows, self.labelled, self.start, self.stop)

    def __len__(self) -> int:
        return (len(self.columns["candidates"]) if self.stop is None else self.stop) - self.start

    def slice(self, start: int, stop: int) -> "Split":
        """Return the impressions from `start` to `stop`, without copies."""
        return replace(self, start=self.start + start, stop=self.start + stop)

    def parts(self) -> Iterator[Impressions]:
        """Iterate over all impressions in order, in batches and without copies."""
        batches = (self.columns[name].batches(self.start, self.start + len(self)) for name in self.list_names)
        for columns in zip(*batches, strict=True):
            yield self.to_impressions(dict(zip(self.list_names, columns, strict=True)))

    def strings(self, name: str) -> Iterator[pa.StringArray]:
        """Iterate over the values of a column of strings, impression or user, in the batches of `parts`."""
        for values, offsets in self.columns[name].batches(self.start, self.start + len(self)):
            yield pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(values))

    def take(self, rows: Any) -> Impressions:
        """Return the impressions of these rows, in their order; other rows are not read."""
        rows = np.asarray(rows) + self.start
        return self.to_impressions({name: self.columns[name].take(rows) for name in self.list_names})

    def to_impressions(self, columns: Mapping[str, tuple[Any, Any]]) -> Impressions:
        """Build impressions from the values and offsets of columns."""
        candidates, offsets = columns["candidates"]
        clicked = columns["clicked"][0] if self.labelled else None
        return Impressions(candidates, offsets, clicked, *columns["history"])

    @property
    def list_names(self) -> tuple[str, ...]:
        """The names of the columns of lists."""
        return ("candidates", "clicked", "history") if self.labelled else ("candidates", "history")

    @cached_property
    def counts(self) -> dict[str, int]:
        """The numbers of impressions: all, without a history, and, if labelled, with clicks or non-clicks only."""
        counts = {"impressions": 0, "without_history": 0}
        counts |= {"only_clicks": 0, "only_non_clicks": 0} if self.labelled else {}
        for part in self.parts():
            sizes = np.diff(part.offsets)
            counts["impressions"] += len(sizes)
            counts["without_history"] += int((np.diff(part.history_offsets) == 0).sum())
            if part.clicked is not None:
                num_clicks = sum_per_impression(part.clicked, part.offsets)
                counts["only_clicks"] += int((num_clicks == sizes).sum())
                counts["only_non_clicks"] += int((num_clicks == 0).sum())
        return counts


@dataclass(frozen=True)
class MappedColumn:
    """A column of lists or strings in a memory-mapped Arrow file.

    `values` and `offsets` are views of the whole file. Only some of their entries belong to the column: those of each
    batch start at `value_starts` and `offset_starts`.

    Args:
        values: The file, as values of the column's type.
        offsets: The file, as offsets.
        batch_rows: (batches + 1,), the first row of each batch, and the number of rows.
        value_starts: (batches,), the start of each batch in `values`.
        offset_starts: (batches,), the start of each batch in `offsets`.
    """

    values: Any
    offsets: Any
    batch_rows: Any
    value_starts: Any
    offset_starts: Any

    def __len__(self) -> int:
        return int(self.batch_rows[-1])

    def batches(self, start: int, stop: int) -> Iterator[tuple[Any, Any]]:
        """Iterate over the batches of the rows from `start` to `stop`: their values as a flat array, and offsets."""
        first_batch = int(np.searchsorted(self.batch_rows, start, side="right")) - 1
        for batch in range(first_batch, len(self.value_starts)):
            begin, end = max(start, self.batch_rows[batch]), min(stop, self.batch_rows[batch + 1])
            if begin >= end:
                return
            first_offset = self.offset_starts[batch] - self.batch_rows[batch]
            offsets = self.offsets[first_offset + begin : first_offset + end + 1]
            values = self.values[self.value_starts[batch] + offsets[0] : self.value_starts[batch] + offsets[-1]]
            yield values, offsets - offsets[0]

    def bounds(self, rows: Any) -> tuple[Any, Any]:
        """Return the start and end of the values of these rows."""
        rows = np.asarray(rows, dtype=np.int64)
        batch = np.searchsorted(self.batch_rows, rows, side="right") - 1
        index = self.offset_starts[batch] + rows - self.batch_rows[batch]
        start = self.value_starts[batch]
        return start + self.offsets[index], start + self.offsets[index + 1]

    def take(self, rows: Any) -> tuple[Any, Any]:
        """Return the values of these rows as a flat array, and their offsets."""
        start, end = self.bounds(rows)
        offsets = np.concatenate([[0], np.cumsum(end - start)])
        return self.values[np.repeat(start - offsets[:-1], end - start) + np.arange(offsets[-1])], offsets


def map_columns(file: Path, names: Sequence[str]) -> dict[str, MappedColumn]:
    """Memory-map columns of lists or strings of an Arrow file that `arrow_cache` wrote.

    Arrow's description of a batch takes thousands of bytes, so only the positions of the columns are kept.
    """
    buffer = pa.memory_map(str(file)).read_buffer()
    stream = pa.ipc.open_stream(buffer)

    def locate() -> Iterator[list[int]]:
        """Return the number of rows of each batch, and the positions of the offsets and values of each column."""
        for batch in stream:
            location = [batch.num_rows]
            for name in names:
                # Buffers of strings: validity, offsets and data; of lists: also the validity of their values.
                _, offsets, *_, data = batch.column(name).buffers()
                location += (0 if part is None else part.address - buffer.address for part in (offsets, data))
            yield location

    num_rows, *positions = np.fromiter(locate(), np.dtype((np.int64, 1 + 2 * len(names)))).T
    batch_rows = np.concatenate([[0], np.cumsum(num_rows)])
    columns = {}
    for name, offset_bytes, value_bytes in zip(names, positions[::2], positions[1::2], strict=True):
        column_type = stream.schema.field(name).type
        is_string = pa.types.is_string(column_type)
        dtype = np.dtype(np.uint8 if is_string else column_type.value_type.to_pandas_dtype())
        columns[name] = MappedColumn(
            values=view_as(buffer, dtype),
            offsets=view_as(buffer, np.dtype(np.int32)),
            batch_rows=batch_rows,
            value_starts=value_bytes // dtype.itemsize,
            offset_starts=offset_bytes // 4,
        )
    return columns


def view_as(buffer: pa.Buffer, dtype: np.dtype[Any]) -> Any:
    """Return a buffer as an array, without a copy."""
    return np.frombuffer(buffer, dtype=dtype, count=buffer.size // dtype.itemsize)


@dataclass(frozen=True)
class Days:
    """Impressions of one day, or of all other days.

    Args:
        day: The day.
        is_excluded: Whether its impressions are excluded; otherwise all others are.
    """

    day: date
    is_excluded: bool

    def __contains__(self, day: date) -> bool:
        return (day == self.day) != self.is_excluded


def read_split(path: Path, news: News, *, cache: Path | None = None, days: Days | None = None) -> Split:
    """Read the impressions of a split.

    Args:
        path: The file.
        news: All news of the log.
        cache: The cache directory.
        days: The days of the impressions to read; by default all.

    Raises:
        UserError: A line has another number of fields, a news item does not exist, or a label is not 0 or 1.
    """
    labelled = is_labelled(path, news.indices)
    fields = {
        "impression": Field("id", pa.string(), str),
        "user": Field("user", pa.string(), str),
        "time": Field("time", pa.string(), str),
        "history": list_field("history", pa.int32(), history_parser(news.indices), news.fingerprint),
    }
    if labelled:  # before candidates, so that an invalid label is reported first
        fields["clicked"] = list_field("impressions", pa.int8(), parse_clicks)
    parse_candidates = candidate_parser(news.indices, labelled)
    fields["candidates"] = list_field("impressions", pa.int32(), parse_candidates, news.fingerprint)
    cache_key = f"MIND's behaviors, {'with' if labelled else 'without'} labels"
    if days is not None:
        cache_key += f", {days}"
    source = Source((path,), partial(read_behaviors, days=days), cache_key)
    return Split.open(load_rows(source, fields, cache=cache), labelled)


def read_behaviors(path: Path, columns: Sequence[str] | None = None, *, days: Days | None = None) -> Iterator[Batch]:
    """Read a file of impressions, of all days or of some."""
    batches = read_headerless_tsv(path, COLUMNS)
    return (
        batches if days is None else filter(lambda batch: batch.rows, (select_days(batch, days) for batch in batches))
    )


def select_days(batch: Batch, days: Days) -> Batch:
    """Return the impressions of some days."""
    indices = [i for i in range(len(batch.rows)) if parse_day(batch, i) in days]
    columns = {name: [values[i] for i in indices] for name, values in batch.columns.items()}
    return Batch(batch.path, [batch.rows[i] for i in indices], [batch.lines[i] for i in indices], columns)


def find_last_day(path: Path) -> date:
    """Return the last day with impressions. Lines need not be in the order of time.

    Raises:
        UserError: A time is invalid, or all impressions are of the same day.
    """
    days = {parse_day(batch, i) for batch in read_headerless_tsv(path, COLUMNS) for i in range(len(batch.rows))}
    if len(days) < 2:
        raise UserError(f"{path}: all impressions are of one day, so that the last day cannot be split off")
    return max(days)


def parse_day(batch: Batch, index: int) -> date:
    """Return the day of an impression, whose time is such as 11/14/2019 8:38:21 AM.

    Raises:
        UserError: The time is invalid.
    """
    time = batch.columns["time"][index]
    try:
        month, day, year = map(int, time.split()[0].split("/"))
        return date(year, month, day)
    except (ValueError, IndexError):
        raise UserError(
            f"{batch.location(index)}: expected a time such as 11/14/2019 8:38:21 AM, got {time!r}"
        ) from None


def is_labelled(path: Path, indices: Mapping[str, int]) -> bool:
    """Return whether the first candidate has a label, as in N123-1. Logs for the leaderboard have none."""
    batch = next(read_behaviors(path), None)
    if batch is None:
        raise UserError(f"{path}: the file has no rows")
    candidate = batch.columns["impressions"][0].partition(" ")[0]
    return candidate not in indices and "-" in candidate


def list_field(column: str, dtype: pa.DataType, parse: Callable[[str], list[int]], cache_key: str = "") -> Field:
    """Return the field of lists that are separated by spaces. Each distinct element is parsed only once."""
    names, parsed = pa.array([], pa.string()), pa.array([], dtype)

    def parse_batch(texts: Sequence[str]) -> pa.Array:
        nonlocal names, parsed
        strings = pa.array(texts, pa.string())
        lists = pc.split_pattern(pc.if_else(pc.equal(strings, ""), None, strings), " ")
        if lists.null_count and parse("") != []:
            raise ValueError("expected a list, got nothing")
        elements = lists.flatten()
        index = pc.index_in(elements, names)
        if index.null_count:
            new_names = elements.filter(index.is_null()).unique()
            # A ValueError if an element is empty or contains another separator.
            values = [value for name in new_names.to_pylist() for (value,) in (parse(name),)]
            names, parsed = pa.concat_arrays([names, new_names]), pa.concat_arrays([parsed, pa.array(values, dtype)])
            index = pc.index_in(elements, names)
        return pa.ListArray.from_arrays(lists.offsets, parsed.take(index))

    return Field(column, pa.list_(dtype), parse, cache_key, parse_batch)


def history_parser(indices: Mapping[str, int]) -> Callable[[str], list[int]]:
    """Return a parser of histories: ids of news with spaces between them, or nothing."""

    def parse(history: str) -> list[int]:
        return look_up(history.split(), indices)

    return parse


def candidate_parser(indices: Mapping[str, int], labelled: bool) -> Callable[[str], list[int]]:
    """Return a parser of candidates: ids of news with spaces between them, with or without labels."""

    def parse(candidates: str) -> list[int]:
        names = candidates.split()
        if not names:
            raise ValueError("no candidates")
        return look_up([name[:-2] for name in names] if labelled else names, indices)

    return parse


def parse_clicks(candidates: str) -> list[int]:
    """Return the labels of candidates."""
    names = candidates.split()
    try:
        return [LABEL_SUFFIXES[name[-2:]] for name in names]
    except KeyError:
        invalid = next(name for name in names if name[-2:] not in LABEL_SUFFIXES)
        raise ValueError(f"expected a news id with a label, such as N123-0 or N123-1, got {invalid!r}") from None


def look_up(ids: Sequence[str], indices: Mapping[str, int]) -> list[int]:
    """Return the indices of news.

    Raises:
        ValueError: An id does not exist.
    """
    try:
        return [indices[news_id] for news_id in ids]
    except KeyError as error:
        raise ValueError(f"news {error.args[0]!r} is in no news.tsv") from None
