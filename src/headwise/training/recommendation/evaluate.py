"""Evaluation of a trained recommender and its baselines."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from headwise.errors import UserError
from headwise.models import HeadwiseForRecommendation, initialize_by_name, read_vectors
from headwise.tasks import mind
from headwise.tasks.metrics.clicks import PRIMARY, ClickMetrics
from headwise.tasks.mind import Log, Split
from headwise.training.core import run_dir
from headwise.training.core.data_check import check_unchanged
from headwise.training.core.distributed import main_process_first
from headwise.training.core.metrics import build_evaluation
from headwise.training.core.pretrained import is_scheme
from headwise.training.jobs import JobOptions, Progress, Result, RowRange, open_job, run_job
from headwise.training.jobs.job_dir import describe_inputs
from headwise.training.recommendation.batches import count_clicks
from headwise.training.recommendation.config import RecommendationConfig
from headwise.training.recommendation.data import fingerprint
from headwise.training.recommendation.inference import RecommendationModel
from headwise.training.recommendation.ranking import (
    MEAN,
    PART_IMPRESSIONS,
    POPULARITY,
    average_clicked,
    average_words,
    mean_metrics,
    read_oracle,
    score_by_popularity,
    score_by_vectors,
    sum_metrics,
)

#: The name of the model's own metrics among those of the baselines.
MODEL = "model"
DEFAULT_OPTIONS = JobOptions()


def evaluate(
    run: Path, data: Path | None = None, *, out: Path | None = None, options: JobOptions = DEFAULT_OPTIONS
) -> dict[str, Any]:
    """Evaluate a run's model on its test split (dev, if test has no labels) or on another log.

    Args:
        run: the directory of a finished run.
        data: another log, or one of its splits.
        out: the file of the metrics. The results of finished parts are stored next to it.
        options: the processes or the cluster, and whether an unfinished evaluation is resumed.

    Returns:
        The data set, the metrics, the standard error of AUC, and the metrics of the baselines.

    Raises:
        UserError: there is no such run, the log is invalid or has no labels, or the run's own log has changed since
            training.
    """
    run_dir.check_finished(run)
    config = RecommendationConfig.load(run / run_dir.CONFIG)
    directory = Path(config.data[0]) if data is None else data
    splits = config.splits if data is None else "published"
    log = main_process_first(partial(mind.read, directory, splits=splits))
    names = ("test", "dev") if data is None else ("test", "dev", "train")
    name = next((name for name in names if name in log.splits and log.splits[name].labelled), None)
    if name is None:
        raise UserError(f"{directory}: no split has labels to evaluate on ({', '.join(names)}); use --data LOG")
    hash_of_split = fingerprint(log, name)
    if data is None:
        check_unchanged(run, name, hash_of_split, config.data)
    split, part_rows = log.splits[name], options.part_rows or PART_IMPRESSIONS
    task = ClickMetricsTask(run, directory, splits, name, count_training_clicks(log) if name != "train" else None)
    plan = {**describe_inputs(run, []), "log": hash_of_split, "part_rows": part_rows}
    sums: dict[str, Any] = {}
    with open_job(out, plan, options) as job_dir:
        parts = RowRange.divide(len(split), part_rows)
        for result in run_job(task, parts, options, job_dir, verb="evaluating", unit="impressions"):
            for method, array in result.items():
                sums[method] = sums.get(method, 0) + array
    totals = {method: ClickMetrics.from_array(array) for method, array in sums.items()}
    model_totals = totals.pop(MODEL)
    return build_evaluation(
        dataset=f"{directory.name}, {name}",
        num_rows=len(split),
        primary_metric=PRIMARY,
        metrics=mean_metrics(model_totals),
        standard_error=model_totals.standard_error(),
        baselines={method: mean_metrics(each) for method, each in totals.items()} | read_oracle(directory, name),
        can_tune=False,
        counts=model_totals.impression_counts,
    )


@dataclass(frozen=True)
class ClickMetricsTask:
    """Sums the metrics of a model and of the baselines over impressions.

    Args:
        run: the directory of a finished run.
        directory: the log.
        splits: how it is split, see `mind.read`.
        split: the name of its split.
        click_counts: (news,), how often each news item was clicked in training; None omits popularity.
    """

    run_dir: Path
    directory: Path
    splits: mind.SplitRule
    split: str
    click_counts: Any

    def load(self) -> "LogModel":
        log = mind.read(self.directory, splits=self.splits)
        recommender = RecommendationModel.load(self.run_dir)
        word_vectors = initial_word_vectors(recommender)
        titles = recommender.tokenize(log.news)
        return LogModel(
            recommender,
            log.splits[self.split],
            recommender.encode_news(titles),
            None if word_vectors is None else average_words(word_vectors, titles),
        )

    def run(self, model: "LogModel", part: RowRange, out: Path | None, progress: Progress) -> Result:
        impressions = model.split.slice(part.start, part.stop)
        result = {MODEL: sum_metrics(model.recommender.score(impressions, model.news_vectors, progress)).to_array()}
        if self.click_counts is not None:
            result[POPULARITY] = sum_metrics(score_by_popularity(impressions, self.click_counts)).to_array()
        if model.mean_vectors is not None:
            history = model.recommender.config.history
            scored = score_by_vectors(impressions, model.mean_vectors, average_clicked, history=history)
            result[MEAN] = sum_metrics(scored).to_array()
        return result


@dataclass(frozen=True)
class LogModel:
    """A recommender with a log and the vectors of its news.

    Args:
        recommender: the recommender.
        split: the impressions.
        news_vectors: (news, width), by the recommender.
        mean_vectors: (news, width), means of word vectors; None for pretrained encoders.
    """

    recommender: RecommendationModel
    split: Split
    news_vectors: Tensor
    mean_vectors: Tensor | None


def count_training_clicks(log: Log) -> Any | None:
    """Return how often each news item was clicked in training; None if the log has no labelled training split."""
    train = log.splits.get("train")
    if train is None or not train.labelled:
        return None
    return count_clicks(train, len(log.news))


def initial_word_vectors(recommender: RecommendationModel) -> Tensor | None:
    """Return the word vectors before training; None for a pretrained encoder, or without their file."""
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
