"""Simulated runs with known results: metrics and predictions as a study's runs write them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headwise.studies.bootstrap import build_rows
from headwise.studies.plan import Result
from headwise.tasks import metrics


def classification_run(directory: Path, method: str, seed: int, is_correct: Any, task: str = "sst2") -> Result:
    """Write a run on two classes with correct and wrong test rows."""
    labels = np.arange(len(is_correct)) % 2
    predicted = np.where(is_correct, labels, 1 - labels)
    scores = np.stack([1.0 - predicted, predicted], axis=1)
    return write_run(directory, "classification", task, method, seed, {"label": labels}, scores, ["bad", "good"])


def regression_run(directory: Path, method: str, seed: int, errors: Any) -> Result:
    """Write a run on ratings with these errors."""
    labels = np.arange(len(errors)) % 5 + 1.0
    return write_run(directory, "regression", "stars", method, seed, {"label": labels}, (labels + errors)[:, None], [])


def write_run(
    directory: Path,
    label_type: str,
    task: str,
    method: str,
    seed: int,
    columns: Mapping[str, Any],
    scores: Any,
    labels: Sequence[str],
    row_numbers: Sequence[int] | None = None,
) -> Result:
    """Write the predictions of a run, and return the run with its metrics."""
    run_dir = directory / f"{task}-{method}-{seed}"
    run_dir.mkdir(parents=True)
    count = len(scores)
    lists = {name: [np.asarray(x).tolist() for x in column] for name, column in columns.items()}
    table = {"split": ["test"] * count, "row": list(row_numbers or range(count)), **lists}
    pq.write_table(
        pa.table({**table, "scores": [np.asarray(row).tolist() for row in scores]}), run_dir / "predictions.parquet"
    )
    metric_functions = metrics.get_metrics(label_type)
    primary_metric = metric_functions.PRIMARY
    return Result(
        task=task,
        method=method,
        seed=seed,
        run_dir=run_dir,
        metrics={
            "task": task,
            "label_type": label_type,
            "primary_metric": primary_metric,
            "metrics": {"test": metric_functions.compute(scores, build_rows(lists, label_type, labels))},
            "labels": list(labels),
            "train_seconds": 10.0 + len(method),
            "peak_memory": {"peak_mib": 500.0, "of": "process"},
            "history": [{"epoch": e, "loss": 1 / e, f"eval_{primary_metric}": 1 - 1 / (e + 1)} for e in (1, 2, 3)],
            "dataset": "Simulated.",
        },
    )


def simulate_runs(
    directory: Path, accuracies: Mapping[str, float], seeds: int, *, task: str = "sst2", num_rows: int = 400
) -> list[Result]:
    """Write runs of methods with known accuracies. The same rows are difficult for all methods."""
    random = np.random.default_rng(len(task))
    difficulty = random.random(num_rows)
    return [
        classification_run(directory, name, seed, difficulty < accuracy + random.normal(0, 0.01), task)
        for seed in range(seeds)
        for name, accuracy in accuracies.items()
    ]


def regression_runs(directory: Path, scales: Mapping[str, float], seeds: int, *, num_rows: int = 400) -> list[Result]:
    """Write runs of methods whose errors are the same noise, multiplied by a scale."""
    random = np.random.default_rng(0)
    noise = random.normal(0, 1, num_rows)
    return [
        regression_run(directory, name, seed, (scale + random.normal(0, 0.01)) * noise)
        for seed in range(seeds)
        for name, scale in scales.items()
    ]
