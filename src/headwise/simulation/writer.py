"""Files of a simulated click log: the layout of MIND, and click probabilities."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwise.errors import UserError
from headwise.simulation.titles import Titles
from headwise.simulation.user_model import Impressions

PROBABILITIES = "probabilities.parquet"
SCHEMA = pa.schema([("split", pa.string()), ("impression", pa.int64()), ("probability", pa.list_(pa.float32()))])
MIN_ROW_GROUP = 2**16  # impressions
MINUTES_SECONDS = pa.array([f"{second // 60:02}:{second % 60:02}" for second in range(3600)])  # of an hour
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
        self.ids = pa.array(ids)
        self.labelled_ids = pa.array([f"{news_id}-{label}" for news_id in ids for label in (0, 1)])
        self.total, self.num_written = sum(sizes.values()), 0
        with ExitStack() as files:
            for split in sizes:
                (directory / split).mkdir()
                self.write_news(directory / split / "news.tsv", titles)
            self.behaviors = {
                split: files.enter_context((directory / split / "behaviors.tsv").open("wb")) for split in sizes
            }
            self.probabilities = files.enter_context(
                pq.ParquetWriter(directory / PROBABILITIES, SCHEMA, use_dictionary=["split"])
            )
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
            for news_id, title, topic in zip(
                self.ids.to_pylist(), titles.titles, titles.topic_ids.tolist(), strict=True
            ):
                category = titles.topics[topic]
                file.write(f"{news_id}\t{category}\t{category}\t{title}\t\t\t[]\t[]\n")

    def write(self, split: str, impressions: Impressions) -> None:
        """Append impressions to a split."""
        numbers = np.arange(self.num_written + 1, self.num_written + 1 + len(impressions))
        labelled = self.labelled_ids.take(pa.array(2 * impressions.candidates + impressions.clicked))
        columns = [
            pa.array(numbers).cast(pa.string()),
            pc.binary_join_element_wise("U", pa.array(impressions.users + 1).cast(pa.string()), ""),
            self.format_times(numbers),
            join_lists(self.ids.take(pa.array(impressions.history)), impressions.history_offsets),
            pc.binary_join_element_wise(join_lists(labelled, impressions.offsets), "\n", ""),
        ]
        self.behaviors[split].write(pc.binary_join_element_wise(*columns, "\t").buffers()[2])
        probabilities = to_lists(pa.array(impressions.probability), impressions.offsets)
        columns = [pa.array([split] * len(impressions)), pa.array(numbers), probabilities]
        self.pending.append(pa.table(columns, schema=SCHEMA))
        if sum(map(len, self.pending)) >= MIN_ROW_GROUP:
            self.write_pending()
        self.num_written += len(impressions)

    def write_pending(self) -> None:
        """Write pending probabilities as one row group. Parquet keeps metadata of each row group in memory."""
        if self.pending:
            self.probabilities.write_table(pa.concat_tables(self.pending))
            self.pending.clear()

    def format_times(self, numbers: Any) -> pa.Array:
        """Return the times of impressions in the format of MIND, such as 11/9/2019 12:03:20 AM."""
        microseconds = np.rint((numbers - 1) / self.total * (DURATION / timedelta(microseconds=1))).astype(np.int64)
        hour, second = np.divmod(microseconds // 1_000_000, 3600)
        starts = [START + timedelta(hours=index) for index in range(hour[-1] + 1)]
        before = pa.array([f"{time.month}/{time.day}/{time.year} {time.hour % 12 or 12}" for time in starts])
        after = pa.array(["AM" if time.hour < 12 else "PM" for time in starts])
        clock = pc.binary_join_element_wise(before.take(pa.array(hour)), MINUTES_SECONDS.take(pa.array(second)), ":")
        return pc.binary_join_element_wise(clock, after.take(pa.array(hour)), " ")


def to_lists(values: pa.Array, offsets: Any) -> pa.ListArray:
    """Return a flat array as lists."""
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def join_lists(values: pa.Array, offsets: Any) -> pa.Array:
    """Return lists of strings as strings, with spaces between the values."""
    return pc.binary_join(to_lists(values, offsets), " ")
