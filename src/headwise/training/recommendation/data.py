"""The data of the recommendation pipeline."""

from dataclasses import dataclass
from pathlib import Path

from headwise.errors import UserError
from headwise.tasks import mind
from headwise.tasks.fingerprint import hash_dataset
from headwise.tasks.mind import MIND, Log
from headwise.training.core.data_check import hash_arrays
from headwise.training.core.run_data import RunData
from headwise.training.recommendation.batches import TrainingImpressions, find_training_impressions
from headwise.training.recommendation.config import RecommendationConfig


@dataclass(frozen=True, kw_only=True)
class RecommendationData(RunData):
    """A click log and its impressions to train on."""

    log: Log
    impressions: TrainingImpressions


def load_data(config: RecommendationConfig) -> RecommendationData:
    """Load the click log of a run.

    Raises:
        UserError: the log is missing or invalid, or has no impressions to train on.
    """
    log = mind.read(config.data[0], splits=config.splits)
    if "train" not in log.splits:
        raise UserError(f"{config.data[0]}: there is no train directory to train on; found: {', '.join(log.splits)}")
    if "dev" in log.splits and not log.splits["dev"].labelled:
        raise UserError(
            f"{log.splits['dev'].rows.origin}: the candidates have no labels, such as N123-1, to evaluate on"
        )
    note = "" if log.last_day is None else f" dev is {log.last_day}, the last day of train; test is the published dev."
    counts = ", ".join(f"{len(split):,} {name}" for name, split in log.splits.items())
    return RecommendationData(
        task_name=MIND.name,
        label_type=MIND.label_type,
        primary_metric=MIND.primary,
        description=f"{Path(config.data[0]).name}: {counts} impressions, {len(log.news):,} news.{note}",
        log=log,
        impressions=find_training_impressions(log.splits["train"], len(log.news)),
    )


def fingerprint(log: Log, name: str) -> str:
    """Return a hash of a split with labels, including the titles of the news."""
    arrays = (
        array
        for part in log.splits[name].parts()
        for array in (part.candidates, part.clicked, part.offsets, part.history, part.history_offsets)
    )
    return f"{hash_arrays(arrays)}-{hash_dataset(log.news.data, ('id', 'title'))}"
