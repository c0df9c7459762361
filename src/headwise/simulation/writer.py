"""Files of a simulated click log: the layout of MIND, and click probabilities."""

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
MIN_ROW_GROUP = 4096  # impressions
START, DURATION = datetime(2019, 11, 9), timedelta(days=7)  # the last week of MIND


@contextmanager
def staging_dir(out: Path) -> Iterator[Path]:
    """Yield a temporary directory, which is renamed to `out` on success and removed on failure.

    Raises:
        UserError: `out` is not empty.
    """
    out = out.resolve()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out}: is not empty; name a new directory")
    staging = out.with_name(f".{out.name}.unfinished-{os.getpid()}")
    try:
        staging.mkdir(parents=True)
        yield staging
        os.replace(staging, out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


class LogWriter:
    """Writes impressions in batches.

    Args:
        directory: The directory of the log.
        titles: The news.
        sizes: The number of impressions of each split.
    """

    def __init__(self, directory: Path, titles: Titles, sizes: dict[str, int]) -> None:
        ids = [f"N{number}" for number in range(1, len(titles) + 1)]
        self.ids = np.array(ids, dtype=object)
        self.labelled_ids = np.array([f"{news_id}-{label}" for news_id in ids for label in (0, 1)], dtype=object)
        self.total, self.num_written = sum(sizes.values()), 0
        with ExitStack() as files:
            for split in sizes:
                (directory / split).mkdir()
                self.write_news(directory / split / "news.tsv", titles)
            self.behaviors = {
                split: files.enter_context(
                    (directory / split / "behaviors.tsv").open("w", encoding="utf-8", newline="\n")
                )
                for split in sizes
            }
            self.probabilities = files.enter_context(pq.ParquetWriter(directory / PROBABILITIES, SCHEMA))
            self.pending: list[pa.Table] = []
            files.callback(self.write_pending)
            self.files = files.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.files.close()

    def write_news(self, path: Path, titles: Titles) -> None:
        """Write the news."""
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for news_id, title, topic in zip(self.ids, titles.titles, titles.topic_ids.tolist(), strict=True):
                category = titles.topics[topic]
                file.write(f"{news_id}\t{category}\t{category}\t{title}\t\t\t[]\t[]\n")

    def write(self, split: str, impressions: Impressions) -> None:
        """Append impressions to a split."""
        candidates = self.labelled_ids[2 * impressions.candidates + impressions.clicked].tolist()
        history = self.ids[impressions.history].tolist()
        numbers = range(self.num_written + 1, self.num_written + 1 + len(impressions))
        offsets, history_offsets = impressions.offsets.tolist(), impressions.history_offsets.tolist()
        self.behaviors[split].writelines(
            f"{number}\tU{user + 1}\t{self.format_time(number)}\t"
            f"{' '.join(history[history_offsets[i] : history_offsets[i + 1]])}\t"
            f"{' '.join(candidates[offsets[i] : offsets[i + 1]])}\n"
            for i, (number, user) in enumerate(zip(numbers, impressions.users.tolist(), strict=True))
        )
        probabilities = pa.ListArray.from_arrays(
            pa.array(impressions.offsets, pa.int32()), pa.array(impressions.probability)
        )
        columns = [pa.array([split] * len(impressions)), pa.array(numbers, pa.int64()), probabilities]
        self.pending.append(pa.table(columns, schema=SCHEMA))
        if sum(map(len, self.pending)) >= MIN_ROW_GROUP:
            self.write_pending()
        self.num_written += len(impressions)

    def write_pending(self) -> None:
        """Write pending probabilities as one row group. Parquet keeps metadata of each row group in memory."""
        if self.pending:
            self.probabilities.write_table(pa.concat_tables(self.pending))
            self.pending.clear()

    def format_time(self, number: int) -> str:
        """Return the time of an impression in the format of MIND: 11/9/2019 12:03:20 AM."""
        time = START + DURATION * ((number - 1) / self.total)
        half = "AM" if time.hour < 12 else "PM"
        return f"{time.month}/{time.day}/{time.year} {time.hour % 12 or 12}:{time:%M:%S} {half}"
