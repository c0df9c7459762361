"""`headwise reproduce`: run a paper's study on the published or other data, and compare with the reported values."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.figure import Figure

from headwise import tasks
from headwise.errors import UserError
from headwise.inspection import draw_curves
from headwise.small_files import read_json
from headwise.studies import tables
from headwise.studies.analysis import Metric, TaskComparison, analyze
from headwise.studies.compare import run_and_report
from headwise.studies.methods import Method
from headwise.studies.papers import PublishedTable, ReportedValue, load_published_tables
from headwise.studies.plan import Result, Run, plan_runs
from headwise.studies.report import print_analysis, stdout_console, write_report
from headwise.studies.reproduction import LineChart, Overrides, StudySpec
from headwise.studies.reproduction.registry import get_study
from headwise.studies.study import Study, higher_is_better
from headwise.studies.summary import format_number
from headwise.studies.worker_pool import Resources
from headwise.tasks.mind import MIND
from headwise.training.core.config import EncoderConfig, RunConfig
from headwise.training.core.defaults import MIN_PATIENCE, Settings, fill_unset
from headwise.training.core.pretrained import is_scheme
from headwise.training.registry import get_task_type

logger = logging.getLogger(__name__)

SECONDS_PER_EPOCH = "seconds per epoch"


@dataclass(frozen=True)
class ReproduceOptions:
    """Deviations from the paper that the user asks for.

    Args:
        data_by_task: tasks with the paths of their data, or None for data from the hub; empty for the study's tasks.
        methods: a selection of the study's methods; empty for all.
        overrides: training options.
    """

    data_by_task: Mapping[str, str | None]
    methods: Sequence[str]
    overrides: Overrides


def create_reproduction(
    name: str,
    options: ReproduceOptions,
    out_dir: Path,
    *,
    seeds: int | None,
    storage: str | None = None,
    storage_path: str | None = None,
    keep_models: bool = False,
) -> Study:
    """Create the study of a table or figure and enqueue its runs.

    Args:
        name: the table or figure.
        options: deviations from the paper.
        out_dir: the study's directory.
        seeds: the number of seeds; by default the study's.
        storage: the database's URL; by default a file in the directory.
        storage_path: the path or URL to which runs are copied; by default all machines share the directory.
        keep_models: keep all trained models; otherwise only those of the first seed.

    Raises:
        UserError: the study, a task or a method is unknown, or options are invalid.
    """
    spec = get_study(name)
    runs = plan_reproduction(name, spec, options, spec.seeds if seeds is None else seeds)
    methods = [run.method for run in runs]
    controls = [spec.controls[method] for method in methods if method in spec.controls]
    return Study.create(
        out_dir,
        name,
        runs,
        storage=storage,
        storage_path=storage_path,
        keep_models=keep_models,
        maximize=higher_is_better([run.config for run in runs]),
        baseline=spec.baseline if spec.baseline in methods else controls[0],
        controls=dict(spec.controls),
    )


def plan_reproduction(name: str, spec: StudySpec, options: ReproduceOptions, seeds: int) -> list[Run]:
    """Return the runs of a study. Methods that cannot be run are skipped and logged.

    Raises:
        UserError: a task or method is unknown, options are invalid, or no run is left.
    """
    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, got {seeds}")
    methods = select_methods(name, spec, options)
    data_by_task = options.data_by_task or dict.fromkeys(spec.tasks)
    runs: list[Run] = []
    for task, data in data_by_task.items():
        base = build_base_config(spec, task, data, options.overrides)
        task_methods = [method for method in methods if is_applicable(method, base)]
        if any(method.name != spec.baseline for method in task_methods):
            planned = plan_runs([base], task_methods, range(base.seed, base.seed + seeds))
            runs += [replace(run, config=use_paper_settings(run.config)) for run in planned]
    if not runs:
        raise UserError(f"{name}: no runs are left")
    return runs


def select_methods(name: str, spec: StudySpec, options: ReproduceOptions) -> list[Method]:
    """Return the selected methods together with their controls.

    Raises:
        UserError: a method is not in the study, or cannot be run.
    """
    for method in options.methods:
        if method not in spec.methods:
            reason = spec.unavailable_methods.get(method, f"expected one of {', '.join(spec.methods)}")
            raise UserError(f"--methods {method}: not in {name}; {reason}")
    if not options.methods:
        for method, reason in spec.unavailable_methods.items():
            logger.warning("skipped %s: %s", method, reason)
    selected = set(options.methods or spec.methods)
    selected |= {spec.controls[method] for method in selected if method in spec.controls}
    if selected - spec.controls.keys() - set(spec.controls.values()):
        selected.add(spec.baseline)
    return [Method(method, overrides) for method, overrides in spec.methods.items() if method in selected]


def build_base_config(spec: StudySpec, task: str, data: str | None, user_overrides: Overrides) -> RunConfig:
    """Return the configuration that all methods of a task share.

    A task that is not in the study gets the options of the study's first task.

    Args:
        spec: the study.
        task: the task.
        data: the path of its data; None for data from the hub.
        user_overrides: options that take precedence over the study's.
    """
    task_overrides = spec.tasks.get(task, next(iter(spec.tasks.values())))
    config_class: Any = get_task_type(task).config_class
    names = {field.name for field in fields(config_class)}
    options = {name: value for name, value in {**task_overrides, **user_overrides}.items() if name in names}
    config: RunConfig = config_class(**{**options, "task": task, **({} if data is None else {"data": (data,)})})
    return config


def use_paper_settings(config: RunConfig) -> RunConfig:
    """Return a configuration with the settings of the task's paper, for all options that neither study nor user set.

    They are set explicitly, because `headwise train` chooses settings for the number of rows.
    """
    if not isinstance(config, EncoderConfig):  # translation has the settings of its paper
        return config
    assert config.task is not None
    task = MIND if config.task == MIND.name else tasks.get_task(config.task)
    paper = task.from_scratch if is_scheme(config.model) else task.fine_tuning
    settings = Settings(paper.learning_rate, paper.batch_size, paper.epochs, warmup_steps=0.05)
    patience = MIN_PATIENCE if config.early_stopping_patience is None else config.early_stopping_patience
    return fill_unset(replace(config, early_stopping_patience=patience), settings, num_rows=0)


def is_applicable(method: Method, base: RunConfig) -> bool:
    """Return whether a task has the method's options and the model has the guided layers. Log the reason if not."""
    missing_options = method.overrides.keys() - {field.name for field in fields(base)}
    if missing_options:
        logger.warning("skipped %s on %s: it has no option %s", method.name, base.task, ", ".join(missing_options))
        return False
    layers = [int(guide.partition("@")[2]) for guide in method.overrides.get("guides", ()) if "@" in guide]
    model_config = Path(method.overrides.get("model", base.model)) / "config.json"
    if not layers or not model_config.is_file():  # the layers of a model on the hub are unknown
        return True
    num_layers = read_json(model_config).get("num_hidden_layers", max(layers) + 1)
    if max(layers) >= num_layers:
        logger.warning("skipped %s: the model has %d layers", method.name, num_layers)
        return False
    return True


