"""The data of the text pipeline."""

from dataclasses import dataclass, replace

import numpy as np
from datasets import Dataset

from headwise import tasks
from headwise.errors import UserError
from headwise.tasks import Examples, Task
from headwise.tasks.fingerprint import hash_dataset
from headwise.tasks.splitting import shuffled_indices
from headwise.training.core.run_data import RunData
from headwise.training.text.config import TextConfig

#: The columns that identify an example.
EXAMPLE_COLUMNS = ("row", "text", "pair", "words", "label", "query", "document")


@dataclass(frozen=True, kw_only=True)
class TextData(RunData):
    """A task and its examples."""

    task: Task
    examples: Examples


def load_data(config: TextConfig) -> TextData:
    """Load the task and the examples of a run.

    Raises:
        UserError: the task does not exist, or the data is missing or invalid.
    """
    task, examples = load_task(config) if config.task is not None else load_own_files(config)
    if config.rows is not None:
        examples = subsample(examples, config.rows, config.seed)
    return TextData(
        task_name=task.name,
        label_type=task.label_type,
        primary_metric=task.primary,
        description=examples.recipe,
        task=task,
        examples=examples,
    )


def load_task(config: TextConfig) -> tuple[Task, Examples]:
    """Load a built-in task."""
    assert config.task is not None
    task = tasks.get_task(config.task)
    if len(config.data) > 1:
        raise UserError(f"--task {config.task} takes one directory or file as --data, got {len(config.data)}")
    return task, task.load(config.data[0] if config.data else None, seed=config.seed)


def load_own_files(config: TextConfig) -> tuple[Task, Examples]:
    """Load the user's own files."""
    if config.queries or config.documents or config.relevance:
        return tasks.load_ranking(
            next(iter((*config.data, *config.train, *config.dev, *config.test)), None),
            queries=config.queries,
            documents=config.documents,
            relevance=config.relevance,
            delimiter=config.delimiter,
            skip_bad_rows=config.skip_bad_rows,
            seed=config.seed,
        )
    return tasks.load_files(
        config.data[0] if len(config.data) == 1 else config.data or None,
        train=config.train or None,
        dev=config.dev or None,
        test=config.test or None,
        text=config.text,
        pair=config.pair,
        label=config.label,
        label_type=config.label_type,
        delimiter=config.delimiter,
        skip_bad_rows=config.skip_bad_rows,
        seed=config.seed,
    )


def subsample(examples: Examples, rows: float, seed: int) -> Examples:
    """Keep a random subset of the training examples.

    Args:
        examples: all examples.
        rows: the number of training examples, or a fraction below 1.
        seed: the random seed.

    Raises:
        UserError: the fraction is less than two examples.
    """
    train = examples.splits["train"]
    num_rows = round(rows * len(train)) if rows < 1 else int(rows)
    if num_rows >= len(train):
        return examples
    if num_rows < 2:
        raise UserError(f"--rows: this fraction of {len(train):,} training rows is {num_rows}; at least 2 are required")
    chosen = np.sort(shuffled_indices(len(train), seed)[:num_rows])
    splits = {**examples.splits, "train": train.select(chosen)}
    recipe = f"{examples.recipe} {num_rows:,} of the training rows, drawn with seed {seed}."
    return replace(examples, splits=splits, recipe=recipe)


def fingerprint(rows: Dataset) -> str:
    """Return a hash of a split."""
    return hash_dataset(rows, EXAMPLE_COLUMNS)
