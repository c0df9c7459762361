"""Inference with a finished run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from transformers import AutoTokenizer

from headwise.errors import UserError
from headwise.inspection.inspected_model import InspectedModel
from headwise.integrations import from_pretrained
from headwise.tasks.columns import Columns, choose_columns
from headwise.tasks.formats import Batch
from headwise.tasks.task import LabelType
from headwise.training.core import run_dir
from headwise.training.core.batches import compute_boundaries
from headwise.training.core.distributed import state
from headwise.training.core.environment import autocast
from headwise.training.core.pretrained import check_finite, load_pretrained, loading_errors, running_errors
from headwise.training.text.config import TextConfig
from headwise.training.text.decision import DecisionRule
from headwise.training.text.encoding import IGNORED_LABEL, TextEncoder
from headwise.training.text.long_text import WINDOW_ROW, pool_windows
from headwise.training.text.model import get_model_class
from headwise.training.text.packing import enable_packing
from headwise.training.text.predictions import fill_word_scores

#: The maximum number of tokens per forward pass, with padding, if the run has no `--batch-tokens`.
BATCH_TOKENS = 2**15

#: Of values in metrics.json.
DAMAGED = "not written by headwise, or damaged"


@dataclass(frozen=True)
class TextModel:
    """The model of a finished run with its configuration and metrics.

    Example:
        model = TextModel.load(Path("runs/reviews"))
        scores = model.scores({"text": ["a fine film", "a dull film"]})
    """

    config: TextConfig
    metrics: dict[str, Any]
    model: Any
    encoder: TextEncoder

    @classmethod
    def load(cls, run: Path | str, device: str | torch.device | None = None, *, pack: bool = True) -> "TextModel":
        """Load a model from its run directory.

        Args:
            run: the directory of a finished run.
            device: the model's device; by default the process's.
            pack: whether to pack batches if the run was trained with `--pack`.

        Raises:
            UserError: the directory contains no finished run, or its files are damaged.
        """
        run = Path(run)
        metrics = read_text_metrics(run)
        config = TextConfig.load(run / run_dir.CONFIG)
        model_class = get_model_class(metrics["label_type"], config.classifier)
        with loading_errors(run):
            loader = partial(from_pretrained, auto_class=model_class)
            model: Any = load_pretrained(loader, run, complete=True, use_safetensors=True)
            tokenizer = load_pretrained(AutoTokenizer, run)
        with loading_errors(run / run_dir.METRICS, DAMAGED):
            inputs = metrics["inputs"]
            hierarchy = None if inputs["hierarchy"] is None else tuple(inputs["hierarchy"])
            encoder = TextEncoder(
                tokenizer, metrics["label_type"], inputs["pair"], inputs["max_length"], hierarchy, inputs["long_text"]
            )
            check_num_labels(metrics["labels"], model.config.num_labels)
        if pack and config.pack:
            enable_packing(model, encoder)
        return cls(config, metrics, model.to(device or state().device).eval(), encoder)

    def choose_columns(self, batch: Batch, *, labelled: bool, **names: str | None) -> Columns:
        """Return the text and label columns of a file, see `choose_text_columns`."""
        return choose_text_columns(self.config, self.encoder.pair is not None, batch, labelled=labelled, **names)

    def scores(self, rows: Mapping[str, Sequence[Any]], batch_size: int = 64) -> list[Any]:
        """Compute the scores of texts.

        Args:
            rows: the columns `text` and `pair`, or `words`.
            batch_size: the maximum number of rows per forward pass. Their tokens are limited by `--batch-tokens` of the
                run.

        Returns:
            An array of shape (classes,) per row; for tagging of shape (words, classes).

        Raises:
            UserError: the model cannot be run, because its files are damaged or do not belong together.
        """
        with running_errors(self.model):
            return self._scores(rows, batch_size)

    def _scores(self, rows: Mapping[str, Sequence[Any]], batch_size: int) -> list[Any]:
        encoded = self.encoder.encode(rows)
        num_rows = len(encoded["input_ids"])
        if not num_rows:
            return []
        order = sorted(range(num_rows), key=lambda row: encoded["length"][row])  # rows of similar length together
        scores: dict[int, Any] = {}
        lengths = np.array([encoded["length"][row] for row in order])
        batch_tokens = self.config.batch_tokens or BATCH_TOKENS
        for indices in np.split(order, compute_boundaries(lengths, batch_tokens, max_rows=batch_size)):
            batch = self.encoder.collate([{name: x[i] for name, x in encoded.items()} for i in indices])
            batch.pop("labels", None)
            with torch.inference_mode(), autocast(self.config, self.model.device.type):
                logits = self.model(**{name: x.to(self.model.device) for name, x in batch.items()}).logits
            check_finite(logits, self.model)
            for row, row_logits in zip(indices, logits.float().cpu().numpy(), strict=True):
                if self.encoder.label_type == "tokens":
                    row_logits = self.word_scores(row_logits, encoded, row, len(rows["words"][row]))
                scores[row] = row_logits
        in_order = [scores[row] for row in range(num_rows)]
        return list(pool_windows(in_order, encoded[WINDOW_ROW])) if WINDOW_ROW in encoded else in_order

    def word_scores(self, logits: Any, encoded: Mapping[str, Any], row: int, num_words: int) -> Any:
        """Return the scores of a row's words, given those of its tokens."""
        first_tokens = [token for token, label in enumerate(encoded["labels"][row]) if label != IGNORED_LABEL]
        labels = self.metrics["labels"]
        return fill_word_scores(logits[first_tokens], encoded["word_indices"][row], num_words, labels)


