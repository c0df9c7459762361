"""The text pipeline."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import EarlyStoppingCallback

from headwise.guidance import GuidedTrainer
from headwise.guides import Guide
from headwise.tasks import Examples, summarize
from headwise.tasks.baselines import compute_baselines
from headwise.tasks.metrics.labels import column_array
from headwise.tasks.summary import describe_labels
from headwise.training.core.arguments import build_encoder_arguments, get_batch_size
from headwise.training.core.batches import identity_collate
from headwise.training.core.card import Card
from headwise.training.core.data_check import length_notes
from headwise.training.core.defaults import MIN_PATIENCE, choose_settings, describe_choice, fill_unset
from headwise.training.core.distributed import state
from headwise.training.core.metrics import Evaluation, SplitResult
from headwise.training.core.pipeline import ModelBundle, Pipeline
from headwise.training.core.pretrained import is_scheme
from headwise.training.core.trainer import LengthGroupedTrainer
from headwise.training.text.card import build_card
from headwise.training.text.config import TextConfig
from headwise.training.text.data import TextData, fingerprint, load_data
from headwise.training.text.encoding import TextEncoder
from headwise.training.text.evaluate import evaluate
from headwise.training.text.guides import build_guides
from headwise.training.text.inference import open_inspected
from headwise.training.text.model import build_model
from headwise.training.text.predict import predict
from headwise.training.text.predictions import build_predictions, get_scores

logger = logging.getLogger(__name__)


class TextTrainer(LengthGroupedTrainer, GuidedTrainer):
    """A `LengthGroupedTrainer` with guides."""


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
        return load_data(self.config)

    def fill_unset(self, data: TextData) -> TextConfig:
        num_rows = len(data.examples.splits["train"])
        settings = choose_settings(num_rows, from_scratch=is_scheme(self.config.model))
        config = fill_unset(self.config, settings, num_rows)
        if line := describe_choice(self.config, config, num_rows):
            logger.info("%s", line)
        return config

    def build(self, data: TextData, scratch_dir: Path) -> TextBundle:
        model, encoder, notes = build_model(self.config, data.task, data.examples)
        guides = build_guides(self.config, model, encoder, data.examples)
        notes += [f"guide {guide}" for guide in guides]
        return TextBundle(model=model, tokenizer=encoder.tokenizer, notes=notes, encoder=encoder, guides=guides)

    def tokenize(self, data: TextData, bundle: TextBundle, scratch_dir: Path) -> None:
        bundle.encoded = tokenize_splits(bundle.encoder, data.examples, scratch_dir)
        bundle.notes += data_notes(data.examples)
        bundle.notes += truncation_notes(bundle.encoded, bundle.encoder)

    def build_trainer(self, data: TextData, bundle: TextBundle, out_dir: Path) -> TextTrainer:
        config, task, splits = self.config, data.task, data.examples.splits
        has_dev = "dev" in splits
        return TextTrainer(
            model=bundle.model,
            args=build_encoder_arguments(config, out_dir, dev_metric=task.primary if has_dev else None),
            train_dataset=bundle.encoder.to_dataset(bundle.encoded["train"]),
            eval_dataset=bundle.encoder.to_dataset(bundle.encoded["dev"]) if has_dev else None,
            data_collator=identity_collate,
            compute_metrics=dev_metrics(data, bundle.encoded["dev"]) if has_dev else None,
            preprocess_logits_for_metrics=keep_logits,
            callbacks=[EarlyStoppingCallback(config.early_stopping_patience or MIN_PATIENCE)] if has_dev else [],
            batch_size=get_batch_size(config),
            row_numbers=column_array(splits["train"], "row"),
            guides=bundle.guides,
            scheme_learning_rate=config.scheme_learning_rate,
            example=bundle.encoder.example_batch(splits["train"]),
        )

    def evaluate_splits(self, data: TextData, bundle: TextBundle, trainer: Any) -> Evaluation:
        task, examples, encoder = data.task, data.examples, bundle.encoder
        trainer.compute_metrics = None  # it evaluates dev only
        results = {}
        for split, encoded in bundle.encoded.items():
            if split != "train":
                rows = examples.splits[split]
                output = trainer.predict(encoder.to_dataset(encoded))
                scores = get_scores(task, output, rows, encoded, examples.labels)
                results[split] = SplitResult(
                    metrics=task.metrics(scores, rows),
                    standard_error=task.standard_error(scores, rows),
                    predictions=build_predictions(split, scores, rows),
                    fingerprint=fingerprint(rows),
                    baselines=compute_baselines(task, examples, split),
                )
        inputs = {"pair": encoder.pair, "max_length": encoder.max_length, "hierarchy": encoder.hierarchy}
        extras: dict[str, Any] = {"labels": list(examples.labels), "inputs": inputs}
        if task.label_type == "classification":
            extras["most_frequent_label"] = most_frequent_label(examples)
        return Evaluation(results, extras)

    def describe(self, data: TextData, metrics: dict[str, Any]) -> Card:
        return build_card(self.config, data.task, metrics["labels"])


def tokenize_splits(encoder: TextEncoder, examples: Examples, directory: Path) -> dict[str, Dataset]:
    """Tokenize all splits into files. The main process writes them, the others read them."""
    directory.mkdir(parents=True, exist_ok=True)
    return {
        split: encoder.encode_dataset(rows, directory / f"{split}.arrow", overwrite=state().is_main_process)
        for split, rows in examples.splits.items()
    }


def most_frequent_label(examples: Examples) -> str:
    """Return the most frequent label of the training rows."""
    return examples.labels[int(np.bincount(column_array(examples.splits["train"], "label")).argmax())]


def dev_metrics(data: TextData, encoded: Dataset) -> Any:
    """Return the Trainer's `compute_metrics` function."""
    task, rows, labels = data.task, data.examples.splits["dev"], data.examples.labels
    return lambda output: task.metrics(get_scores(task, output, rows, encoded, labels), rows)


def keep_logits(outputs: Any, labels: Any) -> Any:
    """Drop the other outputs of a model, which the Trainer would keep in memory."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


def truncation_notes(encoded: dict[str, Dataset], encoder: TextEncoder) -> list[str]:
    """Return notes with the lengths of the texts and the number of truncated ones."""
    counts = {split: (int(column_array(rows, "truncated").sum()), len(rows)) for split, rows in encoded.items()}
    limit = f"{encoder.max_length} tokens (--max-length)"
    if encoder.hierarchy is not None:
        limit = f"{encoder.hierarchy[1]} sentences of {encoder.hierarchy[0]} words (--hierarchy)"
    return length_notes(column_array(encoded["train"], "length"), counts, limit)


def data_notes(examples: Examples) -> list[str]:
    """Return a note with the number of rows of each label, and log warnings about likely mistakes in the data."""
    summary = summarize(examples)
    for warning in summary.warnings:
        logger.warning("%s", warning)
    return [describe_labels(summary.labels, summary.ratings)]
