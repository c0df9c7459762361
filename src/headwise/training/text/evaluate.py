"""Evaluation of a finished run on labelled rows."""

from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from tqdm.auto import tqdm

from headwise.errors import UserError
from headwise.tasks import Task
from headwise.tasks.baselines import compute_baselines
from headwise.tasks.build_examples import read_sources, source_from_files
from headwise.tasks.labels import encode_labels
from headwise.training.core.data_check import check_unchanged
from headwise.training.core.metrics import build_evaluation
from headwise.training.text.data import fingerprint, load_data
from headwise.training.text.inference import TextModel

#: Number of rows in memory at a time.
BATCH_ROWS = 1000


def evaluate(
    run: Path,
    data: Path | None = None,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    delimiter: str | None = None,
    skip_bad_rows: bool = False,
) -> dict[str, Any]:
    """Evaluate a run's model on its test split (dev if there is none), or on another labelled file.

    Args:
        run: the directory of a finished run.
        data: a labelled file.
        text: its text column; by default the run's, or detected.
        pair: its second text column.
        label: its label column.
        delimiter: the delimiter of its columns, for CSV and TSV; detected by default.
        skip_bad_rows: skip rows without a text or with an invalid label; by default they are an error.

    Returns:
        The data, the number of rows, the metrics, the standard error of the primary metric and the baselines.

    Raises:
        UserError: there is no such run, its data has changed, or the file does not fit the run.
    """
    trained = TextModel.load(run)
    if data is None:
        own = load_data(trained.config)
        task, split = own.task, "test" if "test" in own.examples.splits else "dev"
        rows = own.examples.splits[split]
        config = trained.config
        paths = (*config.data, *config.train, *config.dev, *config.test)
        check_unchanged(run, split, fingerprint(rows), paths)
        dataset = f"{task.name}, {split}: {own.description}"
        baselines = compute_baselines(task, own.examples, split)
    else:
        task = Task(name=trained.metrics["task"], label_type=trained.metrics["label_type"], about="")
        rows = load_labelled_file(trained, data, delimiter, skip_bad_rows, text=text, pair=pair, label=label)
        dataset, baselines = data.name, {}
    scores = score_rows(trained, rows)
    return build_evaluation(
        dataset=dataset,
        num_rows=len(rows),
        primary_metric=task.primary,
        metrics=task.metrics(scores, rows),
        standard_error=task.standard_error(scores, rows),
        baselines=baselines,
    )


def score_rows(trained: TextModel, rows: Dataset) -> Any:
    """Compute the scores of a split as the task's metrics expect them."""
    scores: list[Any] = []
    batches = tqdm(
        rows.iter(BATCH_ROWS),
        total=-(-len(rows) // BATCH_ROWS),
        desc="evaluating",
        unit="thousand",
        leave=False,
        delay=1,
    )
    for batch in batches:
        scores += trained.scores({name: x for name, x in batch.items() if name != "label"})
    return scores if trained.encoder.label_type == "tokens" else np.stack(scores).astype(np.float64)


def load_labelled_file(
    trained: TextModel, data: Path, delimiter: str | None, skip_bad_rows: bool, **names: str | None
) -> Dataset:
    """Load a labelled file, with the numbers that its labels have in the run.

    Raises:
        UserError: the file is invalid, has a label that the model does not know, or the task is a ranking.
    """
    label_type = trained.metrics["label_type"]
    if label_type == "ranking":
        raise UserError(f"{data}: rankings are evaluated on the task's own candidates only; omit --data")
    source = source_from_files([data], label_type, delimiter)
    columns = trained.choose_columns(source.head(), labelled=True, **names)
    names = {"text": columns.text, "pair": columns.pair, "label": columns.label}
    rows = read_sources({"all": source}, label_type, skip_bad_rows=skip_bad_rows, **names)["all"]
    return rows.data if label_type == "regression" else encode_labels("all", rows, trained.metrics["labels"])