def choose_text_columns(
    config: TextConfig, has_pair: bool, batch: Batch, *, labelled: bool = False, **names: str | None
) -> Columns:
    """Return the text and label columns of a file.

    Args:
        config: the run's configuration.
        has_pair: whether the model expects two texts per row.
        batch: the first rows of the file.
        labelled: whether a label column is required.
        names: the columns `text`, `pair` and `label`, if given. Otherwise they are those of the training data if
            the file has them, or are detected by their names.

    Raises:
        UserError: a column is missing, or the file has one text per row and the model expects two, or vice versa.
    """
    trained = {role: getattr(config, role) for role in ("text", "pair", "label")}
    wanted = {role: names.get(role) or (name if name in batch.columns else None) for role, name in trained.items()}
    columns = choose_columns(batch, text=wanted["text"], pair=wanted["pair"], label=wanted["label"], labelled=labelled)
    if (columns.pair is None) == has_pair:
        hint = "one text per row: set --text"
        if columns.pair is None:
            hint = "two texts per row: set --text and --pair"
            if config.label_type == "ranking" or config.queries:
                hint += ", or --documents to rank them for queries"
        raise UserError(f"{batch.path}: this model expects {hint}; columns: {', '.join(batch.columns)}")
    return columns


def read_text_metrics(run: Path) -> dict[str, Any]:
    """Read the metrics of a finished run, with all values that its model needs.

    Raises:
        UserError: there is no such run, or a value is missing or damaged.
    """
    metrics = run_dir.read_metrics(run, "label_type", "task", "labels", "inputs", "decision")
    with loading_errors(run / run_dir.METRICS, DAMAGED):
        label_type, labels, pair = metrics["label_type"], metrics["labels"], metrics["inputs"]["pair"]
        if label_type not in get_args(LabelType):
            raise ValueError(f"unknown label type {label_type!r:.40}")
        if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            raise ValueError("labels must be a list of names")
        if not isinstance(pair, str | None):
            raise ValueError(f"pair must be a name, got {pair!r:.40}")
        DecisionRule.from_metrics(metrics)
    return metrics


def check_num_labels(labels: Sequence[str], num_outputs: int) -> None:
    """Check that a model has an output for each label.

    Raises:
        ValueError: it has not.
    """
    if (len(labels) or 1) != num_outputs:  # a rating has one output and no labels
        raise ValueError(f"{len(labels)} labels, but the model has {num_outputs}")


def open_inspected(run: Path, name: str) -> InspectedModel:
    """Load a finished run for `headwise inspect`."""
    trained = TextModel.load(run, pack=False)  # attention maps are those of padded batches
    inputs = trained.metrics["inputs"]
    return InspectedModel(
        name=name,
        model=trained.model,
        tokenizer=trained.encoder.tokenizer,
        max_length=inputs["max_length"],
        labels=trained.metrics["labels"] or None,
        reads=1 if inputs["pair"] is None else 2,
        temperature=DecisionRule.from_metrics(trained.metrics).temperature,
    )
