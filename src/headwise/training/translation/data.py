"""The data of the translation pipeline."""

from dataclasses import dataclass, replace

import numpy as np
from datasets import Dataset

from headwise.tasks.fingerprint import hash_dataset
from headwise.tasks.splitting import shuffled_indices
from headwise.tasks.translation import Pairs, metrics, read_pairs
from headwise.training.core.run_data import RunData
from headwise.training.translation.config import TranslationConfig


@dataclass(frozen=True, kw_only=True)
class TranslationData(RunData):
    """The pairs of a run."""

    pairs: Pairs


def load_data(config: TranslationConfig) -> TranslationData:
    """Load the pairs of a run.

    Raises:
        UserError: the data is missing or invalid.
    """
    pairs = read_pairs(config.data[0], *config.pair, seed=config.seed)
    if config.rows is not None:
        pairs = subsample(pairs, config.rows, config.seed)
    return TranslationData(
        task_name="translation",
        label_type="translation",
        primary_metric=metrics.PRIMARY,
        description=pairs.recipe,
        pairs=pairs,
    )


def subsample(pairs: Pairs, num_rows: int, seed: int) -> Pairs:
    """Keep a random subset of the training pairs."""
    train = pairs.splits["train"]
    if num_rows >= len(train):
        return pairs
    sample = train.select(np.sort(shuffled_indices(len(train), seed)[:num_rows]))
    recipe = f"{pairs.recipe} {num_rows:,} of the training pairs, drawn with seed {seed}."
    return replace(pairs, splits={**pairs.splits, "train": sample}, recipe=recipe)


def fingerprint(rows: Dataset) -> str:
    """Return a hash of a split."""
    return hash_dataset(rows, ("row", "source", "target"))
