"""Ranking of the candidates of a click log by a trained recommender."""

import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from headwise.errors import UserError
from headwise.tasks import mind
from headwise.tasks.mind import Impressions
from headwise.training.core.table_writer import open_output
from headwise.training.recommendation.inference import RecommendationModel

LEADERBOARD_FILE = "prediction.txt"


def predict(run: Path, data: Path, out: Path) -> int:
    """Rank the candidates of a log's test split; of dev, or the only split, if there is no test.

    Args:
        run: the directory of a finished run.
        data: a log, or one of its splits; the candidates need no labels.
        out: `.zip` for the format of MIND's leaderboard, `prediction.txt` with a line for each impression: its id and
            the rank of each candidate, in the log's order; `.tsv`, optionally gzipped, for a line for each candidate:
            impression, rank, news and score, the best first.

    Returns:
        0: every impression is ranked.

    Raises:
        UserError: there is no such run or log, or the extension of `out` is unknown.
    """
    open_writer = choose_writer(out)
    recommender = RecommendationModel.load(run)
    log = mind.read(data)
    split = next(log.splits[name] for name in ("test", "dev", "train") if name in log.splits)
    news_ids = pa.array(log.news.data["id"][:], pa.string())
    with open_output(out, source=data) as path, open_writer(path, news_ids) as write:
        scored = recommender.score(split, recommender.tokenize(log.news))
        for ids, (impressions, scores) in zip(split.rows.column("impression").chunks, scored, strict=True):
            write(ids, impressions, scores)
    return 0


def choose_writer(out: Path) -> Any:
    """Return the writer for a file's extension."""
    if out.suffix == ".zip":
        return leaderboard_writer
    if out.name.endswith((".tsv", ".tsv.gz")):
        return lambda path, news_ids: table_writer(path, news_ids, gzipped=out.suffix == ".gz")
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
    order = np.lexsort((-scores.astype(np.float64), impression))
    ranks = np.empty(len(scores), dtype=np.int32)
    ranks[order] = np.arange(1, len(scores) + 1) - offsets[impression]
    return order, ranks


@contextmanager
def leaderboard_writer(path: Path, news_ids: pa.Array) -> Iterator[Any]:
    """Write a zipped `prediction.txt`."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open(LEADERBOARD_FILE, "w", force_zip64=True) as file,
    ):

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
def table_writer(path: Path, news_ids: pa.Array, *, gzipped: bool) -> Iterator[Any]:
    """Write a line for each candidate, the best first."""
    schema = pa.schema(
        [("impression", pa.string()), ("rank", pa.int32()), ("news", pa.string()), ("score", pa.float32())]
    )
    options = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")  # it would quote the header
    with ExitStack() as stack:
        file = stack.enter_context(pa.output_stream(str(path), compression="gzip" if gzipped else None))
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
