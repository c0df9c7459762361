"""Attention maps, read off a model's layers as they run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.guidance import NotThroughTheInterface
from headwise.guidance.attaching import attached, evaluating, listened, unwrapped
from headwise.guidance.heard import Heard, Need
from headwise.guidance.rows import Rows
from headwise.inspection.compact import Layer, compact
from headwise.inspection.subject import Encoded, Prediction, Subject, Texts
from headwise.inspection.watching import watch
from headwise.mistakes import Mistake


class _Keeper:
    """Keeps the maps of the layers in the order in which they run."""

    listening, wants = True, frozenset[Need]({"weights"})

    def __init__(self) -> None:
        self.maps: list[Tensor] = []

    def hear(self, layer: nn.Module, heard: Heard) -> None:
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
    inner, keeper = unwrapped(model), _Keeper()
    with attached(inner), listened(inner, keeper), evaluating(inner):
        inner(**inputs)
    if not keeper.maps:
        raise NotThroughTheInterface(inner)
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


def read(subject: Subject, texts: Texts) -> list[Reading]:
    """A text, or a pair, as a model's heads look at it: layer by layer, so that never more than some rows are held.

    Raises:
        Mistake: the model's attention cannot be seen, or the text is empty.
    """
    encoded = subject.encode([texts])
    passages = Passages(encoded)
    layers: list[list[Layer]] = [[] for _ in encoded.passages]

    def see(layer: nn.Module, rows: Rows) -> None:
        at = passages.of(layer, rows)
        layers[at].append(compact(rows, [len(sequence) for sequence in encoded.passages[at].sequences]))

    output = watch(subject.model, encoded.inputs, see)
    for own in layers:
        if len({layer.cells.shape[0] for layer in own}) != 1:
            raise Mistake(f"{subject.name}: its layers have different numbers of heads, or none could be seen")
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

    def of(self, layer: nn.Module, rows: Rows) -> int:
        if layer in self.ran and len(self.shapes) > self.at + 1:
            self.at, self.ran = self.at + 1, set()
        while tuple(rows.real.shape) != self.shapes[self.at] and self.at + 1 < len(self.shapes):
            self.at, self.ran = self.at + 1, set()
        if tuple(rows.real.shape) != self.shapes[self.at]:
            raise Mistake(
                f"a layer looked at {tuple(rows.real.shape)} tokens where {self.shapes[self.at]} were expected"
            )
        self.ran.add(layer)
        return self.at


def same_tokens(names: Sequence[str], readings: Sequence[Sequence[Reading]]) -> None:
    """Models are shown side by side if they read the same tokens.

    Raises:
        Mistake: they do not.
    """
    for name, other in zip(names[1:], readings[1:], strict=True):
        mine, theirs = ([reading.tokens for reading in own] for own in (readings[0], other))
        if mine != theirs:
            raise Mistake(
                f"{names[0]} and {name} cut the text into different tokens ({sum(map(len, mine))} and "
                f"{sum(map(len, theirs))}): models side by side need the same tokenizer and length"
            )
