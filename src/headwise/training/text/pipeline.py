"""The text pipeline."""

import logging
import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset
from torch import Tensor
from transformers import EarlyStoppingCallback, set_seed

from headwise.errors import UserError
from headwise.guides import Dependency, Guide
from headwise.tasks import Examples, Task, summarize
from headwise.tasks.baselines import compute_baselines
from headwise.tasks.metrics.labels import column_array
from headwise.tasks.summary import describe_labels
from headwise.training.core.arguments import (
    EVAL_BATCH_FACTOR,
    build_encoder_arguments,
    checkpointing_arguments,
    get_batch_size,
)
from headwise.training.core.batches import build_sampler, identity_collate
from headwise.training.core.card import Card
from headwise.training.core.data_check import length_notes
from headwise.training.core.defaults import MIN_PATIENCE, Settings, choose_settings, describe_choice, fill_unset
from headwise.training.core.distributed import is_on_cpu, state
from headwise.training.core.metrics import Evaluation
from headwise.training.core.pipeline import ModelBundle, Pipeline
from headwise.training.core.pretrained import check_gradient_checkpointing, is_scheme
from headwise.training.core.run_settings import evaluated_splits, get_settings
from headwise.training.core.tune import TRIAL_STEPS, run_short, tune_learning_rate
from headwise.training.text.card import build_card
from headwise.training.text.config import TextConfig, check_label_options
from headwise.training.text.data import TextData, load_data
from headwise.training.text.encoding import TextEncoder
from headwise.training.text.evaluate import evaluate, evaluate_scores
from headwise.training.text.guides import add_arcs, build_guides, describe_fused_layers, describe_guide
from headwise.training.text.inference import open_inspected
from headwise.training.text.long_text import WINDOW_ROW, pool_windows
from headwise.training.text.lora import LEARNING_RATE_FACTOR, check_lora_options, merge_lora
from headwise.training.text.model import build_model
from headwise.training.text.packing import enable_packing
from headwise.training.text.predict import predict
from headwise.training.text.predictions import get_scores
from headwise.training.text.trainer import TextTrainer, balanced_weights, describe_class_weights

logger = logging.getLogger(__name__)

#: With fewer rows, training from scratch stays far behind fine-tuning (`benchmarks/results/2026-11-16-defaults`).
FEW_ROWS = 2000

#: The number of tokens, with padding, that an evaluation on a GPU computes together if its rows are short, and the
#: largest number of rows relative to training. Users choose small batches because of the memory.
EVAL_TOKENS, MAX_EVAL_BATCH_FACTOR = 2**15, 16

#: The number of rows up to which the tokens of a split stay on the disk for other runs of a study.
MAX_SHARED_ROWS = 50_000


@dataclass(kw_only=True)
class TextBundle(ModelBundle):
    """A model with its encoder and guides, and the tokenized splits."""

    encoder: TextEncoder
    guides: list[Guide] = field(default_factory=list)
    encoded: dict[str, Dataset] = field(default_factory=dict)


