"""How a figure would move with other test examples: a paired bootstrap, from what runs predicted for each row."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import ClassLabel, Dataset, List

from headwise.studies.result import Result
from headwise.tasks import metrics
from headwise.tasks.metrics.labels import label_values, relevant_ranks
from headwise.training.core.run_dir import PREDICTIONS

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
        (samples, runs), NaN where none of a run's rows was drawn; or None: the kind of task has no bootstrap, or a run
        has no predictions.
    """
    kind = results[0].metrics["label_type"]
    if kind not in READ or not all((result.folder / PREDICTIONS).is_file() for result in results):
        return None
    read, figure = READ[kind]
    found = [read(result, predicted(result, split)) for result in results]
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
        with np.errstate(invalid="ignore"):  # a seed with few test rows may have none of them drawn
            drawn.append(figure(sums))
    return np.concatenate(drawn)


def predicted(result: Result, split: str) -> pa.Table:
    table = pq.read_table(result.folder / PREDICTIONS)
    return table.filter(pc.equal(table["split"], split))


def of_rows(result: Result, table: pa.Table) -> tuple[Any, Any]:
    """Of each row (of each query, for rankings): its name, and what it adds to the sums that the metric is made of."""
    kind = result.metrics["label_type"]
    columns = {name: table[name].to_pylist() for name in ("label", "query") if name in table.column_names}
    rows = as_rows(columns, kind, result.metrics["labels"])
    scores: Any = table["scores"].to_pylist()
    scores = scores if kind == "tokens" else np.asarray(scores, dtype=np.float64)
    parts = np.asarray(metrics.get_metrics(kind).row_statistics(scores, rows), dtype=np.float64)
    if kind == "ranking":
        queries = np.unique(label_values(rows, "query"))
        return queries[[len(ranked) > 0 for ranked in relevant_ranks(scores, rows)]], parts
    return names(table), parts


def of_impressions(result: Result, table: pa.Table) -> tuple[Any, Any]:
    """Of each impression of a click log, whose own metrics are in the file: its metric, where it has one, and one."""
    each = table[result.metrics["primary_metric"]].to_numpy().astype(np.float64)
    known = ~np.isnan(each)
    return names(table), np.stack([np.where(known, each, 0.0), known], axis=1)


def of_translations(result: Result, table: pa.Table) -> tuple[Any, Any]:
    """Of each sentence what BLEU counts: lengths, and n-grams that are right and all, as sacrebleu's own tests do."""
    from sacrebleu.metrics.bleu import BLEU

    counted = BLEU()._extract_corpus_statistics(table["predicted"].to_pylist(), [table["reference"].to_pylist()])
    return names(table), np.asarray(counted, dtype=np.float64)


def names(table: pa.Table) -> Any:
    """What each row is called; rows of several files, whose numbers are there twice, go by their place."""
    found = table["row"].to_numpy()
    return found if len(np.unique(found)) == len(found) else np.arange(len(found))


def as_rows(columns: Mapping[str, Any], kind: str, labels: Sequence[str]) -> Dataset:
    rows = Dataset.from_dict(dict(columns))
    return rows.cast_column("label", List(ClassLabel(names=list(labels)))) if kind == "tokens" else rows


def mean(sums: Any) -> Any:
    return sums[..., 0] / np.maximum(sums[..., 1], 1)


def bleu(sums: Any) -> Any:
    """BLEU from its counts, smoothed as sacrebleu does by default (NIST's way)."""
    length, wanted = sums[..., 0], sums[..., 1]
    right, every = sums[..., 2:6], np.maximum(sums[..., 6:10], 1)
    zeros = np.cumsum(right == 0, axis=-1)
    precision = np.where(right > 0, right, 2.0**-zeros) / every
    brevity = np.minimum(0.0, 1 - wanted / np.maximum(length, 1))
    return np.where(right.any(axis=-1), 100 * np.exp(brevity + np.log(precision).mean(axis=-1)), 0.0)


#: Of each kind of task: how its predictions are read, and the primary figure as a function of sums.
READ: dict[str, tuple[Callable[[Result, pa.Table], tuple[Any, Any]], Callable[[Any], Any]]] = {
    kind: (of_rows, metrics.get_metrics(kind).from_sums)
    for kind in ("classification", "multi-label", "regression", "tokens", "ranking")
} | {"clicks": (of_impressions, mean), "translation": (of_translations, bleu)}
