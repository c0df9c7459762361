"""`headwise reproduce`: run a paper's study on the published or other data, and compare with the reported values."""

import logging
from collections.abc import Sequence
from pathlib import Path

from headwise.errors import UserError
from headwise.inspection.output_dir import write_figures
from headwise.studies import tables
from headwise.studies.analysis import Analysis, analyze
from headwise.studies.compare import describe_unfinished, run_and_report
from headwise.studies.method_checks import check_encoder, check_methods
from headwise.studies.papers import load_published_tables
from headwise.studies.plan import Result, check_data
from headwise.studies.power import check_test_sets
from headwise.studies.report import CaptionedFigure, print_analysis, stdout_console, write_report
from headwise.studies.reproduction import StudySpec
from headwise.studies.reproduction.charts import draw_line_chart, draw_method_chart, name_figures
from headwise.studies.reproduction.paper_comparison import compare_with_paper, describe_missing
from headwise.studies.reproduction.planning import ReproduceOptions, describe_plan, plan_reproduction
from headwise.studies.reproduction.registry import STUDIES, get_study
from headwise.studies.reproduction.significance import build_best_tables
from headwise.studies.study import Study, higher_is_better
from headwise.studies.study_dir import StudyDir
from headwise.studies.tuning import enqueue_chosen, select_final
from headwise.studies.tuning_report import build_choice_tables, describe_tuning, write_trials
from headwise.studies.worker_pool import Resources

logger = logging.getLogger(__name__)


def create_reproduction(
    name: str,
    options: ReproduceOptions,
    out_dir: Path,
    *,
    seeds: int | None,
    storage: str | None = None,
    storage_path: str | None = None,
    keep_models: bool = False,
    margin: float | None = None,
    load_data: bool = False,
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
        margin: the largest difference that counts as none, in the unit of the metric; see `Metric.default_margin`.
        load_data: load the data of each task once before the study is created.

    Raises:
        UserError: the study, a task, a model or a method is unknown, options are invalid, or data cannot be loaded.
    """
    spec = get_study(name)
    plan = plan_reproduction(name, spec, options, spec.seeds if seeds is None else seeds)
    for run in plan.runs:
        check_data(run.config)
    if any("guides" in overrides for overrides in spec.methods.values()):
        for model in options.models:
            check_encoder(model)
    check_methods(plan.runs, option="")
    if load_data:
        check_test_sets({run.task: run.config for run in plan.runs})
    logger.info("%s: %s", name, describe_plan(plan))
    return Study.create(
        out_dir,
        name,
        plan.runs,
        storage=storage,
        storage_path=storage_path,
        keep_models=keep_models or spec.keeps_models,
        maximize=higher_is_better([run.config for run in plan.runs]),
        keep_models_of_seed=None if keep_models or spec.keeps_models else plan.first_seed,
        baseline=plan.baseline,
        controls=dict(plan.controls),
        margin=margin,
        tuning=[tuned.to_dict() for tuned in plan.tuned],
        first_seed=plan.first_seed,
        seeds=plan.seeds,
    )


def resume_reproduction(
    out_dir: Path,
    name: str | None = None,
    *,
    storage: str | None = None,
    storage_path: str | None = None,
    seeds: int | None = None,
) -> Study:
    """Open a reproduction to finish or retry its runs, or to add seeds.

    Args:
        out_dir: the study's directory.
        name: the table or figure; by default that of the study.
        storage: the database's URL, if it needs a password or has changed.
        storage_path: the path or URL to which runs are copied; it cannot change.
        seeds: the total number of seeds, to add seeds.

    Raises:
        UserError: the directory contains no reproduction, or another one, or the study has more seeds.
    """
    kind = StudyDir.read(out_dir).kind  # before failed runs are enqueued again
    if kind not in STUDIES:
        raise UserError(f"--resume: {out_dir} contains a study of the kind {kind}, expected a table or figure")
    if name not in (None, kind):
        raise UserError(f"--out {out_dir}: contains {kind}, not {name}; leave the name out, or name a new directory")
    study = Study.resume(out_dir, storage=storage, storage_path=storage_path)
    enqueue_chosen(study, seeds)
    return study


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
    results = select_final(study, study.results())
    metadata = study.metadata
    analysis = analyze(results, metadata["baseline"], metadata["controls"], metadata.get("margin"))
    extra_tables = [
        *compare_with_paper(results, published),
        *(build_best_tables(analysis, published) if spec.tests_best else ()),
        *build_choice_tables(study),
        *(() if spec.build_tables is None else spec.build_tables(results)),
    ]
    introduction = [
        f"{name}: {spec.question}",
        f"{published.citation}, {published.location}. Its conclusion: {published.conclusion}.",
        *describe_missing(results, published),
        *spec.notes,
        *study.metadata.get("power", ()),
        *describe_tuning(study),
    ]
    figures = draw_figures(name, spec, analysis, results)
    write_trials(study)
    write_report(
        analysis,
        study.study_dir.path,
        introduction=[*introduction, *describe_unfinished(study.unfinished())],
        extra_tables=extra_tables,
        extra_figures=figures,
    )
    if figures:
        write_figures(name_figures(name, figures), study.study_dir.path)
    console = stdout_console()
    for line in introduction:
        console.print(line, markup=False)
    print_analysis(analysis, console)
    for table in extra_tables:
        console.print(tables.to_rich(table))


def draw_figures(name: str, spec: StudySpec, analysis: Analysis, results: Sequence[Result]) -> list[CaptionedFigure]:
    """Return the figures of a study; none for tables."""
    if spec.draw is not None:
        return list(spec.draw(results))
    if spec.chart is not None:
        return [draw_line_chart(task, spec.chart) for task in analysis.tasks]
    return [draw_method_chart(task) for task in analysis.tasks] if "figure" in name else []
