"""One run: from settings to a folder with a trained model, its figures and its card."""

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import EarlyStoppingCallback, TrainingArguments, set_seed
from transformers.integrations.integration_utils import is_tensorboard_available

from headwise import tasks
from headwise.errors import UserError
from headwise.guides import Guide
from headwise.tasks import Examples, Task
from headwise.tasks import TrainingDefaults as TaskSettings
from headwise.tasks.baselines import compute_baselines
from headwise.tasks.metrics.labels import column_array
from headwise.tasks.splitting import shuffled_indices
from headwise.training.core import run_dir
from headwise.training.core.checkpointing import fit, whole_weights
from headwise.training.core.config import RunConfig
from headwise.training.core.distributed import first_only, first_then_all, on_cpu, state
from headwise.training.core.memory import forget_peak, peak_memory
from headwise.training.run import header, in_bfloat16, versions
from headwise.training.text import card
from headwise.training.text.arrow_dataset import identity_collate
from headwise.training.text.config import TextConfig
from headwise.training.text.guides import guides_of
from headwise.training.text.model import ModelBundle, build, is_ours
from headwise.training.text.predictions import scores_of, write_predictions
from headwise.training.text.trainer import RunTrainer


def run_training(settings: TextConfig, out: Path, *, resume: bool) -> dict[str, Any]:
    """Train, judge and write a model; its figures and what belongs to them come back.

    Raises:
        UserError: what the user should do differently; nothing that was there is lost.
    """
    is_first = state().is_main_process
    task, examples = first_then_all(lambda: load_examples(settings))
    set_seed(settings.seed)
    built = first_then_all(lambda: build(settings, task, examples))
    guides = guides_of(settings, built, examples)
    tokens = out / run_dir.TOKENS
    with run_dir.enough_room(out):
        first_only(lambda: run_dir.begin(out, header() + settings.to_yaml(), resume=resume))
        try:
            encoded = first_then_all(lambda: tokenize_splits(built, examples, tokens, again=is_first))
            return fitted(settings, task, examples, built, guides, encoded, out, resume=resume)
        finally:
            if is_first:
                shutil.rmtree(tokens, ignore_errors=True)


def tokenize_splits(built: ModelBundle, examples: Examples, tokens: Path, *, again: bool) -> dict[str, Dataset]:
    """All splits as the model takes them, in files of the run's."""
    tokens.mkdir(exist_ok=True)
    return {
        split: built.reader.encoded(rows, tokens / f"{split}.arrow", again=again)
        for split, rows in examples.splits.items()
    }


def fitted(
    settings: TextConfig,
    task: Task,
    examples: Examples,
    built: ModelBundle,
    guides: Sequence[Guide],
    encoded: Mapping[str, Dataset],
    out: Path,
    *,
    resume: bool,
) -> dict[str, Any]:
    """A model that is ready to learn, trained, judged and written."""
    notes = [*built.notes, *cut_notes(encoded, built)]
    if state().is_main_process:
        print(f"{task.name}: {examples.recipe}", file=sys.stderr)
        for note in [model_note(settings, built), *notes, *(f"guide {guide}" for guide in guides)]:
            print(f"  {note}", file=sys.stderr)

    dev = encoded.get("dev")
    batches = {split: built.reader.batches(rows) for split, rows in encoded.items()}
    trainer = RunTrainer(
        model=built.model,
        args=training_arguments(settings, task, out, has_dev=dev is not None),
        train_dataset=batches["train"],
        eval_dataset=batches.get("dev"),
        data_collator=identity_collate,
        compute_metrics=None if dev is None else figures(task, examples.splits["dev"], dev, examples.labels),
        preprocess_logits_for_metrics=logits_only,
        callbacks=[] if dev is None else [EarlyStoppingCallback(settings.patience)],
        batch_size=batch_size_of(settings, task),
        numbers=column_array(examples.splits["train"], "row"),
        guides=guides,
        scheme_learning_rate=settings.scheme_learning_rate,
        example=built.reader.example(examples.splits["train"]),
    )
    forget_peak()
    start = time.perf_counter()
    done = fit(trainer, out, resume=resume)
    seconds = time.perf_counter() - start
    trainer.compute_metrics = None  # which judges dev only

    scores: dict[str, Any] = {
        split: scores_of(task, trainer.predict(batches[split]), examples.splits[split], rows, examples.labels)
        for split, rows in encoded.items()
        if split != "train"
    }
    metrics: dict[str, Any] = {
        "task": task.name,
        "label_type": task.label_type,
        "primary_metric": task.primary,
        "metrics": {split: task.metrics(found, examples.splits[split]) for split, found in scores.items()},
        "standard_error": {
            split: task.standard_error(found, examples.splits[split]) for split, found in scores.items()
        },
        "baselines": {split: compute_baselines(task, examples, split) for split in scores},
        "dataset": examples.recipe,
        "notes": notes,
        "labels": list(examples.labels),
        "inputs": {
            "pair": built.reader.pair,
            "max_length": built.reader.max_length,
            "hierarchy": built.reader.hierarchy,
        },
        "model": settings.model,
        "parameters": sum(p.numel() for p in built.model.parameters()),
        "epochs": done.metrics.get("epoch"),
        "train_seconds": round(seconds, 2),
        "peak_memory": peak_memory(),
        "examples_per_second": round(done.metrics["train_samples_per_second"], 1),
        "history": [log for log in trainer.state.log_history if "loss" in log or f"eval_{task.primary}" in log],
        "versions": versions(),
    }
    weights = whole_weights(trainer)
    if trainer.is_world_process_zero():
        with run_dir.staging_dir(out) as stage:
            built.model.save_pretrained(stage, state_dict=weights)
            built.reader.tokenizer.save_pretrained(stage)
            write_predictions(stage / run_dir.PREDICTIONS, scores, examples)
            (stage / "README.md").write_text(card.text(settings, task, metrics), encoding="utf-8")
            (stage / run_dir.METRICS).write_text(run_dir.to_json(metrics), encoding="utf-8")
    state().wait_for_everyone()
    return metrics


