"""The text pipeline."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import EarlyStoppingCallback

from headwise.guidance import GuidedTrainer
from headwise.guides import Guide
from headwise.tasks import Examples
from headwise.tasks.metrics.labels import column_array
from headwise.training.core.arguments import build_task_arguments, get_batch_size
from headwise.training.core.batches import identity_collate
from headwise.training.core.card import Card
from headwise.training.core.distributed import state
from headwise.training.core.metrics import Evaluation
from headwise.training.core.pipeline import ModelBundle, Pipeline
from headwise.training.core.trainer import LengthGroupedTrainer
from headwise.training.text.card import build_card
from headwise.training.text.config import TextConfig
from headwise.training.text.data import TextData, load_data
from headwise.training.text.encoding import TextEncoder
from headwise.training.text.evaluate import evaluate, evaluate_scores
from headwise.training.text.guides import build_guides
from headwise.training.text.inference import open_inspected
from headwise.training.text.model import build_model
from headwise.training.text.predict import predict
from headwise.training.text.predictions import get_scores


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

    def build(self, data: TextData, scratch_dir: Path) -> TextBundle:
        model, encoder, notes = build_model(self.config, data.task, data.examples)
        guides = build_guides(self.config, model, encoder, data.examples)
        notes += [f"guide {guide}" for guide in guides]
        return TextBundle(model=model, tokenizer=encoder.tokenizer, notes=notes, encoder=encoder, guides=guides)

    def tokenize(self, data: TextData, bundle: TextBundle, scratch_dir: Path) -> None:
        bundle.encoded = tokenize_splits(bundle.encoder, data.examples, scratch_dir)
        bundle.notes += truncation_notes(bundle.encoded, bundle.encoder)

    def build_trainer(self, data: TextData, bundle: TextBundle, out_dir: Path) -> TextTrainer:
        task, splits = data.task, data.examples.splits
        has_dev = "dev" in splits
        return TextTrainer(
            model=bundle.model,
            args=build_task_arguments(self.config, task, out_dir, has_dev=has_dev),
            train_dataset=bundle.encoder.to_dataset(bundle.encoded["train"]),
            eval_dataset=bundle.encoder.to_dataset(bundle.encoded["dev"]) if has_dev else None,
            data_collator=identity_collate,
            compute_metrics=dev_metrics(data, bundle.encoded["dev"]) if has_dev else None,
            preprocess_logits_for_metrics=keep_logits,
            callbacks=[EarlyStoppingCallback(self.config.patience)] if has_dev else [],
            batch_size=get_batch_size(self.config, task),
            row_numbers=column_array(splits["train"], "row"),
            guides=bundle.guides,
            scheme_learning_rate=self.config.scheme_learning_rate,
            example=bundle.encoder.example_batch(splits["train"]),
        )

    def evaluate_splits(self, data: TextData, bundle: TextBundle, trainer: Any) -> Evaluation:
        task, examples, encoder = data.task, data.examples, bundle.encoder
        trainer.compute_metrics = None  # it evaluates dev only
        scores = {
            split: get_scores(
                task, trainer.predict(encoder.to_dataset(encoded)), examples.splits[split], encoded, examples.labels
            )
            for split, encoded in bundle.encoded.items()
            if split != "train"
        }
        inputs = {"pair": encoder.pair, "max_length": encoder.max_length, "hierarchy": encoder.hierarchy}
        evaluation = evaluate_scores(task, examples, scores)
        evaluation.extras["inputs"] = inputs
        return evaluation

    def describe(self, data: TextData, metrics: dict[str, Any]) -> Card:
        return build_card(self.config, data.task, metrics["labels"])


def tokenize_splits(encoder: TextEncoder, examples: Examples, directory: Path) -> dict[str, Dataset]:
    """Tokenize all splits into files. The main process writes them, the others read them."""
    directory.mkdir(parents=True, exist_ok=True)
    return {
        split: encoder.encode_dataset(rows, directory / f"{split}.arrow", overwrite=state().is_main_process)
        for split, rows in examples.splits.items()
    }


def dev_metrics(data: TextData, encoded: Dataset) -> Any:
    """Return the Trainer's `compute_metrics` function."""
    task, rows, labels = data.task, data.examples.splits["dev"], data.examples.labels
    return lambda output: task.metrics(get_scores(task, output, rows, encoded, labels), rows)


def keep_logits(outputs: Any, labels: Any) -> Any:
    """Drop the other outputs of a model, which the Trainer would keep in memory."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


def truncation_notes(encoded: dict[str, Dataset], encoder: TextEncoder) -> list[str]:
    """Return a note with the number of truncated texts, if there are any."""
    counts = {split: (int(column_array(rows, "truncated").sum()), len(rows)) for split, rows in encoded.items()}
    parts = [f"{truncated:,} of {total:,} {split} texts" for split, (truncated, total) in counts.items() if truncated]
    limit = f"{encoder.max_length} tokens (--max-length)"
    if encoder.hierarchy is not None:
        limit = f"{encoder.hierarchy[1]} sentences of {encoder.hierarchy[0]} words (--hierarchy)"
    return [f"truncated to {limit}: {', '.join(parts)}"] if parts else []
