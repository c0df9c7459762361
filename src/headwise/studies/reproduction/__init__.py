"""Reproductions of the papers' tables and figures: each is a `StudySpec`, one file per paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: Values of training options by name.
Overrides = Mapping[str, Any]


@dataclass(frozen=True)
class LineChart:
    """How a figure draws the methods of a study as lines.

    Args:
        x_label: the label of the x-axis.
        points: for each method, the name of its line and its x-values; a baseline can span several.
    """

    x_label: str
    points: Mapping[str, tuple[str, Sequence[float]]]


@dataclass(frozen=True)
class StudySpec:
    """A table or figure that is reproduced by a study of methods × tasks × seeds.

    Args:
        question: the question it answers.
        tasks: the tasks, each with its options.
        methods: the methods, named as in the published table, each with its options.
        baseline: the method that the others are compared with.
        controls: for methods that are compared with another method than the baseline, the name of that method.
        unavailable_methods: methods that cannot be run, and why.
        seeds: the default number of seeds.
        chart: how to draw a figure of lines.
        notes: differences from the paper, and details that the paper does not state.
    """

    question: str
    tasks: Mapping[str, Overrides]
    methods: Mapping[str, Overrides]
    baseline: str
    controls: Mapping[str, str] = field(default_factory=dict)
    unavailable_methods: Mapping[str, str] = field(default_factory=dict)
    seeds: int = 10
    chart: LineChart | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class InspectionFigure:
    """A figure of attention heads that `headwise inspect` draws from a trained model."""

    description: str
    command: str
