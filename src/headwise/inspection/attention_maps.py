"""Attention maps, read off a model's layers as they run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import UserError
from headwise.inspection.capture import watch
from headwise.inspection.inspected_model import Encoded, InspectedModel, Prediction, Texts
from headwise.inspection.quantize import Layer, compact
from headwise.integrations import (
    AttentionRows,
    LayerRecord,
    RecordField,
    UnsupportedAttentionError,
    eval_mode,
    recording,
    unwrap_model,
    use_headwise_attention,
)


class _Keeper:
    """Keeps the maps of the layers in the order in which they run."""

    is_recording, required_fields = True, frozenset[RecordField]({"weights"})

    def __init__(self) -> None:
        self.maps: list[Tensor] = []

    def record(self, layer: nn.Module, heard: LayerRecord) -> None:
        assert heard.weights is not None
        self.maps.append(heard.weights)


def attention_maps(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """What every head looks at, (layers, B, heads, N, N), by the model's own scheme where it has one.

    Args:
        model: any Hugging Face model that asks transformers' `AttentionInterface`; it is left as it was.
        inputs: a batch of it.

    Raises:
        NotThroughTheInterface: the model's attention never asks it.

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertModel
        >>> model = BertModel(BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=3, num_attention_heads=2))
        >>> attention_maps(model, {"input_ids": torch.tensor([[5, 6, 7, 8]])}).shape
        torch.Size([3, 1, 2, 4, 4])
    """
    inner, keeper = unwrap_model(model), _Keeper()
    with use_headwise_attention(inner), recording(inner, keeper), eval_mode(inner):
        inner(**inputs)
    if not keeper.maps:
        raise UnsupportedAttentionError(inner)
    return torch.stack(keeper.maps)


@dataclass(frozen=True)
class Reading:
    """What a model's heads look at in one passage of a text, and what it says about the text.

    Args:
        title: which passage; empty where there is only one.
        tokens: the passage's.
        layers: its maps.
        prediction: the model's answer, if it gives one.
        cut: whether the text was too long for the model.
    """

    title: str
    tokens: tuple[str, ...]
    layers: tuple[Layer, ...]
    prediction: Prediction | None
    cut: bool


def read(subject: InspectedModel, texts: Texts) -> list[Reading]:
    """A text, or a pair, as a model's heads look at it: layer by layer, so that never more than some rows are held.

    Raises:
        UserError: the model's attention cannot be seen, or the text is empty.
    """
    encoded = subject.encode([texts])
    passages = Passages(encoded)
    layers: list[list[Layer]] = [[] for _ in encoded.passages]

    def see(layer: nn.Module, rows: AttentionRows) -> None:
        at = passages.of(layer, rows)
        layers[at].append(compact(rows, [len(sequence) for sequence in encoded.passages[at].sequences]))

    output = watch(subject.model, encoded.inputs, see)
    for own in layers:
        if len({layer.cells.shape[0] for layer in own}) != 1:
            raise UserError(f"{subject.name}: its layers have different numbers of heads, or none could be seen")
    prediction = subject.predicted(output)
    return [
        Reading(passage.title, passage.tokens, tuple(own), prediction, encoded.cut)
        for passage, own in zip(encoded.passages, layers, strict=True)
    ]


class Passages:
    """Tells which passage a layer is looking at: the next one begins where a layer runs again, or sizes change."""

    def __init__(self, encoded: Encoded) -> None:
        self.shapes = [(len(x.sequences), max(map(len, x.sequences))) for x in encoded.passages]
        self.at, self.ran = 0, set[nn.Module]()

    def of(self, layer: nn.Module, rows: AttentionRows) -> int:
        if layer in self.ran and len(self.shapes) > self.at + 1:
            self.at, self.ran = self.at + 1, set()
        while tuple(rows.real.shape) != self.shapes[self.at] and self.at + 1 < len(self.shapes):
            self.at, self.ran = self.at + 1, set()
        if tuple(rows.real.shape) != self.shapes[self.at]:
            raise UserError(
                f"a layer looked at {tuple(rows.real.shape)} tokens where {self.shapes[self.at]} were expected"
            )
        self.ran.add(layer)
        return self.at


def same_tokens(names: Sequence[str], readings: Sequence[Sequence[Reading]]) -> None:
    """Models are shown side by side if they read the same tokens.

    Raises:
        UserError: they do not.
    """
    for name, other in zip(names[1:], readings[1:], strict=True):
        mine, theirs = ([reading.tokens for reading in own] for own in (readings[0], other))
        if mine != theirs:
            raise UserError(
                f"{names[0]} and {name} cut the text into different tokens ({sum(map(len, mine))} and "
                f"{sum(map(len, theirs))}): models side by side need the same tokenizer and length"
            )
