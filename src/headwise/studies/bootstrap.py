"""Paired bootstrap of the primary metric over test examples, computed from the predictions of runs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import ClassLabel, Dataset, List

from headwise.errors import UserError, first_line
from headwise.studies.plan import Result
from headwise.tasks import metrics
from headwise.tasks.metrics.bootstrap import bootstrap_metric
from headwise.tasks.metrics.labels import label_values, relevant_ranks
from headwise.training.core.run_dir import PREDICTIONS

NUM_SAMPLES = 2000


def bootstrap_primary_metric(results: Sequence[Result], split: str) -> Any | None:
    """Compute the primary metric of each run on bootstrap samples of the rows.

    All runs share the samples, so that their differences are paired. Runs with different test rows share the rows that
    they have in common. For rankings, queries are sampled instead of rows.

    Args:
        results: runs of one task.
        split: the split of the rows, test or dev.

    Returns:
        Values (samples, runs), NaN for a sample without rows of the run; or None if the task has no bootstrap, or a run
        has no predictions.
    """
    label_type = results[0].metrics["label_type"]
    if label_type not in BOOTSTRAPS or not all((result.run_dir / PREDICTIONS).is_file() for result in results):
        return None
    compute_statistics, from_sums = BOOTSTRAPS[label_type]
    ids_and_statistics = [load_statistics(result, split, compute_statistics) for result in results]
    all_ids = np.unique(np.concatenate([ids for ids, _ in ids_and_statistics]))
    num_statistics = ids_and_statistics[0][1].shape[1]
    statistics = np.zeros((len(all_ids), len(results), num_statistics))
    for run, (ids, run_statistics) in enumerate(ids_and_statistics):
        statistics[np.searchsorted(all_ids, ids), run] = run_statistics

    def metric(sums: Any) -> Any:
        return from_sums(sums.reshape(len(sums), len(results), num_statistics))

    with np.errstate(invalid="ignore"):  # a sample may have no row of a run with few test rows
        return bootstrap_metric(statistics.reshape(len(all_ids), -1), metric, samples=NUM_SAMPLES)


def load_statistics(result: Result, split: str, compute_statistics: "StatisticsFunction") -> tuple[Any, Any]:
    """Compute the statistics of a run's predictions.

    Raises:
        UserError: the predictions are damaged.
    """
    try:
        return compute_statistics(result, read_predictions(result, split))
    except Exception as error:  # a file from elsewhere can contain anything
        raise UserError(
            f"{result.run_dir / PREDICTIONS}: not written by headwise, or damaged ({first_line(error)})"
        ) from error


def read_predictions(result: Result, split: str) -> pa.Table:
    """Read the predictions of a run on a split."""
    table = pq.read_table(result.run_dir / PREDICTIONS)
    return table.filter(pc.equal(table["split"], split))


def count_rows(result: Result, split: str) -> int:
    """Return the number of rows of a split, or of queries for rankings; 0 if the run has no predictions."""
    if not (result.run_dir / PREDICTIONS).is_file():
        return 0
    table = read_predictions(result, split)
    return len(pc.unique(table["query"])) if "query" in table.column_names else table.num_rows


def label_statistics(result: Result, table: pa.Table) -> tuple[Any, Any]:
    """Return ids and metric statistics of rows, or of queries for rankings."""
    label_type = result.metrics["label_type"]
    columns = {name: table[name].to_pylist() for name in ("label", "query") if name in table.column_names}
    rows = build_rows(columns, label_type, result.metrics["labels"])
    scores: Any = table["scores"].to_pylist()
    scores = scores if label_type == "tokens" else np.asarray(scores, dtype=np.float64)
    statistics = np.asarray(metrics.get_metrics(label_type).row_statistics(scores, rows), dtype=np.float64)
    if label_type == "ranking":
        queries = np.unique(label_values(rows, "query"))
        return queries[[len(ranks) > 0 for ranks in relevant_ranks(scores, rows)]], statistics
    return row_ids(table), statistics


def impression_statistics(result: Result, table: pa.Table) -> tuple[Any, Any]:
    """Return ids of impressions, and for each its metric and 1, or zeros if its metric is NaN."""
    values = table[result.metrics["primary_metric"]].to_numpy().astype(np.float64)
    is_valid = ~np.isnan(values)
    return row_ids(table), np.stack([np.where(is_valid, values, 0.0), is_valid], axis=1)


def translation_statistics(result: Result, table: pa.Table) -> tuple[Any, Any]:
    """Return ids of sentences and sacrebleu's statistics of BLEU: lengths and n-gram counts."""
    from sacrebleu.metrics.bleu import BLEU

    statistics = BLEU()._extract_corpus_statistics(table["predicted"].to_pylist(), [table["reference"].to_pylist()])
    return row_ids(table), np.asarray(statistics, dtype=np.float64)


def row_ids(table: pa.Table) -> Any:
    """Return the row numbers, or the positions in the table if row numbers of several files collide."""
    ids = table["row"].to_numpy()
    return ids if len(np.unique(ids)) == len(ids) else np.arange(len(ids))


def build_rows(columns: Mapping[str, Any], label_type: str, labels: Sequence[str]) -> Dataset:
    """Build a dataset from columns; token labels are cast to class labels."""
    rows = Dataset(pa.table(dict(columns)), fingerprint="rows")  # not hashed: nothing of them is cached
    return rows.cast_column("label", List(ClassLabel(names=list(labels)))) if label_type == "tokens" else rows


def mean_from_sums(sums: Any) -> Any:
    """Return means, given sums of values and counts."""
    return sums[..., 0] / np.maximum(sums[..., 1], 1)


def bleu_from_sums(sums: Any) -> Any:
    """Return BLEU, given sums of its statistics, with sacrebleu's default (exponential) smoothing."""
    hypothesis_length, reference_length = sums[..., 0], sums[..., 1]
    correct, total = sums[..., 2:6], sums[..., 6:10]
    num_zeros = np.cumsum(correct == 0, axis=-1)
    precision = np.where(correct > 0, correct, 2.0**-num_zeros) / np.maximum(total, 1)
    log_brevity = np.minimum(0.0, 1 - reference_length / np.maximum(hypothesis_length, 1))
    is_positive = correct.any(axis=-1) & total.all(axis=-1)  # BLEU is 0 if no sentence has four words
    return np.where(is_positive, 100 * np.exp(log_brevity + np.log(precision).mean(axis=-1)), 0.0)


StatisticsFunction = Callable[[Result, pa.Table], tuple[Any, Any]]
FromSums = Callable[[Any], Any]

#: For each label type: a function that returns row ids and statistics, and the primary metric as a function of sums.
BOOTSTRAPS: dict[str, tuple[StatisticsFunction, FromSums]] = {
    label_type: (label_statistics, metrics.get_metrics(label_type).from_sums)
    for label_type in ("classification", "multi-label", "regression", "tokens", "ranking")
} | {"clicks": (impression_statistics, mean_from_sums), "translation": (translation_statistics, bleu_from_sums)}
