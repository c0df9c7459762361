"""The candidates of a click log in a trained recommender's order, in a file."""

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

PREDICTION = "prediction.txt"


def predict(run: Path, data: Path, out: Path) -> int:
    """Rank the candidates of a log's test split (dev, where there is none, or the only one).

    Args:
        run: a finished run's folder.
        data: a log, or one of its splits; its candidates need no labels.
        out: `.zip` for what MIND's leaderboard takes, `prediction.txt` with a line for each impression: its id and the
            rank of each candidate, in the log's order; `.tsv`, gzipped or not, for a line for each candidate:
            impression, rank, news and score, the best first.

    Returns:
        0: every impression is ranked.

    Raises:
        UserError: no such run or log, or another ending.
    """
    write = writer_for(out)
    trained = RecommendationModel.load(run)
    log = mind.read(data)
    split = next(log.splits[name] for name in ("test", "dev", "train") if name in log.splits)
    names = pa.array(log.news.data["id"][:], pa.string())
    with open_output(out, source=data) as part, write(part, names) as add:
        scored = trained.scores(split, trained.titles(log.news))
        for ids, (impressions, scores) in zip(split.rows.column("impression").chunks, scored, strict=True):
            add(ids, impressions, scores)
    return 0


def writer_for(out: Path) -> Any:
    if out.suffix == ".zip":
        return leaderboard
    if out.name.endswith((".tsv", ".tsv.gz")):
        return lambda part, names: table(part, names, packed=out.suffix == ".gz")
    raise UserError(f"--out {out}: .zip for MIND's leaderboard, or .tsv, also .tsv.gz, for ranked news")


def ranks(scores: Any, offsets: Any) -> tuple[Any, Any]:
    """The order of all candidates, impression by impression, the best first, and the rank of each.

    Of equal scores, the candidate that the log lists first ranks first.

    >>> order, rank = ranks(np.array([0.1, 0.9, 0.5, 0.5]), np.array([0, 2, 4]))
    >>> order.tolist(), rank.tolist()
    ([1, 0, 2, 3], [2, 1, 1, 2])
    """
    sizes = np.diff(offsets)
    impression = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((-scores.astype(np.float64), impression))
    rank = np.empty(len(scores), dtype=np.int32)
    rank[order] = np.arange(1, len(scores) + 1) - offsets[impression]
    return order, rank


@contextmanager
def leaderboard(part: Path, names: pa.Array) -> Iterator[Any]:
    """`prediction.txt`, zipped."""
    with (
        zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open(PREDICTION, "w", force_zip64=True) as file,
    ):

        def add(ids: pa.Array, impressions: Impressions, scores: Any) -> None:
            _, rank = ranks(scores, impressions.offsets)
            lists = pa.ListArray.from_arrays(
                pa.array(impressions.offsets, pa.int32()), pc.cast(pa.array(rank), "string")
            )
            joined = pc.binary_join(lists, ",")
            lines = pc.binary_join_element_wise(ids, pc.binary_join_element_wise("[", joined, "]\n", ""), " ")
            file.write("".join(lines.to_pylist()).encode())

        yield add


@contextmanager
def table(part: Path, names: pa.Array, *, packed: bool) -> Iterator[Any]:
    """A line for each candidate, the best first."""
    schema = pa.schema(
        [("impression", pa.string()), ("rank", pa.int32()), ("news", pa.string()), ("score", pa.float32())]
    )
    options = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")  # headers would be quoted
    with ExitStack() as opened:
        file = opened.enter_context(pa.output_stream(str(part), compression="gzip" if packed else None))
        file.write("\t".join(schema.names).encode() + b"\n")
        writer = opened.enter_context(csv.CSVWriter(file, schema, write_options=options))

        def add(ids: pa.Array, impressions: Impressions, scores: Any) -> None:
            order, rank = ranks(scores, impressions.offsets)
            impression = np.repeat(np.arange(len(ids)), np.diff(impressions.offsets))
            columns = [
                ids.take(pa.array(impression[order])),
                pa.array(rank[order]),
                names.take(pa.array(impressions.candidates[order])),
                pa.array(scores[order].astype(np.float32)),
            ]
            writer.write_table(pa.table(columns, schema=schema))

        yield add
