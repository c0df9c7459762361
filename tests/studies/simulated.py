"""Runs that never ran: figures and predictions as a study's runs leave them, with the truth known."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headwise.studies.bootstrap import as_rows
from headwise.studies.result import Result
from headwise.tasks import metrics


def classified(folder: Path, method: str, seed: int, right: Any, task: str = "sst2") -> Result:
    """A run on two classes, of which each test row is right or not."""
    labels = np.arange(len(right)) % 2
    guesses = np.where(right, labels, 1 - labels)
    scores = np.stack([1.0 - guesses, guesses], axis=1)
    return written(folder, "classification", task, method, seed, {"label": labels}, scores, ["bad", "good"])


def rated(folder: Path, method: str, seed: int, errors: Any) -> Result:
    """A run on ratings, which is wrong by so much on each test row."""
    labels = np.arange(len(errors)) % 5 + 1.0
    return written(folder, "regression", "stars", method, seed, {"label": labels}, (labels + errors)[:, None], [])


def written(
    folder: Path,
    kind: str,
    task: str,
    method: str,
    seed: int,
    columns: Mapping[str, Any],
    scores: Any,
    labels: Sequence[str],
    rows: Sequence[int] | None = None,
) -> Result:
    own = folder / f"{task}-{method}-{seed}"
    own.mkdir(parents=True)
    count = len(scores)
    listed = {name: [np.asarray(x).tolist() for x in column] for name, column in columns.items()}
    table = {"split": ["test"] * count, "row": list(rows or range(count)), **listed}
    pq.write_table(
        pa.table({**table, "scores": [np.asarray(row).tolist() for row in scores]}), own / "predictions.parquet"
    )
    judge = metrics.get_metrics(kind)
    found = judge.compute(scores, as_rows(listed, kind, labels))
    return Result(
        task=task,
        method=method,
        seed=seed,
        folder=own,
        metrics={
            "task": task,
            "kind": kind,
            "primary_metric": judge.PRIMARY,
            "metrics": {"test": found},
            "labels": list(labels),
            "train_seconds": 10.0 + len(method),
            "peak_memory": {"peak_mib": 500.0, "of": "process"},
            "history": [{"epoch": e, "loss": 1 / e, f"eval_{judge.PRIMARY}": 1 - 1 / (e + 1)} for e in (1, 2, 3)],
            "dataset": "Simulated.",
        },
    )