def run_reproduction(study: Study, resources: Resources) -> bool:
    """Run a reproduction and report the results next to the paper's. Return whether all runs finished.

    Raises:
        KeyboardInterrupt: the study was stopped; it can be resumed.
    """
    return run_and_report(study, resources, lambda: report_reproduction(study), command="reproduce")


def report_reproduction(study: Study) -> None:
    """Analyze the finished runs, write the report and print the results, with the paper's values."""
    name = study.study_dir.kind
    published, spec = load_published_tables()[name], get_study(name)
    results = study.results()
    analysis = analyze(results, study.metadata["baseline"], study.metadata["controls"])
    paper_tables = compare_with_paper(results, published)
    introduction = [
        f"{name}: {spec.question}",
        f"{published.citation}, {published.location}. Its conclusion: {published.conclusion}.",
        *spec.notes,
    ]
    figures = [] if spec.chart is None else [draw_line_chart(task, spec.chart) for task in analysis.tasks]
    write_report(
        analysis,
        study.study_dir.path,
        introduction=introduction,
        extra_tables=paper_tables,
        extra_figures=figures,
    )
    console = stdout_console()
    for line in introduction:
        console.print(line, markup=False)
    print_analysis(analysis, console)
    for table in paper_tables:
        console.print(tables.to_rich(table))


def compare_with_paper(results: Sequence[Result], published: PublishedTable) -> list[tables.TextTable]:
    """Return a table of reported and own values for each task for which the paper reports values."""
    paper_tables = []
    for task in dict.fromkeys(result.task for result in results):
        rows = []
        for method, reported_values in published.values.get(task, {}).items():
            method_results = [result for result in results if (result.task, result.method) == (task, method)]
            for metric, reported in reported_values.items():
                own_values = [own_value(result, metric) for result in method_results]
                rows.append(paper_row(method, metric, reported, own_values))
        if rows:
            header = ("method", "metric", "paper", "ours", "ours − paper")
            paper_tables.append(tables.TextTable(f"{task}, compared with {published.location}", header, tuple(rows)))
    return paper_tables


def own_value(result: Result, metric: str) -> float:
    """Return the metric of a run in the paper's unit."""
    if metric == SECONDS_PER_EPOCH:
        return float(result.metrics["train_seconds"]) / float(result.metrics["epochs"])
    primary = Metric.from_metrics(result.metrics)
    return Metric(metric, primary.higher_is_better, primary.split).value(result)


def paper_row(method: str, metric: str, reported: ReportedValue, own_values: Sequence[float]) -> tuple[str, ...]:
    """
    >>> paper_row("plain", "accuracy", ReportedValue(93.01, 0.13), [92.0, 93.0])
    ('plain', 'accuracy', '93.01 ± 0.13', '92.50 ± 0.71', '−0.51')
    >>> paper_row("rpr", "accuracy", ReportedValue(93.14), [])
    ('rpr', 'accuracy', '93.14', '', '')
    """
    reported_cell = format_mean(reported.mean, reported.std)
    if not own_values:
        return method, metric, reported_cell, "", ""
    mean = fmean(own_values)
    own_cell = format_mean(mean, stdev(own_values) if len(own_values) > 1 else None)
    two_decimals = Metric("accuracy", True, "test")
    return method, metric, reported_cell, own_cell, format_number(mean - reported.mean, two_decimals, plus=True)


def format_mean(mean: float, std: float | None) -> str:
    """
    >>> format_mean(93.0, 0.131), format_mean(93.0, None)
    ('93.00 ± 0.13', '93.00')
    """
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def draw_line_chart(task: TaskComparison, chart: LineChart) -> tuple[Figure, str]:
    """Draw the mean of each method over the chart's x-axis. Return the figure and its caption."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for method in task.methods:
        line, x_values = chart.points[method.name]
        lines.setdefault(line, []).extend((x, method.mean) for x in x_values)
    figure = draw_curves(
        {line: [sorted(points)] for line, points in lines.items()}, x=chart.x_label, y=tables.metric_label(task.metric)
    )
    return figure, f"{task.task}: means over seeds, drawn like the paper's figure."
