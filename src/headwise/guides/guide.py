"""The base class of all guides, and the record of a forward pass that they read.

Axes: B batch, H heads, N tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor

from headwise.attention.checks import disable_autocast
from headwise.integrations import LayerRecord, RecordField
from headwise.integrations.indices import Indices, to_indices

Weight = float | Literal["auto"]
Schedule = Literal["constant", "linear", "warm-up"]
Reduction = Literal["mean", "paper", "released"]


@dataclass(frozen=True)
class ForwardRecord:
    """The record of one forward pass.

    Attributes:
        layers: one record per self-attention layer, in the order in which they ran.
        inputs: the model's inputs by name: input_ids, labels, …
    """

    layers: list[LayerRecord]
    inputs: dict[str, Any]
    _similarities: dict[Any, Tensor] = field(default_factory=dict)

    @property
    def real(self) -> Tensor:
        """True for tokens that are not padding, (B, N)."""
        return self.layers[0].real

    def head_similarity(self, heads: Sequence[int] | None) -> Tensor:
        """Return M Mᵀ, (B, R, R), where M has a row for each of R heads: its received attention, scaled to length 1.

        The result is cached, because several guides read it.

        Args:
            heads: the heads of every layer to include; None for all.
        """
        key = None if heads is None else tuple(heads)
        if key not in self._similarities:
            received = upcast(torch.cat([select_heads(layer.received, heads) for layer in self.layers], dim=1))
            if self.layers[0].padding is not None:
                received = received * self.real[:, None]
            with disable_autocast(received.device.type):
                rows = l2_normalize(received)
                self._similarities[key] = torch.bmm(rows, rows.mT)
        return self._similarities[key]


class GuideOptions(TypedDict, total=False):
    """The arguments that all guides share besides the weight; see `Guide`."""

    share: float
    layers: Indices | None
    heads: Indices | None
    schedule: Schedule
    name: str | None


class Guide:
    """Base class of guides: terms of the training loss that regularize attention heads.

    A subclass implements `term`, and names the fields that it reads in `required_fields`.

    Args:
        weight: the factor of the term, 0 or more. `"auto"` sets it during training so that the norm of the guide's
            gradient at the queries is `share` times that of the task.
        share: the share for `weight="auto"`. Several guides with automatic weights divide it equally.
        layers: the layers to guide, an integer or several, numbered from 0; negative numbers count from the last. All
            by default.
        heads: the heads of these layers to guide, numbered in the same way. All by default.
        schedule: how the weight changes during training: `constant`; `linear`, which decreases to 0 at the end;
            `warm-up`, which increases from 0 over the first tenth of training.
        name: the name in logs; the class name by default.
    """

    #: The optional fields of `LayerRecord` that the guide reads.
    required_fields: frozenset[RecordField] = frozenset()

    #: Names of inputs in a batch that only the guide reads. They are not passed to the model.
    input_keys: tuple[str, ...] = ()

    def __init__(
        self,
        weight: Weight = 1.0,
        *,
        share: float = 0.02,
        layers: Indices | None = None,
        heads: Indices | None = None,
        schedule: Schedule = "constant",
        name: str | None = None,
    ) -> None:
        if weight != "auto" and (isinstance(weight, bool) or not isinstance(weight, int | float)):
            raise TypeError(f"weight must be a number or 'auto', got {weight!r}")
        for argument, number in (("weight", 0.0 if weight == "auto" else weight), ("share", share)):
            if not number >= 0:
                raise ValueError(f"{argument} must be 0 or more, got {number}")
        if schedule not in ("constant", "linear", "warm-up"):
            raise ValueError(f"schedule must be one of constant, linear, warm-up; got {schedule!r}")
        self.auto, self.share = weight == "auto", share
        self.weight = 0.0 if weight == "auto" else float(weight)  # an automatic weight changes during training
        self.layers, self.heads = to_indices("layers", layers), to_indices("heads", heads)
        self.schedule = schedule
        self.name = name or type(self).__name__

    def term(self, record: ForwardRecord) -> Tensor:
        """Compute the unweighted term, a scalar, as a mean over the batch. `record` holds the guided layers."""
        raise NotImplementedError

    def __call__(self, record: ForwardRecord) -> Tensor:
        """Compute the unweighted term from the record of all layers."""
        if self.layers is not None:
            record = ForwardRecord(self.select_layers(record.layers), record.inputs)
        lengths = sorted({layer.q.shape[2] for layer in record.layers})
        if len(lengths) > 1:
            raise ValueError(
                f"{self.name} compares layers, but those of this model attend to different numbers of positions "
                f"({', '.join(map(str, lengths))}): choose layers with the same number by layers="
            )
        return self.term(record)

    def select_layers(self, layers: list[LayerRecord]) -> list[LayerRecord]:
        """Return the guided layers of a model."""
        return layers if self.layers is None else [layers[check_index("layers", i, len(layers))] for i in self.layers]

    def select_heads(self, x: Tensor) -> Tensor:
        """Return the guided heads of a tensor (B, H, …)."""
        return select_heads(x, self.heads)

    def weight_at(self, progress: float) -> float:
        """Return the weight after a fraction of training between 0 and 1."""
        if self.schedule == "linear":
            return self.weight * max(0.0, 1.0 - progress)
        if self.schedule == "warm-up":
            return self.weight * min(1.0, 10.0 * progress)
        return self.weight

    def __repr__(self) -> str:
        weight = "'auto'" if self.auto else f"{self.weight:g}"
        return f"{type(self).__name__}(weight={weight}, schedule={self.schedule!r})"


def check_index(argument: str, index: int, count: int) -> int:
    """Return a layer's or head's index as a number from 0, or raise ValueError if it does not exist."""
    if not -count <= index < count:
        raise ValueError(f"{argument} contains {index}, but the model has {count} {argument}, 0 to {count - 1}")
    return index % count


def select_heads(x: Tensor, heads: Sequence[int] | None) -> Tensor:
    """Return some heads of a tensor (B, H, …); None for all."""
    return x if heads is None else x[:, [check_index("heads", i, x.shape[1]) for i in heads]]


def l2_normalize(x: Tensor) -> Tensor:
    """Divide vectors by their length; zero vectors stay zero. On a GPU, each pass is one kernel."""
    n = x.shape[-1]
    return torch.nn.functional.rms_norm(x, (n,), x.new_full((n,), n**-0.5), eps=1e-24)


def upcast(x: Tensor) -> Tensor:
    """Convert float16 and bfloat16 to float32."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def check_reduction(reduction: Reduction) -> Reduction:
    """Return the reduction, or raise ValueError if it does not exist."""
    if reduction not in ("mean", "paper", "released"):
        raise ValueError(f"reduction must be one of mean, paper, released; got {reduction!r}")
    return reduction
