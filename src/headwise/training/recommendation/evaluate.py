"""Evaluation of a trained recommender and its baselines."""

from pathlib import Path
from typing import Any

from torch import Tensor

from headwise.errors import UserError
from headwise.models import HeadwiseForRecommendation, initialize_by_name, read_vectors
from headwise.tasks import mind
from headwise.tasks.metrics.clicks import PRIMARY
from headwise.tasks.mind import Log
from headwise.training.core.data_check import check_unchanged
from headwise.training.core.metrics import build_evaluation
from headwise.training.core.pretrained import is_scheme
from headwise.training.recommendation.batches import find_training_impressions
from headwise.training.recommendation.data import fingerprint
from headwise.training.recommendation.inference import RecommendationModel
from headwise.training.recommendation.ranking import compute_baselines, mean_metrics, read_oracle, sum_metrics


def evaluate(run: Path, data: Path | None = None) -> dict[str, Any]:
    """Evaluate a run's model on its test split (dev, if test has no labels) or on another log.

    Args:
        run: the directory of a finished run.
        data: another log, or one of its splits.

    Returns:
        The data set, the metrics, the standard error of AUC, and the metrics of the baselines.

    Raises:
        UserError: there is no such run, the log is invalid or has no labels, or the run's own log has changed since
            training.
    """
    recommender = RecommendationModel.load(run)
    directory = Path(recommender.config.data[0]) if data is None else data
    log = mind.read(directory)
    names = ("test", "dev") if data is None else ("test", "dev", "train")
    name = next((name for name in names if name in log.splits and log.splits[name].labelled), None)
    if name is None:
        raise UserError(f"{directory}: no split has labels to evaluate on ({', '.join(names)}); use --data LOG")
    if data is None:
        check_unchanged(run, name, fingerprint(log, name), recommender.config.data)
    split, titles = log.splits[name], recommender.tokenize(log.news)
    totals = sum_metrics(recommender.score(split, titles))
    baselines = compute_baselines(
        split,
        click_counts=count_training_clicks(log) if name != "train" else None,
        word_vectors=initial_word_vectors(recommender),
        titles=titles,
        history=recommender.config.history,
    )
    return build_evaluation(
        dataset=f"{directory.name}, {name}",
        num_rows=len(split),
        primary_metric=PRIMARY,
        metrics=mean_metrics(totals),
        standard_error=totals.standard_error(),
        baselines=baselines | read_oracle(directory, name),
        counts=totals.impression_counts,
    )


def count_training_clicks(log: Log) -> Any | None:
    """Return how often each news item was clicked in training; None if the log has no labelled training split."""
    train = log.splits.get("train")
    if train is None or not train.labelled:
        return None
    return find_training_impressions(train, len(log.news)).click_counts


def initial_word_vectors(recommender: RecommendationModel) -> Tensor | None:
    """Return the word vectors before training; None for a pretrained encoder, or if their file is gone."""
    config = recommender.config
    if not is_scheme(config.model):
        return None
    if config.vectors is None:
        untrained = HeadwiseForRecommendation(recommender.model.config)
        initialize_by_name(untrained, config.seed)
        embeddings: Any = untrained.get_input_embeddings()
        word_vectors: Tensor = embeddings.weight.detach()
    elif config.vectors.is_file():
        word_vectors = read_vectors(config.vectors, recommender.tokenizer.get_vocab())[0]
    else:
        return None
    return word_vectors.to(recommender.model.device)
