"""Training of a recommender, from a click log to a run directory with model, metrics and card."""

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import EarlyStoppingCallback, set_seed

from headwise.errors import UserError
from headwise.tasks import mind
from headwise.tasks.metrics import clicks
from headwise.tasks.metrics.clicks import METRICS, PRIMARY, ClickMetrics
from headwise.tasks.mind import MIND, Log, Split
from headwise.training.core import run_dir
from headwise.training.core.checkpointing import fit, whole_weights
from headwise.training.core.distributed import first_only, first_then_all, state
from headwise.training.recommendation import card
from headwise.training.recommendation.batches import ClickDataset, TrainingImpressions, find_training_impressions
from headwise.training.recommendation.config import RecommendationConfig
from headwise.training.recommendation.inference import get_precision
from headwise.training.recommendation.model import ModelBundle, build
from headwise.training.recommendation.ranking import (
    ScoredImpressions,
    compute_baselines,
    mean_metrics,
    read_oracle,
    score_by_model,
    sum_metrics,
)
from headwise.training.recommendation.titles import Titles, tokenize_titles
from headwise.training.recommendation.trainer import RecommendationTrainer
from headwise.training.run import header, versions
from headwise.training.text.train import batch_size_of, training_arguments

logger = logging.getLogger(__name__)


def run_training(config: RecommendationConfig, out: Path, *, resume: bool) -> dict[str, Any]:
    """Train, evaluate and write a recommender; return the contents of `metrics.json`.

    Raises:
        UserError: the configuration or the data is invalid; existing files are left unchanged.
    """
    log = first_then_all(lambda: load(config))
    set_seed(config.seed)
    impressions = find_training_impressions(log.splits["train"], len(log.news))
    bundle = first_then_all(lambda: build(config, log.news, impressions.is_seen))
    titles = tokenize_titles(bundle.tokenizer, log.news.data, config.title_length)
    with run_dir.enough_room(out):
        first_only(lambda: run_dir.begin(out, header() + config.to_yaml(), resume=resume))
        return fit_and_evaluate(config, log, impressions, bundle, titles, out, resume=resume)


def load(config: RecommendationConfig) -> Log:
    """Read the click log of a run.

    Raises:
        UserError: the log is invalid, or has no training split.
    """
    log = mind.read(config.data[0])
    if "train" not in log.splits:
        raise UserError(f"{config.data[0]}: there is no train folder to train on; found: {', '.join(log.splits)}")
    if "dev" in log.splits and not log.splits["dev"].labelled:
        raise UserError(
            f"{log.splits['dev'].rows.origin}: the candidates have no labels, such as N123-1, to evaluate on"
        )
    return log


