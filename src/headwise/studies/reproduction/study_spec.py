"""What it takes to reproduce a table or figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Overrides = Mapping[str, Any]


@dataclass(frozen=True)
class Axis:
    """How a figure's methods lie on lines.

    Args:
        label: what is along the axis.
        places: of each method its line, and where on the axis it is; a method without a place of its own has several.
    """

    label: str
    places: Mapping[str, tuple[str, Sequence[float]]]


@dataclass(frozen=True)
class StudySpec:
    """A table or figure that is a study: methods × tasks × seeds.

    Args:
        asks: its question.
        tasks: by name, each with its settings.
        methods: by the name that the paper's figures have, each with its settings.
        baseline: what methods are compared with.
        controls: what some of them are compared with instead.
        missing: methods that cannot be run, and why.
        seeds: how many, unless the user says otherwise.
        axis: for a figure of lines.
        notes: where the study differs from the paper, or the paper leaves something open.
    """

    asks: str
    tasks: Mapping[str, Overrides]
    methods: Mapping[str, Overrides]
    baseline: str
    controls: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    seeds: int = 10
    axis: Axis | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pictured:
    """A figure that shows what heads do: `headwise inspect` draws it from a trained model."""

    shows: str
    command: str
