"""The attention of a model in the passages of a text, quantized layer by layer."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from headwise.errors import UserError
from headwise.inspection.capture import capture_attention
from headwise.inspection.inspected_model import EncodedBatch, InspectedModel, Prediction, Texts
from headwise.inspection.quantize import QuantizedLayer, quantize_layer
from headwise.integrations import AttentionRows


@dataclass(frozen=True)
class PassageAttention:
    """A model's attention in one passage of a text, and its prediction for the text.

    Args:
        title: the name of the passage; empty if the text has only one.
        tokens: the tokens of the passage.
        layers: the quantized maps of each layer.
        prediction: the model's prediction; None if it has no classifier.
        truncated: True if the text was too long for the model.
    """

    title: str
    tokens: tuple[str, ...]
    layers: tuple[QuantizedLayer, ...]
    prediction: Prediction | None
    truncated: bool


def capture_passages(model: InspectedModel, texts: Texts) -> list[PassageAttention]:
    """Run a model on a text or a pair and return its attention, one entry for each passage.

    Maps are quantized layer by layer, so only a block of rows is held in full precision.

    Raises:
        UserError: the model's attention is not accessible, or the text is empty.
    """
    batch = model.encode([texts])
    tracker = PassageTracker(batch)
    layers: list[list[QuantizedLayer]] = [[] for _ in batch.passages]

    def quantize_rows(layer: nn.Module, rows: AttentionRows) -> None:
        index = tracker.find(layer, rows)
        layers[index].append(quantize_layer(rows, [len(sequence) for sequence in batch.passages[index].sequences]))

    output = capture_attention(model.model, batch.inputs, quantize_rows)
    for passage_layers in layers:
        if len({layer.cells.shape[0] for layer in passage_layers}) != 1:
            raise UserError(f"{model.name}: no attention was captured, or its layers have different numbers of heads")
    prediction = model.get_prediction(output)
    return [
        PassageAttention(passage.title, passage.tokens, tuple(passage_layers), prediction, batch.truncated)
        for passage, passage_layers in zip(batch.passages, layers, strict=True)
    ]


class PassageTracker:
    """Determines the passage that a layer processes.

    The next passage starts when a layer runs a second time, or when the shape of the batch changes.
    """

    def __init__(self, batch: EncodedBatch) -> None:
        self.shapes = [(len(passage.sequences), max(map(len, passage.sequences))) for passage in batch.passages]
        self.index, self.layers = 0, set[nn.Module]()

    def find(self, layer: nn.Module, rows: AttentionRows) -> int:
        """Return the index of the passage.

        Raises:
            UserError: the shape of the batch matches no passage.
        """
        shape = tuple(rows.real.shape)
        if layer in self.layers and len(self.shapes) > self.index + 1:
            self._start_next()
        while shape != self.shapes[self.index] and self.index + 1 < len(self.shapes):
            self._start_next()
        if shape != self.shapes[self.index]:
            raise UserError(f"a layer received a batch of shape {shape}, expected {self.shapes[self.index]}")
        self.layers.add(layer)
        return self.index

    def _start_next(self) -> None:
        self.index, self.layers = self.index + 1, set()


def check_same_tokens(names: Sequence[str], passages: Sequence[Sequence[PassageAttention]]) -> None:
    """Check that all models split a text into the same tokens.

    Args:
        names: the names of the models.
        passages: the passages of each model.

    Raises:
        UserError: the tokens differ.
    """
    expected = [passage.tokens for passage in passages[0]]
    for name, other in zip(names[1:], passages[1:], strict=True):
        tokens = [passage.tokens for passage in other]
        if tokens != expected:
            raise UserError(
                f"{names[0]} and {name} split the text into different tokens ({sum(map(len, expected))} and "
                f"{sum(map(len, tokens))}): models can only be compared with the same tokenizer and maximum length"
            )
