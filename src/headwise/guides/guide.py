"""What every guide is: a term of the loss, read off what heads do."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor

from headwise.attention.checks import disable_autocast
from headwise.integrations import LayerRecord, RecordField

Weight = float | Literal["auto"]
Schedule = Literal["constant", "linear", "warm-up"]
Reduction = Literal["mean", "paper", "released"]


@dataclass(frozen=True)
class ForwardRecord:
    """One forward pass, as guides see it; what several of them need is computed once."""

    layers: list[LayerRecord]
    inputs: dict[str, Any]  # what the model was given: input_ids, labels, …
    _similar: dict[Any, Tensor] = field(default_factory=dict)

    @property
    def real(self) -> Tensor:
        """Which tokens are no padding, (B, N)."""
        return self.layers[0].real

    def similarity(self, heads: Sequence[int] | None) -> Tensor:
        """M Mᵀ, (B, rows, rows), where M of eq. 9 has a row for every layer and head: what each token receives, at
        length 1.

        Args:
            heads: which of each layer; None for all.
        """
        chosen = None if heads is None else tuple(heads)
        if chosen not in self._similar:
            rows = full(torch.cat([some(layer.received, heads) for layer in self.layers], dim=1))
            if self.layers[0].padding is not None:
                rows = rows * self.real[:, None]
            with disable_autocast(rows.device.type):
                rows = to_length_1(rows)
                self._similar[chosen] = torch.bmm(rows, rows.mT)
        return self._similar[chosen]


class Options(TypedDict, total=False):
    """What every guide takes besides its weight; see `Guide`."""

    share: float
    layers: Sequence[int] | None
    heads: Sequence[int] | None
    schedule: Schedule
    name: str | None


class Guide:
    """A term added to the loss.

    Args:
        weight: what the term is multiplied by, 0 or more; or `auto`: as much as makes its gradient on the queries a
            share of the task's, measured as training goes, so that no setting ruins a model.
        share: that share, for `auto`; several automatic guides divide it among them.
        layers: which layers, by number from 0; negative numbers count from the last. All by default.
        heads: which heads of them, likewise.
        schedule: how the weight goes over training: `constant`; `linear`, down to 0 at the end; `warm-up`, up from 0
            over the first tenth and constant then.
        name: what it is called in logs; by default its class.
    """

    #: What it needs to hear besides what tokens receive.
    needs: frozenset[RecordField] = frozenset()

    #: What batches hold for this guide alone; it is kept from the model.
    keys: tuple[str, ...] = ()

    def __init__(
        self,
        weight: Weight = 1.0,
        *,
        share: float = 0.02,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
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
        for argument, chosen in (("layers", layers), ("heads", heads)):
            if chosen is not None and (not chosen or any(not isinstance(i, int) for i in chosen)):
                raise ValueError(f"{argument} must be numbers, at least one, or None for all; got {chosen!r}")
        self.auto, self.share = weight == "auto", share
        self.weight = 0.0 if weight == "auto" else float(weight)  # of `auto` the last one
        self.layers, self.heads, self.schedule = layers, heads, schedule
        self.name = name or type(self).__name__

    def term(self, observed: ForwardRecord) -> Tensor:
        """The term, unweighted: a number, the mean over the batch."""
        raise NotImplementedError

    def __call__(self, observed: ForwardRecord) -> Tensor:
        """The term for the layers that this guide is about."""
        if self.layers is not None:
            chosen = [within("layers", i, len(observed.layers)) for i in self.layers]
            observed = ForwardRecord([observed.layers[i] for i in chosen], observed.inputs)
        return self.term(observed)

    def of_heads(self, x: Tensor) -> Tensor:
        """Of (B, H, …) the heads that this guide is about."""
        return some(x, self.heads)

    def weight_at(self, progress: float) -> float:
        """The weight after a share of training, 0 to 1."""
        if self.schedule == "linear":
            return self.weight * max(0.0, 1.0 - progress)
        if self.schedule == "warm-up":
            return self.weight * min(1.0, 10.0 * progress)
        return self.weight

    def __repr__(self) -> str:
        weight = "'auto'" if self.auto else f"{self.weight:g}"
        return f"{type(self).__name__}(weight={weight}, schedule={self.schedule!r})"


def within(argument: str, index: int, count: int) -> int:
    if not -count <= index < count:
        raise ValueError(f"{argument} has {index}, but the model has {count} {argument}: 0 to {count - 1}")
    return index % count


def some(x: Tensor, heads: Sequence[int] | None) -> Tensor:
    """Of (B, H, …) some heads; None for all."""
    return x if heads is None else x[:, [within("heads", i, x.shape[1]) for i in heads]]


def to_length_1(x: Tensor) -> Tensor:
    """Vectors divided by their length; those of length 0 stay. On a GPU this is one kernel each way."""
    n = x.shape[-1]
    return torch.nn.functional.rms_norm(x, (n,), x.new_full((n,), n**-0.5), eps=1e-24)


def full(x: Tensor) -> Tensor:
    """x in float32 at least."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def check_reduction(reduction: str) -> Any:
    if reduction not in ("mean", "paper", "released"):
        raise ValueError(f"reduction must be one of mean, paper, released; got {reduction!r}")
    return reduction