class TextPipeline(Pipeline[TextConfig, TextData, TextBundle]):
    """Labelled texts: classes, ratings, tags, text pairs and rankings."""

    evaluate = staticmethod(evaluate)
    predict = staticmethod(predict)
    open_inspected = staticmethod(open_inspected)

    def load(self) -> TextData:
        check_lora_options(self.config)
        data = load_data(self.config)
        check_label_options(self.config, data.label_type)
        if self.config.metric_for_best_model is not None and "dev" not in data.examples.splits:
            raise UserError("--metric-for-best-model requires a dev split: --dev FILE")
        return data

    def fill_unset(self, data: TextData) -> TextConfig:
        num_rows, given = len(data.examples.splits["train"]), self.config
        settings = self.default_settings(data)
        if given.tune:  # the learning rate stays unset until the search has chosen it
            given = replace(given, tune=False, learning_rate=settings.learning_rate)
        config = fill_unset(given, settings, num_rows)
        if line := describe_choice(given, config, num_rows):
            logger.info("%s", line)
        return replace(config, tune=True, learning_rate=None) if self.config.tune else config

    def default_settings(self, data: TextData) -> Settings:
        """Return the settings for the number of training rows and the kind of model."""
        num_rows = len(data.examples.splits["train"])
        is_pair = data.task.pair and data.label_type != "ranking"
        settings = choose_settings(num_rows, from_scratch=is_scheme(self.config.model), is_pair=is_pair)
        factor = LEARNING_RATE_FACTOR if self.config.lora else 1
        return replace(settings, learning_rate=factor * settings.learning_rate)

    def build(self, data: TextData, scratch_dir: Path) -> TextBundle:
        model, encoder, notes = build_model(self.config, data.task, data.examples)
        if self.config.gradient_checkpointing:
            check_gradient_checkpointing(model)
        guides = build_guides(self.config, model, encoder, data.examples)
        if guides:
            notes += [*describe_fused_layers(model), *map(describe_guide, guides)]
        num_rows = len(data.examples.splits["train"])
        if is_scheme(self.config.model) and num_rows < FEW_ROWS:
            notes.append(
                f"the model is trained from scratch on {num_rows:,} rows; a pretrained model usually learns more from "
                "so few (--model NAME of the Hugging Face hub, or a directory)"
            )
        if self.config.class_weights is not None:
            notes.append(describe_class_weights(self.class_weights(data), data.examples.labels))
        if self.config.pack:
            enable_packing(model, encoder)
            notes.append("packed batches (--pack): layers compute no padding")
        return TextBundle(model=model, tokenizer=encoder.tokenizer, notes=notes, encoder=encoder, guides=guides)

    def tokenize(self, data: TextData, bundle: TextBundle, scratch_dir: Path) -> None:
        bundle.encoded = tokenize_splits(bundle.encoder, data.examples, scratch_dir)
        if not is_scheme(self.config.model):
            check_token_ids(bundle.encoded, bundle.model, self.config.model)
        if self.config.batch_tokens is not None:
            self.count_batches(bundle, num_processes=state().num_processes)  # raises an error if they cannot be built
        if any(isinstance(guide, Dependency) for guide in bundle.guides):
            rows, path = data.examples.splits["train"], scratch_dir / f"arcs-{state().process_index}.arrow"
            bundle.encoded["train"] = add_arcs(bundle.encoded["train"], rows, bundle.encoder, path)
        if get_settings().token_dir is not None:  # otherwise all runs on these rows would wait for one at their ends
            compute_baselines(data.task, data.examples, tuple(evaluated_splits(bundle.encoded)), wait=False)
        bundle.notes += data_notes(data.examples)
        bundle.notes += truncation_notes(bundle.encoded, bundle.encoder)

    def build_trainer(self, data: TextData, bundle: TextBundle, out_dir: Path) -> TextTrainer:
        config, splits = self.config, data.examples.splits
        has_dev = "dev" in splits
        row_numbers = column_array(splits["train"], "row")
        if WINDOW_ROW in bundle.encoded["train"].column_names:
            row_numbers = row_numbers[column_array(bundle.encoded["train"], WINDOW_ROW)]
        return TextTrainer(
            model=bundle.model,
            args=build_encoder_arguments(
                config,
                out_dir,
                dev_metric=get_dev_metric(config, data) if has_dev else None,
                eval_batch_size=eval_batch_size(config, bundle, on_gpu=not is_on_cpu()),
                **checkpointing_arguments(config.gradient_checkpointing),
            ),
            train_dataset=bundle.encoder.to_dataset(bundle.encoded["train"]),
            eval_dataset=bundle.encoder.to_dataset(bundle.encoded["dev"]) if has_dev else None,
            data_collator=identity_collate,
            compute_metrics=dev_metrics(data, bundle.encoded["dev"]) if has_dev else None,
            preprocess_logits_for_metrics=keep_logits,
            callbacks=[EarlyStoppingCallback(config.early_stopping_patience or MIN_PATIENCE)] if has_dev else [],
            batch_size=get_batch_size(config),
            batch_tokens=config.batch_tokens,
            row_numbers=row_numbers,
            guides=bundle.guides,
            class_weights=self.class_weights(data) if config.class_weights is not None else None,
            label_smoothing=config.label_smoothing_factor,
            scheme_learning_rate=config.scheme_learning_rate,
            example=bundle.encoder.example_batch(splits["train"]),
        )

    def class_weights(self, data: TextData) -> Tensor:
        """Return the weights of the classes in the loss."""
        return balanced_weights(data.examples.splits["train"], data.task.label_type, len(data.examples.labels))

    def count_batches(self, bundle: TextBundle, **processes: int) -> int:
        """Return the number of batches of an epoch."""
        config, lengths = self.config, column_array(bundle.encoded["train"], "length")
        return len(build_sampler(lengths, get_batch_size(config), config.batch_tokens, seed=config.seed, **processes))

    def tune(self, data: TextData, bundle: TextBundle, scratch_dir: Path, out_dir: Path) -> dict[str, Any]:
        if "dev" not in data.examples.splits:
            raise UserError("--tune requires a dev split: --dev FILE")
        config, metric = self.config, get_dev_metric(self.config, data)
        steps_per_epoch = -(-self.count_batches(bundle) // config.gradient_accumulation_steps)
        assert config.epochs is not None
        epochs = min(config.epochs, TRIAL_STEPS / steps_per_epoch)

        def run_trial(rate: float) -> dict[str, float]:
            set_seed(config.seed)
            trial = replace(bundle, model=deepcopy(bundle.model), guides=deepcopy(bundle.guides))
            trial_config = replace(config, learning_rate=rate, epochs=epochs, tune=False, report_to="none")
            return run_short(TextPipeline(trial_config).build_trainer(data, trial, scratch_dir))

        return tune_learning_rate(self.default_settings(data).learning_rate, metric, run_trial, out_dir)

    def after_training(self, bundle: TextBundle, trainer: Any, out_dir: Path) -> None:
        if self.config.lora:
            merged = merge_lora(bundle.model, out_dir, is_main_process=state().is_main_process)
            bundle.model = trainer.model = trainer.model_wrapped = merged
            trainer.best_output = None  # merged weights round differently

    def evaluate_splits(self, data: TextData, bundle: TextBundle, trainer: Any) -> Evaluation:
        task, examples, encoder = data.task, data.examples, bundle.encoder
        trainer.compute_metrics = None  # it evaluates dev only
        scores = {}
        for split in evaluated_splits(bundle.encoded):
            encoded = bundle.encoded[split]
            known = trainer.best_output if split == "dev" else None
            output = trainer.predict(encoder.to_dataset(encoded)) if known is None else known
            check_finite(output.predictions, split)
            scores[split] = get_row_scores(task, output, examples.splits[split], encoded, examples.labels)
        evaluation = evaluate_scores(task, examples, scores, dev_metric=self.config.metric_for_best_model)
        evaluation.extras["inputs"] = {
            "pair": encoder.pair,
            "max_length": encoder.max_length,
            "hierarchy": encoder.hierarchy,
            "long_text": encoder.long_text,
        }
        return evaluation

    def describe(self, data: TextData, bundle: TextBundle, metrics: dict[str, Any]) -> Card:
        return build_card(self.config, data.task, metrics["labels"], bundle.model.config, bundle.encoder.max_length)


def tokenize_splits(encoder: TextEncoder, examples: Examples, directory: Path) -> dict[str, Dataset]:
    """Tokenize all splits into files. The main process writes them, the others read them.

    Runs of a study with the same tokenizer and rows share the files of splits with up to `MAX_SHARED_ROWS` rows.
    """
    directory.mkdir(parents=True, exist_ok=True)
    shared = get_settings().token_dir
    encoded = {}
    for split, rows in examples.splits.items():
        key = encoder.cache_key(rows) if shared is not None and len(rows) <= MAX_SHARED_ROWS else None
        if shared is not None and key is not None:
            shared.mkdir(parents=True, exist_ok=True)
            encoded[split] = encoder.encode_dataset(rows, shared / f"{key}.arrow", overwrite=False)
        else:
            path = directory / f"{split}.arrow"
            encoded[split] = encoder.encode_dataset(rows, path, overwrite=state().is_main_process)
    return encoded


def check_token_ids(encoded: Mapping[str, Dataset], model: Any, name: str) -> None:
    """Raise a UserError if a text has a token without an embedding: the tokenizer is that of another model."""
    num_embeddings = model.get_input_embeddings().num_embeddings
    for split, rows in encoded.items():
        ids = rows.data.column("input_ids")
        while pa.types.is_nested(ids.type):
            ids = pc.list_flatten(ids)
        largest = pc.max(ids).as_py()
        if largest is not None and largest >= num_embeddings:
            raise UserError(
                f"--model {name}: its tokenizer does not fit its weights: a text of the split {split} has the token id "
                f"{largest:,}, and there are embeddings of {num_embeddings:,} tokens"
            )


def get_dev_metric(config: TextConfig, data: TextData) -> str:
    """Return the metric that selects the best epoch."""
    return config.metric_for_best_model or data.primary_metric


def dev_metrics(data: TextData, encoded: Dataset) -> Any:
    """Return the Trainer's `compute_metrics` function."""
    task, rows, labels = data.task, data.examples.splits["dev"], data.examples.labels

    def compute(output: Any) -> dict[str, float]:
        check_finite(output.predictions, "dev")
        return task.metrics(get_row_scores(task, output, rows, encoded, labels), rows)

    return compute


def get_row_scores(task: Task, output: Any, rows: Dataset, encoded: Dataset, labels: Sequence[str]) -> Any:
    """Return the scores of the rows of a split; those of windows are averaged."""
    if WINDOW_ROW in encoded.column_names:
        return pool_windows(output.predictions, column_array(encoded, WINDOW_ROW))
    return get_scores(task, output, rows, encoded, labels)


def check_finite(scores: Any, split: str) -> None:
    """Check the scores of a split, before metrics hide that a model is broken.

    Raises:
        UserError: a score is not finite.
    """
    if not np.isfinite(scores).all():
        raise UserError(
            f"the model's scores on {split} are not finite; try a lower --learning-rate or --precision float32"
        )


def eval_batch_size(config: TextConfig, bundle: TextBundle, *, on_gpu: bool) -> int:
    """Return how many rows an evaluation computes together, per process. `--batch-tokens` holds for the longest.

    On a GPU, batches of short texts are larger: starting kernels would take most of the time. They are not with
    gradient checkpointing, which shows that memory is scarce.
    """
    longest = max(int(column_array(rows, "length").max()) for rows in bundle.encoded.values())
    batch_size: int = -(-get_batch_size(config) // state().num_processes)
    num_rows = EVAL_BATCH_FACTOR * batch_size
    if on_gpu and not config.gradient_checkpointing:
        of_tokens = EVAL_TOKENS // max(1, math.prod(bundle.encoder.hierarchy or (longest,)))
        num_rows = max(num_rows, min(of_tokens, MAX_EVAL_BATCH_FACTOR * batch_size))
    return num_rows if config.batch_tokens is None else min(num_rows, max(1, config.batch_tokens // longest))


def keep_logits(outputs: Any, labels: Any) -> Any:
    """Drop the other outputs of a model, which the Trainer would keep in memory."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


def truncation_notes(encoded: dict[str, Dataset], encoder: TextEncoder) -> list[str]:
    """Return notes with the lengths of the texts and the number of truncated ones, or of windows."""
    if encoder.long_text == "windows":
        counts = {split: (len(rows), int(column_array(rows, WINDOW_ROW).max()) + 1) for split, rows in encoded.items()}
        kind = "texts" if encoder.pair is None else "pairs"
        parts = [f"{rows:,} {split} {kind} are {windows:,}" for split, (windows, rows) in counts.items()]
        return [f"windows of up to {encoder.max_length} tokens (--long-text): {', '.join(parts)}"]
    counts = {split: (int(column_array(rows, "truncated").sum()), len(rows)) for split, rows in encoded.items()}
    limit = f"{encoder.max_length} tokens (--max-length)"
    if encoder.hierarchy is not None:
        limit = f"{encoder.hierarchy[1]} sentences of {encoder.hierarchy[0]} words (--hierarchy)"
    notes = length_notes(column_array(encoded["train"], "length"), counts, limit)
    if encoder.long_text == "head-tail":
        notes = [note.replace("truncated to", "middle removed, down to") for note in notes]
    return notes


def data_notes(examples: Examples) -> list[str]:
    """Return a note with the number of rows of each label, and log warnings about likely mistakes in the data."""
    summary = summarize(examples)
    for warning in summary.warnings:
        logger.warning("%s", warning)
    return [describe_labels(summary.labels, summary.ratings)]
