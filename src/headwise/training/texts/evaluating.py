"""A trained model judged on labelled rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from datasets import Dataset
from tqdm.auto import tqdm

from headwise.mistakes import Mistake
from headwise.tasks import Task
from headwise.tasks.labels import numbered
from headwise.tasks.metrics.rows import values
from headwise.tasks.preparing import from_files, read
from headwise.tasks.rivals import rivals
from headwise.training.folder import PREDICTIONS
from headwise.training.loading import loadable
from headwise.training.texts.running import load
from headwise.training.texts.trained import Trained

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
        Mistake: no such run, or a file that does not fit it.
    """
    trained = Trained.load(run)
    if data is None:
        task, examples = load(trained.settings)
        split = "test" if "test" in examples.splits else "dev"
        rows, what = examples.splits[split], f"{task.name}, {split}: {examples.recipe}"
        check_unchanged(run, split, rows)
        beside = rivals(task, examples, split)
    else:
        task = Task(name=trained.metrics["task"], kind=trained.metrics["kind"], about="")
        rows, what = labelled(trained, data, text=text, pair=pair, label=label), data.name
        beside = {}
    found: list[Any] = []
    parts = -(-len(rows) // ROWS)
    for part in tqdm(rows.iter(ROWS), total=parts, desc="evaluating", unit="thousand", leave=False, delay=1):
        found += trained.scores({name: x for name, x in part.items() if name != "label"})
    scores = found if task.kind == "tokens" else np.stack(found).astype(np.float64)
    return {
        "on": what,
        "rows": len(rows),
        "primary": task.primary,
        "figures": task.metrics(scores, rows),
        "standard_error": task.standard_error(scores, rows),
        "beside": beside,
    }


def check_unchanged(run: Path, split: str, rows: Dataset) -> None:
    """Make sure that a split is what the run was judged on; of another one it may have learnt some rows.

    Raises:
        Mistake: it is not.
    """
    with loadable(run / PREDICTIONS, "not as headwise wrote it"):
        table = pq.read_table(run / PREDICTIONS, columns=["row", "label"], filters=[("split", "=", split)])
    if any(table[name].to_pylist() != values(rows, name) for name in table.column_names):
        raise Mistake(
            f"{run}: its data has changed since it was trained, so {split} is another one, some of which it may have "
            "learnt; --data FILE judges it on a file"
        )


def labelled(trained: Trained, data: Path, **given: str | None) -> Dataset:
    """A file with labels, which get the run's numbers."""
    kind = trained.metrics["kind"]
    if kind == "ranking":
        raise Mistake(f"{data}: rankings are judged on the task's own candidates; leave --data out")
    source = from_files([data], kind)
    columns = trained.columns(source.head(), labelled=True, **given)
    rows = read({"all": source}, kind, text=columns.text, pair=columns.pair, label=columns.label)["all"]
    return rows.data if kind == "regression" else numbered("all", rows, trained.metrics["labels"])
