"""A finished run, ready to be used: its model, and what turns rows into its inputs."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from headwise.errors import UserError
from headwise.inspection.inspected_model import InspectedModel
from headwise.integrations import from_pretrained
from headwise.tasks.columns import Columns, choose_columns
from headwise.tasks.formats import Batch
from headwise.training.core import run_dir
from headwise.training.core.loading import loadable
from headwise.training.registry import load_config
from headwise.training.run import in_bfloat16
from headwise.training.text.config import TextConfig
from headwise.training.text.encoding import TextEncoder
from headwise.training.text.model import class_for
from headwise.training.text.predictions import for_words


@dataclass(frozen=True)
class TextModel:
    """A finished run's settings, figures and model.

    Example:
        trained = Trained.load(Path("runs/reviews"))
        scores = trained.scores({"text": ["a fine film", "a dull film"]})
    """

    settings: TextConfig
    metrics: dict[str, Any]
    model: Any
    reader: TextEncoder

    @classmethod
    def load(cls, run: Path, device: str | torch.device | None = None) -> "TextModel":
        """A run's model from its folder.

        Raises:
            UserError: the folder holds no finished run.
        """
        metrics = run_dir.read_metrics(run, "label_type", "task", "labels", "inputs")
        settings: Any = load_config(run / run_dir.SETTINGS)
        auto = class_for(metrics["label_type"], settings.classifier)
        with loadable(run):
            model: Any = from_pretrained(run, auto, use_safetensors=True)
            tokenizer = AutoTokenizer.from_pretrained(run)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        with loadable(run / run_dir.METRICS, "not as headwise wrote it"):
            inputs = metrics["inputs"]
            hierarchy = None if inputs["hierarchy"] is None else tuple(inputs["hierarchy"])
            reader = TextEncoder(tokenizer, metrics["label_type"], inputs["pair"], inputs["max_length"], hierarchy)
        return cls(settings, metrics, model.to(device).eval(), reader)

    def columns(self, first: Batch, *, labelled: bool, **given: str | None) -> Columns:
        """The columns of a file: those that are given, else the run's where they are there, else found by their names.

        Raises:
            UserError: they are not there, or the model reads two texts a row and the file has one, or the other way.
        """
        own = {role: getattr(self.settings, role) for role in ("text", "pair", "label")}
        wanted = {role: given.get(role) or (name if name in first.columns else None) for role, name in own.items()}
        columns = choose_columns(
            first, text=wanted["text"], pair=wanted["pair"], label=wanted["label"], labelled=labelled
        )
        if (columns.pair is None) != (self.reader.pair is None):
            reads = "two texts a row: say --text and --pair" if columns.pair is None else "one text a row: say --text"
            raise UserError(f"{first.path}: this model reads {reads}; there: {', '.join(first.columns)}")
        return columns

    def scores(self, rows: Mapping[str, Sequence[Any]], batch_size: int = 64) -> list[Any]:
        """The model's scores for rows of text: an array a row, for tokens (words, classes)."""
        encoded = self.reader.encode(rows)
        count = len(encoded["input_ids"])
        order = sorted(range(count), key=lambda i: encoded["length"][i])  # texts of a length together
        found: list[Any] = [None] * count
        for start in range(0, count, batch_size):
            chosen = order[start : start + batch_size]
            batch = self.reader.collate([{name: x[i] for name, x in encoded.items()} for i in chosen])
            batch.pop("labels", None)
            with torch.inference_mode(), self.precision():
                logits = self.model(**{name: x.to(self.model.device) for name, x in batch.items()}).logits
            for place, row in zip(chosen, logits.float().cpu().numpy(), strict=True):
                found[place] = row if self.reader.label_type != "tokens" else self.of_words(row, encoded, rows, place)
        return found

    def of_words(self, row: Any, encoded: Mapping[str, Any], rows: Mapping[str, Any], place: int) -> Any:
        firsts = [at for at, label in enumerate(encoded["labels"][place]) if label != -100]
        return for_words(row[firsts], encoded["places"][place], len(rows["words"][place]), self.metrics["labels"])

    def precision(self) -> AbstractContextManager[Any]:
        """As the run was judged in."""
        device = self.model.device.type
        return torch.autocast(device, torch.bfloat16) if in_bfloat16(self.settings) else nullcontext()


def open_inspected(run: Path, name: str) -> InspectedModel:
    """A run to look into."""
    trained = TextModel.load(run)
    inputs = trained.metrics["inputs"]
    return InspectedModel(
        name=name,
        model=trained.model,
        tokenizer=trained.reader.tokenizer,
        max_length=inputs["max_length"],
        labels=trained.metrics["labels"] or None,
        reads=1 if inputs["pair"] is None else 2,
    )
