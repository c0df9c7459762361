"""How a figure would move with other test examples: a paired bootstrap, from what runs predicted for each row."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import ClassLabel, Dataset, List

from headwise.studies.result import Result
from headwise.tasks import metrics
from headwise.tasks.metrics.ranking import hits
from headwise.tasks.metrics.rows import values
from headwise.training.folder import PREDICTIONS

SAMPLES = 2000
CELLS = 2**22  # of the table of counts that is in memory at a time


def resampled(results: Sequence[Result], split: str, *, samples: int = SAMPLES, seed: int = 0) -> Any:
    """The primary figure of each run on rows that were drawn again, with replacement; None where it cannot be had.

    All runs are judged on the same draws, so that their differences are paired. A row that is in the test split of
    several seeds is drawn for all of them at once. Rankings draw queries.

    Args:
        results: runs of one task.
        split: which rows, test or dev.
        samples: how often.
        seed: of the draws.

    Returns:
        (samples, runs), or None: the kind of task has no bootstrap, or a run has no predictions.
    """
    kind = results[0].metrics["kind"]
    if kind not in metrics.KINDS or not all((result.folder / PREDICTIONS).is_file() for result in results):
        return None
    judge = metrics.of(kind)
    found = [parts_of(result, split) for result in results]
    units = np.unique(np.concatenate([ids for ids, _ in found]))
    wide = np.zeros((len(units), len(found), found[0][1].shape[1]))
    for run, (ids, parts) in enumerate(found):
        wide[np.searchsorted(units, ids), run] = parts
    flat = wide.reshape(len(units), -1)
    random = np.random.default_rng(seed)
    at_a_time = max(1, CELLS // len(units))
    drawn = []
    for first in range(0, samples, at_a_time):
        rows = random.integers(0, len(units), size=(min(at_a_time, samples - first), len(units)))
        times = np.stack([np.bincount(row, minlength=len(units)) for row in rows])
        sums = (times @ flat).reshape(len(rows), *wide.shape[1:])
        drawn.append(judge.primary(sums))
    return np.concatenate(drawn)


def parts_of(result: Result, split: str) -> tuple[Any, Any]:
    """Of each row of a split (of each query, for rankings): its name, and what it adds to the sums of the metric."""
    kind, labels = result.metrics["kind"], result.metrics["labels"]
    table = pq.read_table(result.folder / PREDICTIONS)
    table = table.filter(pc.equal(table["split"], split))
    columns = {name: table[name].to_pylist() for name in ("label", "query") if name in table.column_names}
    rows = as_rows(columns, kind, labels)
    scores: Any = table["scores"].to_pylist()
    scores = scores if kind == "tokens" else np.asarray(scores, dtype=np.float64)
    parts = np.asarray(metrics.of(kind).parts(scores, rows), dtype=np.float64)
    if kind == "ranking":
        queries = np.unique(values(rows, "query"))
        return queries[[len(ranked) > 0 for ranked in hits(scores, rows)]], parts
    ids = table["row"].to_numpy()
    return (ids if len(np.unique(ids)) == len(ids) else np.arange(len(ids))), parts  # several files count by themselves


def as_rows(columns: Mapping[str, Any], kind: str, labels: Sequence[str]) -> Dataset:
    rows = Dataset.from_dict(dict(columns))
    return rows.cast_column("label", List(ClassLabel(names=list(labels)))) if kind == "tokens" else rows
