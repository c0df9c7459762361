"""One run on a click log: from settings to a folder with a recommender, its figures and its card."""

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor
from transformers import EarlyStoppingCallback, set_seed

from headwise.errors import UserError
from headwise.tasks import mind
from headwise.tasks.metrics import clicks as metrics_of_clicks
from headwise.tasks.metrics.clicks import METRICS, PRIMARY, ClickMetrics
from headwise.tasks.mind import MIND, Log, Split
from headwise.training.core import run_dir
from headwise.training.core.checkpointing import fit, whole_weights
from headwise.training.core.distributed import first_only, first_then_all, state
from headwise.training.recommendation import card
from headwise.training.recommendation.baselines import compute_baselines, figures, oracle
from headwise.training.recommendation.clicks import Clicks
from headwise.training.recommendation.config import RecommendationConfig
from headwise.training.recommendation.model import ModelBundle, build
from headwise.training.recommendation.ranking import Precision, Scored, score_by_model, sum_metrics
from headwise.training.recommendation.survey import Survey, survey
from headwise.training.recommendation.titles import Titles, tokenize_titles
from headwise.training.recommendation.trainer import ClicksTrainer
from headwise.training.run import header, in_bfloat16, versions
from headwise.training.text.train import batch_size_of, training_arguments


def run_training(settings: RecommendationConfig, out: Path, *, resume: bool) -> dict[str, Any]:
    """Train, judge and write a recommender; its figures and what belongs to them come back.

    Raises:
        UserError: what the user should do differently; nothing that was there is lost.
    """
    log = first_then_all(lambda: read(settings))
    set_seed(settings.seed)
    seen = survey(log.splits["train"], len(log.news))
    built = first_then_all(lambda: build(settings, log.news, seen.seen))
    titles = tokenize_titles(built.tokenizer, log.news.data, settings.title_length)
    with run_dir.enough_room(out):
        first_only(lambda: run_dir.begin(out, header() + settings.to_yaml(), resume=resume))
        return fitted(settings, log, seen, built, titles, out, resume=resume)


def read(settings: RecommendationConfig) -> Log:
    """The log of a run.

    Raises:
        UserError: it is not sound, or has nothing to learn from.
    """
    log = mind.read(settings.data[0])
    if "train" not in log.splits:
        raise UserError(f"{settings.data[0]}: there is no train folder to learn from; there: {', '.join(log.splits)}")
    if "dev" in log.splits and not log.splits["dev"].labelled:
        raise UserError(f"{log.splits['dev'].rows.origin}: its candidates have no labels, such as N123-1, to judge by")
    return log


def fitted(
    settings: RecommendationConfig,
    log: Log,
    seen: Survey,
    built: ModelBundle,
    titles: Titles,
    out: Path,
    *,
    resume: bool,
) -> dict[str, Any]:
    """A model that is ready to learn, trained, judged and written."""
    judged = {name: split for name, split in log.splits.items() if name != "train" and split.labelled}
    notes = [*built.notes, *log_notes(log, seen, titles, settings)]
    recipe = f"{Path(settings.data[0]).name}: " + ", ".join(f"{len(s):,} {name}" for name, s in log.splits.items())
    if state().is_main_process:
        print(f"{MIND.name}: {recipe} impressions, {len(log.news):,} news", file=sys.stderr)
        for note in [model_note(built), *notes]:
            print(f"  {note}", file=sys.stderr)

    precision = in_precision(settings, "cuda" if torch.cuda.is_available() else "cpu")
    words: Any = built.model.get_input_embeddings()
    begun = words.weight.detach().clone()  # for a rival: training will change them
    rank = partial(score_by_model, titles=titles, history=settings.history, precision=precision)
    trainer = ClicksTrainer(
        model=built.model,
        args=training_arguments(settings, MIND, out, has_dev="dev" in judged),
        train_dataset=Clicks(
            log.splits["train"],
            seen.rows,
            titles,
            history=settings.history,
            negatives=settings.negatives,
            seed=settings.seed,
        ),
        eval_dataset=judged.get("dev"),
        callbacks=[EarlyStoppingCallback(settings.patience)] if "dev" in judged else [],
        batch_size=batch_size_of(settings, MIND),
        numbers=seen.rows,
        lengths=np.minimum(seen.lengths, settings.history),
        judge=(lambda model: figures(sum_metrics(rank(model, judged["dev"])))) if "dev" in judged else None,
    )
    start = time.perf_counter()
    done = fit(trainer, out, resume=resume)
    seconds = time.perf_counter() - start
    metrics: dict[str, Any] = {
        "task": MIND.name,
        "label_type": MIND.label_type,
        "primary_metric": PRIMARY,
        "metrics": {},
        "standard_error": {},
        "counts": {},
        "baselines": {},
        "dataset": recipe,
        "notes": notes,
        "model": settings.model,
        "parameters": sum(p.numel() for p in built.model.parameters()),
        "epochs": done.metrics.get("epoch"),
        "train_seconds": round(seconds, 2),
        "impressions_per_second": round(done.metrics["train_samples_per_second"], 1),
        "history": [log for log in trainer.state.log_history if "loss" in log or f"eval_{PRIMARY}" in log],
        "versions": versions(),
    }
    weights = whole_weights(trainer)
    if trainer.is_world_process_zero():
        with run_dir.staging_dir(out) as stage:
            judge(metrics, judged, rank, trainer.model, stage / run_dir.PREDICTIONS)
            beside(metrics, judged, seen.clicks, begun.to(built.model.device), titles, settings)
            built.model.save_pretrained(stage, state_dict=weights)
            built.tokenizer.save_pretrained(stage)
            (stage / "README.md").write_text(card.text(settings, metrics), encoding="utf-8")
            (stage / run_dir.METRICS).write_text(run_dir.to_json(metrics), encoding="utf-8")
    state().wait_for_everyone()
    return metrics


