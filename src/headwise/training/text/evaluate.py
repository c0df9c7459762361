"""A trained model judged on labelled rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from datasets import Dataset
from tqdm.auto import tqdm

from headwise.errors import UserError
from headwise.tasks import Task
from headwise.tasks.baselines import compute_baselines
from headwise.tasks.build_examples import read_sources, source_from_files
from headwise.tasks.labels import encode_labels
from headwise.tasks.metrics.labels import label_values
from headwise.training.core.loading import loadable
from headwise.training.core.run_dir import PREDICTIONS
from headwise.training.text.inference import TextModel
from headwise.training.text.train import load_examples

#: Rows in memory at a time.
ROWS = 1000


def evaluate(
    run: Path, data: Path | None = None, *, text: str | None = None, pair: str | None = None, label: str | None = None
) -> dict[str, Any]:
    """How good a run's model is: on its own test split (dev, where there is none), or on another labelled file.

    Args:
        run: a finished run's folder.
        data: another file with labels.
        text, pair, label: its columns; by default the run's, or found by their names.

    Returns:
        What was judged, how many rows, the figures, the standard error of the primary one, and the figures of what the
        model should beat.

    Raises:
        UserError: no such run, or a file that does not fit it.
    """
    trained = TextModel.load(run)
    if data is None:
        task, examples = load_examples(trained.settings)
        split = "test" if "test" in examples.splits else "dev"
        rows, what = examples.splits[split], f"{task.name}, {split}: {examples.recipe}"
        check_unchanged(run, split, rows)
        beside = compute_baselines(task, examples, split)
    else:
        task = Task(name=trained.metrics["task"], label_type=trained.metrics["label_type"], about="")
        rows, what = labelled(trained, data, text=text, pair=pair, label=label), data.name
        beside = {}
    found: list[Any] = []
    parts = -(-len(rows) // ROWS)
    for part in tqdm(rows.iter(ROWS), total=parts, desc="evaluating", unit="thousand", leave=False, delay=1):
        found += trained.scores({name: x for name, x in part.items() if name != "label"})
    scores = found if task.label_type == "tokens" else np.stack(found).astype(np.float64)
    return {
        "dataset": what,
        "rows": len(rows),
        "primary_metric": task.primary,
        "metrics": task.metrics(scores, rows),
        "standard_error": task.standard_error(scores, rows),
        "baselines": beside,
    }


def check_unchanged(run: Path, split: str, rows: Dataset) -> None:
    """Make sure that a split is what the run was judged on; of another one it may have learnt some rows.

    Raises:
        UserError: it is not.
    """
    with loadable(run / PREDICTIONS, "not as headwise wrote it"):
        table = pq.read_table(run / PREDICTIONS, columns=["row", "label"], filters=[("split", "=", split)])
    if any(table[name].to_pylist() != label_values(rows, name) for name in table.column_names):
        raise UserError(
            f"{run}: its data has changed since it was trained, so {split} is another one, some of which it may have "
            "learnt; --data FILE judges it on a file"
        )


def labelled(trained: TextModel, data: Path, **given: str | None) -> Dataset:
    """A file with labels, which get the run's numbers."""
    label_type = trained.metrics["label_type"]
    if label_type == "ranking":
        raise UserError(f"{data}: rankings are judged on the task's own candidates; leave --data out")
    source = source_from_files([data], label_type)
    columns = trained.columns(source.head(), labelled=True, **given)
    rows = read_sources({"all": source}, label_type, text=columns.text, pair=columns.pair, label=columns.label)["all"]
    return rows.data if label_type == "regression" else encode_labels("all", rows, trained.metrics["labels"])
