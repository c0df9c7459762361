"""Rankings of documents for the queries of a file: BM25 selects the candidates, the model of a run ranks them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset

from headwise.csv_cells import is_safe_csv
from headwise.errors import UserError
from headwise.tasks.load_ranking import load_candidates
from headwise.tasks.metrics.labels import label_values
from headwise.tasks.ranking import CLASSES
from headwise.training.core.distributed import main_process_first, main_process_only
from headwise.training.core.table_writer import TableFormat, check_extension
from headwise.training.jobs import PART_ROWS, JobDir, JobOptions, RowRange, open_job, run_job
from headwise.training.jobs.job_dir import describe_inputs
from headwise.training.text.data import fingerprint
from headwise.training.text.decision import DecisionRule
from headwise.training.text.evaluate import ScoreTask, join_scores
from headwise.training.text.inference import read_text_metrics

#: The columns of a ranking. Queries are in the order of their file; the best document of a query has rank 1.
COLUMNS = {
    "query": pa.string(),
    "rank": pa.int64(),
    "document": pa.string(),
    "probability_relevant": pa.float64(),
    "query_text": pa.string(),
    "document_text": pa.string(),
}


@dataclass(frozen=True)
class CandidateRows:
    """The candidates of each query. The arguments are those of `rank_documents`."""

    run: Path
    queries: Path
    documents: tuple[Path, ...]
    text: str | None
    delimiter: str | None

    def load(self) -> tuple[Dataset, int]:
        """Return the candidates, and the number of queries without a text."""
        return load_candidates(self.queries, self.documents, text=self.text, delimiter=self.delimiter)

    def load_rows(self) -> Dataset:
        return self.load()[0]


def rank_documents(
    run: Path,
    queries: Path,
    documents: Sequence[Path],
    out: Path,
    *,
    text: str | None,
    delimiter: str | None,
    options: JobOptions,
) -> int:
    """Write the ranked candidates of each query, the best 20 documents by BM25.

    Args:
        run: the directory of a finished run, whose model ranks documents.
        queries: the file of queries.
        documents: the files of documents. All documents are kept in memory.
        out: the output file; its extension is the format.
        text: the column with the texts of the queries; detected by default.
        delimiter: the delimiter of the columns, for CSV and TSV; detected by default.
        options: the processes or the cluster, and whether an unfinished job is resumed.

    Returns:
        The number of queries without a text, which have no ranking.

    Raises:
        UserError: the run has another type of labels, or a file is invalid.
    """
    metrics = read_text_metrics(run)
    if metrics["label_type"] != "ranking":
        raise UserError(f"--documents does not apply to the run in {run}, whose labels are {metrics['label_type']}")
    for source in (queries, *documents):
        if out.exists() and source.exists() and out.samefile(source):
            raise UserError(f"--out {out}: the output is the input file")
    extension = check_extension(out, queries)
    candidates = CandidateRows(run, queries, tuple(documents), text, delimiter)
    rows, num_empty = main_process_first(candidates.load)
    part_rows = options.part_rows or PART_ROWS
    settings = {"rows": fingerprint(rows), "part_rows": part_rows, "out": out.name, "safe_csv": is_safe_csv()}
    with open_job(out, describe_inputs(run, [queries, *documents]) | settings, options) as job_dir:
        assert job_dir is not None
        parts = RowRange.divide(len(rows), part_rows)
        task = ScoreTask(candidates)
        scores = join_scores(run_job(task, parts, options, job_dir, verb="ranking", unit="candidates"))
        probabilities = DecisionRule.from_metrics(metrics).probabilities(scores)[:, CLASSES.index("relevant")]
        schema = pa.schema(list(COLUMNS.items())) if extension == ".parquet" else None
        table_format = TableFormat(out, tuple(COLUMNS), schema)
        main_process_only(partial(write_ranking, table_format, job_dir, rows, probabilities))
    return num_empty


def write_ranking(table_format: TableFormat, job_dir: JobDir, rows: Dataset, probabilities: Any) -> None:
    """Write the candidates of each query, the most relevant one first. Equal ones keep the order of BM25."""
    query_rows = np.asarray(label_values(rows, "row"))
    order = np.lexsort((-probabilities, query_rows))
    is_first = np.diff(query_rows[order], prepend=-1) != 0
    first = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
    ranked = rows.select(order)[:]
    path = job_dir.path / "ranking"
    with table_format.open_part(path, is_first=True) as write:
        write(
            {
                "query": ranked["query"],
                "rank": (np.arange(len(order)) - first + 1).tolist(),
                "document": ranked["document"],
                "probability_relevant": np.round(probabilities[order], 6).tolist(),
                "query_text": ranked["text"],
                "document_text": ranked["pair"],
            }
        )
    table_format.join([path])
