"""The attention of a model in the passages of a text, quantized layer by layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from headwise.errors import UserError
from headwise.inspection.capture import capture_attention
from headwise.inspection.inspected_model import EncodedBatch, InspectedModel, Prediction, Texts
from headwise.inspection.quantize import QuantizedLayer, quantize_layer
from headwise.integrations import AttentionRows


@dataclass(frozen=True)
class Alignment:
    """The alignment of target tokens with source tokens: cross-attention, averaged over heads.

    L layers, T target tokens, N source tokens.

    Args:
        mean: the mean weights of all heads of all layers, (T, N).
        sources: for each layer, the source token with the largest mean weight of each target token, (L, T).
        weights: these weights, (L, T).
    """

    mean: NDArray[np.float32]
    sources: NDArray[np.int64]
    weights: NDArray[np.float32]


@dataclass(frozen=True)
class PassageAttention:
    """A model's attention in one passage of a text, and its prediction for the text.

    Args:
        title: the name of the passage; empty if the text has only one.
        tokens: the tokens of the passage.
        layers: the quantized maps of each layer.
        prediction: the model's prediction; None if it has no classifier.
        truncated: True if the text was too long for the model.
        key_tokens: the tokens that are attended to; None if they are the tokens of the passage.
        alignment: the alignment of the tokens with the key tokens, for cross-attention.
    """

    title: str
    tokens: tuple[str, ...]
    layers: tuple[QuantizedLayer, ...]
    prediction: Prediction | None
    truncated: bool
    key_tokens: tuple[str, ...] | None = None
    alignment: Alignment | None = None


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
        if tokens != expected and tokens[0] == expected[0] and is_generated(other) and is_generated(passages[0]):
            raise UserError(f"{names[0]} and {name} generate different texts: set the text that both decode (--target)")
        if tokens != expected:
            raise UserError(
                f"{names[0]} and {name} split the text into different tokens ({sum(map(len, expected))} and "
                f"{sum(map(len, tokens))}): models can only be compared with the same tokenizer and maximum length"
            )


def is_generated(passages: Sequence[PassageAttention]) -> bool:
    """Return whether the passages contain a text that the model generated."""
    prediction = passages[0].prediction
    return prediction is not None and prediction.text is not None and not prediction.is_given