def judge(
    metrics: dict[str, Any], splits: Mapping[str, Split], rank: Callable[..., Scored], model: Any, predictions: Path
) -> None:
    """Figures of splits, with their error; and `predictions.parquet`, each impression's metrics, for paired tests."""
    schema = pa.schema([("split", pa.string()), ("row", pa.int64()), *((name, pa.float32()) for name in METRICS)])
    with pq.ParquetWriter(predictions, schema) as writer:
        for name, split in splits.items():
            tally, first = ClickMetrics(), 0
            for part, scores in rank(model, split):
                tally.add(scores, part.clicked, part.offsets)
                each = metrics_of_clicks.compute_per_impression(scores, part.clicked, part.offsets)
                count = len(part.offsets) - 1
                columns = {"split": [name] * count, "row": range(first, first + count), **each}
                writer.write_table(pa.table(columns, schema=schema))
                first += count
            metrics["metrics"][name] = figures(tally)
            metrics["standard_error"][name] = tally.standard_error()
            metrics["counts"][name] = tally.impression_counts


def beside(
    metrics: dict[str, Any],
    splits: Mapping[str, Split],
    clicks: Any,
    words: Tensor,
    titles: Titles,
    settings: RecommendationConfig,
) -> None:
    """Figures of the rivals, and of the oracle where it is known."""
    for name, split in splits.items():
        found = compute_baselines(split, clicks=clicks, words=words, titles=titles, history=settings.history)
        metrics["baselines"][name] = found | oracle(Path(settings.data[0]), name)


def in_precision(settings: RecommendationConfig, device: str) -> Precision:
    return partial(torch.autocast, device, torch.bfloat16) if in_bfloat16(settings) else nullcontext


def log_notes(log: Log, seen: Survey, titles: Titles, settings: RecommendationConfig) -> list[str]:
    """What was left out or cut, which is never done in silence."""
    counts = log.splits["train"].counts
    notes = []
    if seen.skipped:
        notes.append(
            f"{seen.skipped:,} training impressions of only clicks ({counts['only_clicks']:,}) or only non-clicks "
            f"({counts['only_non_clicks']:,}) were skipped"
        )
    if empty := counts["without_history"]:
        notes.append(f"{empty:,} training impressions have no history: their users share one learned vector")
    if long := int((seen.lengths > settings.history).sum()):
        notes.append(f"{long:,} histories are longer than {settings.history} (--history): their latest clicks count")
    if titles.cut:
        notes.append(f"{titles.cut:,} titles are longer than {settings.title_length} tokens (--title-length) and cut")
    return notes


def model_note(built: ModelBundle) -> str:
    count = sum(p.numel() for p in built.model.parameters())
    return f"{count:,} parameters, on {'a GPU' if torch.cuda.is_available() else 'the CPU'}"
