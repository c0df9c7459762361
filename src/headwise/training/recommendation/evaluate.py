"""A trained recommender judged on a click log, beside its rivals."""

from pathlib import Path
from typing import Any

from torch import Tensor

from headwise.errors import UserError
from headwise.models import HeadwiseForRecommendation, initialise_by_name, read_vectors
from headwise.tasks import mind
from headwise.tasks.metrics.clicks import PRIMARY
from headwise.tasks.mind import Log
from headwise.training.recommendation.baselines import compute_baselines, figures, oracle
from headwise.training.recommendation.inference import RecommendationModel
from headwise.training.recommendation.ranking import sum_metrics
from headwise.training.recommendation.survey import survey
from headwise.training.text.model import is_ours


def evaluate(run: Path, data: Path | None = None) -> dict[str, Any]:
    """How good a run's model is: on its own test split (dev, where test has no labels), or on another log's.

    Args:
        run: a finished run's folder.
        data: another log, or one of its splits.

    Returns:
        What was judged, the figures, the standard error of AUC, and the figures of rivals.

    Raises:
        UserError: no such run, or a log that is not sound or tells no clicks.
    """
    trained = RecommendationModel.load(run)
    where = Path(trained.settings.data[0]) if data is None else data
    log = mind.read(where)
    name = next((name for name in ("test", "dev", "train") if name in log.splits and log.splits[name].labelled), None)
    if name is None:
        raise UserError(f"{where}: no split tells what was clicked, so there is nothing to judge by")
    split, titles = log.splits[name], trained.titles(log.news)
    tally = sum_metrics(trained.scores(split, titles))
    beside = compute_baselines(
        split,
        clicks=clicks_in(log) if name != "train" else None,
        words=words_at_first(trained),
        titles=titles,
        history=trained.settings.history,
    )
    return {
        "dataset": f"{where.name}, {name}",
        "rows": len(split),
        "primary_metric": PRIMARY,
        "metrics": figures(tally),
        "standard_error": tally.standard_error(),
        "counts": tally.impression_counts,
        "baselines": beside | oracle(where, name),
    }


def clicks_in(log: Log) -> Any | None:
    """How often each news was clicked in training; None of a log without it."""
    train = log.splits.get("train")
    return None if train is None or not train.labelled else survey(train, len(log.news)).clicks


def words_at_first(trained: RecommendationModel) -> Tensor | None:
    """The words' vectors as they were before training; None where they are not there any more, or in an encoder."""
    settings = trained.settings
    if not is_ours(settings.model):
        return None
    if settings.vectors is None:
        fresh = HeadwiseForRecommendation(trained.model.config)
        initialise_by_name(fresh, settings.seed)
        embeddings: Any = fresh.get_input_embeddings()
        words: Tensor = embeddings.weight.detach()
    elif settings.vectors.is_file():
        words = read_vectors(settings.vectors, trained.tokenizer.get_vocab())[0]
    else:
        return None
    return words.to(trained.model.device)