def load_examples(settings: TextConfig) -> tuple[Task, Examples]:
    """The task and its examples.

    Raises:
        UserError: no such task, or anything wrong with the data.
    """
    if settings.task is not None:
        task = tasks.get_task(settings.task)
        if len(settings.data) > 1:
            raise UserError(f"--task {settings.task} reads one folder or file, got {len(settings.data)} for --data")
        examples = task.load(settings.data[0] if settings.data else None, seed=settings.seed)
    else:
        task, examples = tasks.load_files(
            settings.data[0] if len(settings.data) == 1 else settings.data or None,
            train=settings.train or None,
            dev=settings.dev or None,
            test=settings.test or None,
            text=settings.text,
            pair=settings.pair,
            label=settings.label,
            label_type=settings.label_type,
            seed=settings.seed,
        )
    return task, examples if settings.rows is None else fewer(examples, settings.rows, settings.seed)


def fewer(examples: Examples, rows: float, seed: int) -> Examples:
    """The same with some of the training rows only: so many, or a share."""
    train = examples.splits["train"]
    rows = round(rows * len(train)) if rows < 1 else int(rows)
    if rows >= len(train):
        return examples
    if rows < 2:
        raise UserError(f"--rows: that share of {len(train):,} training rows is {rows}; two at least are needed")
    drawn = np.sort(shuffled_indices(len(train), seed)[:rows])
    splits = {**examples.splits, "train": train.select(drawn)}
    recipe = f"{examples.recipe} {rows:,} of the training rows, drawn by seed {seed}."
    return replace(examples, splits=splits, recipe=recipe)


def training_arguments(settings: RunConfig, task: Task, out: Path, *, has_dev: bool) -> TrainingArguments:
    """The Trainer's."""
    usual = usual_for(settings, task)
    each = -(-batch_size_of(settings, task) // state().num_processes)
    chosen: dict[str, Any] = {}
    if has_dev:
        chosen = {
            "eval_strategy": "epoch",
            "load_best_model_at_end": True,
            "metric_for_best_model": f"eval_{task.primary}",
            "greater_is_better": task.higher_is_better,
        }
    made = TrainingArguments(
        output_dir=str(out / run_dir.CHECKPOINTS),
        num_train_epochs=settings.epochs or usual.epochs,
        per_device_train_batch_size=each,  # for its reports; RunTrainer makes the batches
        per_device_eval_batch_size=4 * each,
        learning_rate=settings.learning_rate or usual.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=0.05,
        use_cpu=on_cpu(),
        bf16=in_bfloat16(settings),
        seed=settings.seed,
        remove_unused_columns=False,
        save_strategy="epoch",
        save_total_limit=2,
        restore_callback_states_from_checkpoint=True,  # else patience would begin anew
        logging_steps=0.05,
        logging_nan_inf_filter=False,  # which would hide what broke
        disable_tqdm=False,  # which quieter libraries would mean
        report_to=["tensorboard"] if is_tensorboard_available() else [],
        dataloader_pin_memory=torch.cuda.is_available(),
        **chosen,
    )
    made._n_gpu = min(made.n_gpu, 1)  # one process, one GPU: torchrun starts several, DataParallel is slow
    return made


def usual_for(settings: RunConfig, task: Task) -> TaskSettings:
    """How the task is trained unless the user says otherwise."""
    return task.from_scratch if is_ours(settings.model) else task.fine_tuning


def batch_size_of(settings: RunConfig, task: Task) -> int:
    return settings.batch_size or usual_for(settings, task).batch_size


def figures(task: Task, rows: Dataset, encoded: Dataset, labels: tuple[str, ...]) -> Any:
    """The Trainer's `compute_metrics`."""
    return lambda prediction: task.metrics(scores_of(task, prediction, rows, encoded, labels), rows)


def logits_only(outputs: Any, labels: Any) -> Any:
    """Some models give more than logits, all of which the Trainer would keep."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


def cut_notes(encoded: Mapping[str, Dataset], built: ModelBundle) -> list[str]:
    """How many texts were cut, which is never done in silence."""
    counts = {split: (int(column_array(rows, "cut").sum()), len(rows)) for split, rows in encoded.items()}
    told = [f"{cut:,} of {all_:,} {split} texts" for split, (cut, all_) in counts.items() if cut]
    reader = built.reader
    most = f"{reader.max_length} tokens (--max-length)"
    if reader.hierarchy is not None:
        most = f"{reader.hierarchy[1]} sentences of {reader.hierarchy[0]} words (--hierarchy)"
    return [f"longer than {most} and cut: {', '.join(told)}"] if told else []


def model_note(settings: TextConfig, built: ModelBundle) -> str:
    count = sum(p.numel() for p in built.model.parameters())
    return f"model {settings.model}, {count:,} parameters, on {'a GPU' if torch.cuda.is_available() else 'the CPU'}"