def fit_and_evaluate(
    config: RecommendationConfig,
    log: Log,
    impressions: TrainingImpressions,
    bundle: ModelBundle,
    titles: Titles,
    out: Path,
    *,
    resume: bool,
) -> dict[str, Any]:
    """Train a model, evaluate it and write the run directory."""
    labelled = {name: split for name, split in log.splits.items() if name != "train" and split.labelled}
    notes = [*bundle.notes, *describe(log, impressions, titles, config)]
    dataset = f"{Path(config.data[0]).name}: " + ", ".join(f"{len(s):,} {name}" for name, s in log.splits.items())
    if state().is_main_process:
        logger.info("%s: %s impressions, %s news", MIND.name, dataset, f"{len(log.news):,}")
        for note in [describe_model(bundle), *notes]:
            logger.info("  %s", note)

    precision = get_precision(config, "cuda" if torch.cuda.is_available() else "cpu")
    embeddings: Any = bundle.model.get_input_embeddings()
    initial_word_vectors = embeddings.weight.detach().clone()  # of a baseline; training changes them
    score = partial(score_by_model, titles=titles, history=config.history, precision=precision)
    has_dev = "dev" in labelled
    trainer = RecommendationTrainer(
        model=bundle.model,
        args=training_arguments(config, MIND, out, has_dev=has_dev),
        train_dataset=ClickDataset(
            log.splits["train"],
            impressions.rows,
            titles,
            history=config.history,
            negatives=config.negatives,
            seed=config.seed,
        ),
        eval_dataset=labelled.get("dev"),
        callbacks=[EarlyStoppingCallback(config.patience)] if has_dev else [],
        batch_size=batch_size_of(config, MIND),
        numbers=impressions.rows,
        history_lengths=np.minimum(impressions.history_lengths, config.history),
        compute_dev_metrics=(lambda model: mean_metrics(sum_metrics(score(model, labelled["dev"]))))
        if has_dev
        else None,
    )
    start = time.perf_counter()
    train_output = fit(trainer, out, resume=resume)
    train_seconds = time.perf_counter() - start
    metrics: dict[str, Any] = {
        "task": MIND.name,
        "label_type": MIND.label_type,
        "primary_metric": PRIMARY,
        "metrics": {},
        "standard_error": {},
        "counts": {},
        "baselines": {},
        "dataset": dataset,
        "notes": notes,
        "model": config.model,
        "parameters": sum(p.numel() for p in bundle.model.parameters()),
        "epochs": train_output.metrics.get("epoch"),
        "train_seconds": round(train_seconds, 2),
        "impressions_per_second": round(train_output.metrics["train_samples_per_second"], 1),
        "history": [log for log in trainer.state.log_history if "loss" in log or f"eval_{PRIMARY}" in log],
        "versions": versions(),
    }
    weights = whole_weights(trainer)
    if trainer.is_world_process_zero():
        with run_dir.staging_dir(out) as stage:
            evaluate_splits(metrics, labelled, partial(score, trainer.model), stage / run_dir.PREDICTIONS)
            for name, split in labelled.items():
                metrics["baselines"][name] = compute_baselines(
                    split,
                    click_counts=impressions.click_counts,
                    word_vectors=initial_word_vectors.to(bundle.model.device),
                    titles=titles,
                    history=config.history,
                ) | read_oracle(Path(config.data[0]), name)
            bundle.model.save_pretrained(stage, state_dict=weights)
            bundle.tokenizer.save_pretrained(stage)
            (stage / "README.md").write_text(card.text(config, metrics), encoding="utf-8")
            (stage / run_dir.METRICS).write_text(run_dir.to_json(metrics), encoding="utf-8")
    state().wait_for_everyone()
    return metrics


def evaluate_splits(
    metrics: dict[str, Any], splits: Mapping[str, Split], score: Callable[[Split], ScoredImpressions], path: Path
) -> None:
    """Add the metrics of splits to `metrics`, and write those of each impression to a Parquet file for paired tests."""
    schema = pa.schema([("split", pa.string()), ("row", pa.int64()), *((name, pa.float32()) for name in METRICS)])
    with pq.ParquetWriter(path, schema) as writer:
        for name, split in splits.items():
            totals, start = ClickMetrics(), 0
            for part, scores in score(split):
                totals.add(scores, part.clicked, part.offsets)
                values = clicks.each(scores, part.clicked, part.offsets)
                count = len(part.offsets) - 1
                columns = {"split": [name] * count, "row": range(start, start + count), **values}
                writer.write_table(pa.table(columns, schema=schema))
                start += count
            metrics["metrics"][name] = mean_metrics(totals)
            metrics["standard_error"][name] = totals.standard_error()
            metrics["counts"][name] = totals.kinds


def describe(log: Log, impressions: TrainingImpressions, titles: Titles, config: RecommendationConfig) -> list[str]:
    """Return notes about skipped impressions, truncated histories and truncated titles."""
    counts = log.splits["train"].counts
    notes = []
    if impressions.num_skipped:
        notes.append(
            f"{impressions.num_skipped:,} training impressions with only clicks ({counts['only_clicks']:,}) or only "
            f"non-clicks ({counts['only_non_clicks']:,}) were skipped"
        )
    if num_empty := counts["without_history"]:
        notes.append(f"{num_empty:,} training impressions have no history: their users share one learned vector")
    if num_long := int((impressions.history_lengths > config.history).sum()):
        notes.append(f"{num_long:,} histories are longer than {config.history} (--history): the latest clicks are used")
    if titles.num_truncated:
        notes.append(
            f"{titles.num_truncated:,} titles are longer than {config.title_length} tokens (--title-length) "
            "and truncated"
        )
    return notes


def describe_model(bundle: ModelBundle) -> str:
    num_parameters = sum(p.numel() for p in bundle.model.parameters())
    return f"{num_parameters:,} parameters, on {'a GPU' if torch.cuda.is_available() else 'the CPU'}"
