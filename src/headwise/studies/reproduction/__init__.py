"""Reproductions of the papers' tables and figures: each is a `StudySpec`, one file per paper."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwise.studies.plan import Result
    from headwise.studies.report import CaptionedFigure
    from headwise.studies.tables import TextTable

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
        tasks: the tasks, each with its options. If the option `task` is one of them, the name is that of a variant of
            this task, such as a language pair.
        methods: the methods, named as in the published table, each with its options.
        baseline: the method that the others are compared with.
        options: the options that all methods and tasks share.
        guide_weights: the weights that are tried on dev, by the name of the guide, for guides without a weight.
        grids: further options of methods whose values are chosen on dev, by method and option.
        with_models: returns the study of other models, by label, for studies that compare models.
        controls: for methods that are compared with another method than the baseline, the name of that method.
        tests_best: whether the paper tests the best method against the second best.
        seeds: the default number of seeds.
        chart: how to draw a figure of lines.
        draw: draws further figures from the trained models of the runs.
        build_tables: builds further tables from the trained models of the runs.
        keeps_models: whether the models of all seeds are kept, for `draw` and `build_tables`.
        notes: differences from the paper, and details that the paper does not state.
    """

    question: str
    tasks: Mapping[str, Overrides]
    methods: Mapping[str, Overrides]
    baseline: str
    options: Overrides = field(default_factory=dict)
    guide_weights: Mapping[str, Sequence[float]] = field(default_factory=dict)
    grids: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=dict)
    with_models: "Callable[[Mapping[str, Overrides]], StudySpec] | None" = None
    controls: Mapping[str, str] = field(default_factory=dict)
    tests_best: bool = False
    seeds: int = 10
    chart: LineChart | None = None
    draw: "Callable[[Sequence[Result]], Iterable[CaptionedFigure]] | None" = None
    build_tables: "Callable[[Sequence[Result]], list[TextTable]] | None" = None
    keeps_models: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class DirectOutput:
    """A table or figure that needs no training.

    Args:
        question: what it shows.
        draw: draws the figures; None for a table.
        build_table: builds the table from the paths of the data by task; None for a figure.
        tasks: the tasks whose data a table is about.
    """

    question: str
    draw: "Callable[[], Sequence[CaptionedFigure]] | None" = None
    build_table: "Callable[[Mapping[str, str | None]], TextTable] | None" = None
    tasks: tuple[str, ...] = ()
