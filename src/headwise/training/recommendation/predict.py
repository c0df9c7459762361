"""Ranking of the candidates of a click log by a trained recommender."""

import shutil
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from torch import Tensor

from headwise.errors import UserError
from headwise.tasks import mind
from headwise.tasks.metrics.clicks import sort_candidates
from headwise.tasks.mind import Impressions, Log, Split
from headwise.training.core.distributed import main_process_first, main_process_only
from headwise.training.core.run_dir import atomic_path
from headwise.training.core.table_writer import join_files
from headwise.training.jobs import JobOptions, Progress, Result, RowRange, open_job, run_job
from headwise.training.jobs.job_dir import describe_inputs
from headwise.training.recommendation.inference import RecommendationModel
from headwise.training.recommendation.ranking import PART_IMPRESSIONS

DEFAULT_OPTIONS = JobOptions()
LEADERBOARD_FILE = "prediction.txt"


def predict(run: Path, data: Path, out: Path, *, options: JobOptions = DEFAULT_OPTIONS) -> int:
    """Rank the candidates of a log's test split; of dev, or the only split, if there is no test.

    Args:
        run: the directory of a finished run.
        data: a log, or one of its splits; the candidates need no labels.
        out: `.zip` for the format of MIND's leaderboard, `prediction.txt` with a line for each impression: its id and
            the rank of each candidate, in the log's order; `.tsv`, optionally gzipped, for a line for each candidate:
            impression, rank, news and score, the best first.
        options: the processes or the cluster, and whether an unfinished job is resumed.

    Returns:
        0: every impression is ranked.

    Raises:
        UserError: there is no such run or log, or the extension of `out` is unknown.
    """
    if not isinstance(data, Path):
        raise UserError("a recommender ranks one log at a time; start one command for each")
    choose_writer(out)
    log = main_process_first(partial(mind.read, data))
    split = log.splits[evaluated_split(log)]
    part_rows = options.part_rows or PART_IMPRESSIONS
    plan = {**describe_inputs(run, split.rows.files), "out": out.name, "part_rows": part_rows}
    with open_job(out, plan, options) as job_dir:
        assert job_dir is not None
        parts = RowRange.divide(len(split), part_rows)
        for _ in run_job(RankingTask(run, data, out), parts, options, job_dir, verb="ranking", unit="impressions"):
            pass
        outputs = [job_dir.output_path(number) for number in range(len(parts))]
        main_process_only(lambda: join_rankings(outputs, out))
    return 0


def evaluated_split(log: Log) -> str:
    """Return the name of the split that is ranked."""
    return next(name for name in ("test", "dev", "train") if name in log.splits)


@dataclass(frozen=True)
class RankingTask:
    """Writes the ranks of candidates.

    Args:
        run_dir: the directory of a finished run.
        data: the log.
        out: the output; its extension is the format.
    """

    run_dir: Path
    data: Path
    out: Path

    def load(self) -> tuple[RecommendationModel, Split, pa.Array, Tensor]:
        recommender, log = RecommendationModel.load(self.run_dir), mind.read(self.data)
        news_ids = pa.array(log.news.data["id"][:], pa.string())
        split = log.splits[evaluated_split(log)]
        return recommender, split, news_ids, recommender.encode_news(recommender.tokenize(log.news))

    def run(
        self,
        model: tuple[RecommendationModel, Split, pa.Array, Tensor],
        part: RowRange,
        out: Path | None,
        progress: Progress,
    ) -> Result:
        assert out is not None
        recommender, split, news_ids, news_vectors = model
        impressions = split.slice(part.start, part.stop)
        with choose_writer(self.out)(out, news_ids, is_first=part.start == 0) as write:
            scored = recommender.score(impressions, news_vectors, progress)
            for ids, (chunk, scores) in zip(impressions.strings("impression"), scored, strict=True):
                write(ids, chunk, scores)
        return {"impressions": np.array(part.num_rows)}


def join_rankings(parts: Sequence[Path], out: Path) -> None:
    """Write the output file from its parts."""
    with atomic_path(out) as path:
        if out.suffix != ".zip":
            join_files(parts, path)
            return
        with (
            zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
            archive.open(LEADERBOARD_FILE, "w", force_zip64=True) as file,
        ):
            for part in parts:
                with part.open("rb") as source:
                    shutil.copyfileobj(source, file)


def choose_writer(out: Path) -> Any:
    """Return the writer for a file's extension."""
    if out.suffix == ".zip":
        return leaderboard_writer
    if out.name.endswith((".tsv", ".tsv.gz")):
        return partial(table_writer, gzipped=out.suffix == ".gz")
    raise UserError(f"--out {out}: expected .zip for MIND's leaderboard, or .tsv or .tsv.gz for a table of ranked news")


def rank_candidates(scores: Any, offsets: Any) -> tuple[Any, Any]:
    """Return the order of all candidates, impression by impression, the best first, and the rank of each.

    Equal scores are ranked in the log's order.

    >>> order, ranks = rank_candidates(np.array([0.1, 0.9, 0.5, 0.5]), np.array([0, 2, 4]))
    >>> order.tolist(), ranks.tolist()
    ([1, 0, 2, 3], [2, 1, 1, 2])
    """
    num_candidates = np.diff(offsets)
    impression = np.repeat(np.arange(len(num_candidates)), num_candidates)
    order = sort_candidates(scores, impression)
    ranks = np.empty(len(scores), dtype=np.int32)
    ranks[order] = np.arange(1, len(scores) + 1) - offsets[impression]
    return order, ranks


@contextmanager
def leaderboard_writer(path: Path, news_ids: pa.Array, *, is_first: bool) -> Iterator[Any]:
    """Write lines of `prediction.txt`."""
    with path.open("wb") as file:

        def write(ids: pa.Array, impressions: Impressions, scores: Any) -> None:
            _, ranks = rank_candidates(scores, impressions.offsets)
            lists = pa.ListArray.from_arrays(
                pa.array(impressions.offsets, pa.int32()), pc.cast(pa.array(ranks), "string")
            )
            joined = pc.binary_join(lists, ",")
            lines = pc.binary_join_element_wise(ids, pc.binary_join_element_wise("[", joined, "]\n", ""), " ")
            file.write("".join(lines.to_pylist()).encode())

        yield write


@contextmanager
def table_writer(path: Path, news_ids: pa.Array, *, is_first: bool, gzipped: bool) -> Iterator[Any]:
    """Write a line for each candidate, the best first; in the first part after a header."""
    schema = pa.schema(
        [("impression", pa.string()), ("rank", pa.int32()), ("news", pa.string()), ("score", pa.float32())]
    )
    options = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")  # it would quote the header
    with ExitStack() as stack:
        file = stack.enter_context(pa.output_stream(str(path), compression="gzip" if gzipped else None))
        if is_first:
            file.write("\t".join(schema.names).encode() + b"\n")
        writer = stack.enter_context(csv.CSVWriter(file, schema, write_options=options))

        def write(ids: pa.Array, impressions: Impressions, scores: Any) -> None:
            order, ranks = rank_candidates(scores, impressions.offsets)
            impression = np.repeat(np.arange(len(ids)), np.diff(impressions.offsets))
            columns = [
                ids.take(pa.array(impression[order])),
                pa.array(ranks[order]),
                news_ids.take(pa.array(impressions.candidates[order])),
                pa.array(scores[order].astype(np.float32)),
            ]
            writer.write_table(pa.table(columns, schema=schema))

        yield write
