"""`headwise reproduce`: a paper's study on the published data, or on what there is, beside the paper's figures."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console

from headwise.errors import UserError
from headwise.inspection import draw_curves
from headwise.studies import report, tables
from headwise.studies.analysis import analyze
from headwise.studies.compare import conducted
from headwise.studies.comparison import TaskComparison
from headwise.studies.methods import Method
from headwise.studies.papers import published
from headwise.studies.plan import Run, runs
from headwise.studies.reproduction.paper_comparison import beside
from headwise.studies.reproduction.registry import get_study
from headwise.studies.reproduction.study_spec import Axis, Overrides, StudySpec
from headwise.studies.study import Study, higher_is_better
from headwise.studies.worker_pool import Resources
from headwise.training.core.config import RunConfig
from headwise.training.registry import get_task_type


@dataclass(frozen=True)
class ReproduceOptions:
    """What the user wants otherwise than the paper has it.

    Args:
        places: tasks, each with its data's place, or None where it comes from the hub; none for the study's own.
        methods: some of the study's; none for all.
        settings: of training.
    """

    places: Mapping[str, str | None]
    methods: Sequence[str]
    settings: Overrides


def create_reproduction(
    name: str,
    asked: ReproduceOptions,
    out: Path,
    *,
    seeds: int | None,
    storage: str | None = None,
    keep_models: bool = False,
) -> Study:
    """A paper's study, all of whose runs wait.

    Raises:
        UserError: no such study, task or method, or settings that do not go together.
    """
    declared = get_study(name)
    planned = plan(name, declared, asked, declared.seeds if seeds is None else seeds)
    names = [run.method for run in planned]
    own = [declared.controls[method] for method in names if method in declared.controls]
    return Study.begin(
        out,
        name,
        planned,
        storage=storage,
        keep_models=keep_models,
        maximise=higher_is_better([run.settings for run in planned]),
        baseline=declared.baseline if declared.baseline in names else own[0],
        controls=dict(declared.controls),
    )


def plan(name: str, declared: StudySpec, asked: ReproduceOptions, seeds: int) -> list[Run]:
    """All runs of a study, as the user wants them; what is left out is told.

    Raises:
        UserError: see `begin`.
    """
    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, got {seeds}")
    methods = chosen(name, declared, asked)
    bases = [base(declared, task, place, asked.settings) for task, place in places(declared, asked).items()]
    planned: list[Run] = []
    for one in bases:
        known = {field.name for field in fields(one)}
        able = [method for method in methods if method.settings.keys() <= known]
        for method in methods:
            if method not in able:
                told(
                    f"left out: {one.task}, {method.name}: its runs have no {', '.join(method.settings.keys() - known)}"
                )
        able = [method for method in able if has_layers(one, method)]
        if any(method.name != declared.baseline for method in able):
            planned += runs([one], able, range(one.seed, one.seed + seeds))
    if not planned:
        raise UserError(f"{name}: nothing is left to run")
    return planned


def chosen(name: str, declared: StudySpec, asked: ReproduceOptions) -> list[Method]:
    """The methods, with those that they are compared with."""
    for method in asked.methods:
        if method not in declared.methods:
            why = declared.missing.get(method, f"there: {', '.join(declared.methods)}")
            raise UserError(f"--methods {method}: not in {name}; {why}")
    if not asked.methods:
        for method, why in declared.missing.items():
            told(f"left out: {method}: {why}")
    wanted = set(asked.methods or declared.methods)
    wanted |= {declared.controls[method] for method in wanted if method in declared.controls}
    if wanted - declared.controls.keys() - set(declared.controls.values()):
        wanted.add(declared.baseline)
    return [Method(method, settings) for method, settings in declared.methods.items() if method in wanted]


def places(declared: StudySpec, asked: ReproduceOptions) -> Mapping[str, str | None]:
    return asked.places or dict.fromkeys(declared.tasks)


def base(declared: StudySpec, task: str, place: str | None, given: Overrides) -> RunConfig:
    """The settings that all methods of a task share: the study's, and what the user says otherwise.

    A task that is not the study's has the settings of its first.
    """
    own = declared.tasks.get(task, next(iter(declared.tasks.values())))
    made: Any = get_task_type(task).config_class
    known = {field.name for field in fields(made)}
    settings = {name: value for name, value in {**own, **given}.items() if name in known}
    found: RunConfig = made(**{**settings, "task": task, **({} if place is None else {"data": (place,)})})
    return found


def has_layers(one: RunConfig, method: Method) -> bool:
    """Whether the model has the layers that a method guides; a model that is not at hand is taken to have them."""
    wanted = [int(guide.partition("@")[2]) for guide in method.settings.get("guides", ()) if "@" in guide]
    file = Path(method.settings.get("model", one.model)) / "config.json"
    if not wanted or not file.is_file():
        return True
    count = json.loads(file.read_text(encoding="utf-8")).get("num_hidden_layers", max(wanted) + 1)
    if max(wanted) < count:
        return True
    told(f"left out: {method.name}: the model has {count} layers")
    return False


def run_reproduction(running: Study, machine: Resources) -> bool:
    """Do what waits, and tell what came out beside the paper; False if some of it failed.

    Raises:
        KeyboardInterrupt: stopped; the study can be resumed.
    """
    return conducted(running, machine, lambda: conclude(running), command="reproduce")


def conclude(running: Study) -> None:
    """The answer of what is finished, and the paper's figures beside it, on the terminal and in files."""
    name = running.folder.kind
    paper, declared = published()[name], get_study(name)
    found = analyze(running.results(), running.about["baseline"], running.about["controls"])
    grids = beside(running.results(), paper)
    words = [f"{name}: {declared.asks}", f"{paper.paper}, {paper.where}. It says: {paper.says}.", *declared.notes]
    figures = [] if declared.axis is None else [picture(task, declared.axis) for task in found.tasks]
    report.write(found, running.folder.path, words=words, grids=grids, figures=figures)
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    for line in words:
        console.print(line, markup=False)
    found.tell(console)
    for grid in grids:
        console.print(tables.rich(grid))


def picture(task: TaskComparison, axis: Axis) -> tuple[Figure, str]:
    """A line for each kind of method over the figure's axis."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for method in task.methods:
        name, places = axis.places[method.name]
        lines.setdefault(name, []).extend((place, method.mean) for place in places)
    drawn = draw_curves(
        {name: [sorted(points)] for name, points in lines.items()}, x=axis.label, y=tables.heading(task.measure)
    )
    return drawn, f"{task.task}: means over seeds, as the paper's figure shows them."


def told(line: str) -> None:
    print(f"headwise: {line}", file=sys.stderr)
