"""A simulated click log on disk, in MIND's layout, with its click probabilities beside it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headwise.errors import UserError
from headwise.simulation.titles import Titles
from headwise.simulation.user_model import Impressions

PROBABILITIES = "probabilities.parquet"
SCHEMA = pa.schema([("split", pa.string()), ("impression", pa.int64()), ("probability", pa.list_(pa.float32()))])
ROW_GROUP = 4096  # impressions in it, at least
BEGIN, LASTS = datetime(2019, 11, 9), timedelta(days=7)  # MIND's last week


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder to write to; in the end it moves to its place, or is gone.

    Raises:
        UserError: something is there already.
    """
    out = out.resolve()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out}: there is something already; name a new folder")
    stage = out.with_name(f".{out.name}.unfinished-{os.getpid()}")
    try:
        stage.mkdir(parents=True)
        yield stage
        os.replace(stage, out)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


class Writer:
    """Writes impressions, part by part.

    Args:
        folder: where to.
        titles: the news.
        sizes: how many impressions each split has.
    """

    def __init__(self, folder: Path, titles: Titles, sizes: dict[str, int]) -> None:
        self.names = [f"N{number}" for number in range(1, len(titles) + 1)]
        self.shown = np.array([f"{name}-{label}" for name in self.names for label in (0, 1)], dtype=object)
        self.named = np.array(self.names, dtype=object)
        self.total, self.written = sum(sizes.values()), 0
        with ExitStack() as files:
            for split in sizes:
                (folder / split).mkdir()
                self.write_news(folder / split / "news.tsv", titles)
            self.behaviors = {
                split: files.enter_context((folder / split / "behaviors.tsv").open("w", encoding="utf-8", newline="\n"))
                for split in sizes
            }
            self.probabilities = files.enter_context(pq.ParquetWriter(folder / PROBABILITIES, SCHEMA))
            self.waiting: list[pa.Table] = []
            files.callback(self.write_waiting)
            self.files = files.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.files.close()

    def write_news(self, path: Path, titles: Titles) -> None:
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for name, title, topic in zip(self.names, titles.titles, titles.topic.tolist(), strict=True):
                category = titles.topics[topic]
                file.write(f"{name}\t{category}\t{category}\t{title}\t\t\t[]\t[]\n")

    def write(self, split: str, pages: Impressions) -> None:
        """Add impressions to a split."""
        shown = self.shown[2 * pages.candidates + pages.clicked].tolist()
        history = self.named[pages.history].tolist()
        numbers = range(self.written + 1, self.written + 1 + len(pages))
        ends, history_ends = pages.offsets.tolist(), pages.history_offsets.tolist()
        self.behaviors[split].writelines(
            f"{number}\tU{user + 1}\t{self.time(number)}\t"
            f"{' '.join(history[history_ends[i] : history_ends[i + 1]])}\t{' '.join(shown[ends[i] : ends[i + 1]])}\n"
            for i, (number, user) in enumerate(zip(numbers, pages.users.tolist(), strict=True))
        )
        lists = pa.ListArray.from_arrays(pa.array(pages.offsets, pa.int32()), pa.array(pages.probability))
        columns = [pa.array([split] * len(pages)), pa.array(numbers, pa.int64()), lists]
        self.waiting.append(pa.table(columns, schema=SCHEMA))
        if sum(map(len, self.waiting)) >= ROW_GROUP:
            self.write_waiting()
        self.written += len(pages)

    def write_waiting(self) -> None:
        """Probabilities of many impressions at once: Parquet keeps a note of each time in memory."""
        if self.waiting:
            self.probabilities.write_table(pa.concat_tables(self.waiting))
            self.waiting.clear()

    def time(self, number: int) -> str:
        """When an impression was, as MIND writes it: 11/9/2019 12:03:20 AM."""
        when = BEGIN + LASTS * ((number - 1) / self.total)
        half = "AM" if when.hour < 12 else "PM"
        return f"{when.month}/{when.day}/{when.year} {when.hour % 12 or 12}:{when:%M:%S} {half}"
