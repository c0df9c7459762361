"""`headwise compare`: methods × tasks × seeds with paired seeds and controls."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from headwise.errors import UserError
from headwise.studies.method_checks import check_methods
from headwise.studies.methods import Method, add_controls
from headwise.studies.plan import plan_runs
from headwise.studies.study import Study, higher_is_better
from headwise.studies.trials import TrialStatus
from headwise.studies.worker_pool import Resources
from headwise.training.core.config import RunConfig

if TYPE_CHECKING:
    from headwise.studies.analysis import Analysis

logger = logging.getLogger(__name__)


def create_comparison(
    base_configs: Sequence[RunConfig],
    methods: Sequence[Method],
    seeds: int,
    out_dir: Path,
    *,
    baseline: str | None = None,
    storage: str | None = None,
    storage_path: str | None = None,
    keep_models: bool = False,
    margin: float | None = None,
) -> Study:
    """Create a comparison and enqueue its runs.

    Args:
        base_configs: for each task, the configuration that all methods share; seeds are counted from the first one's.
        methods: the methods to compare; missing controls are added.
        seeds: the number of seeds.
        out_dir: the study's directory.
        baseline: the method that the others are compared with; by default the first method's control.
        storage: the database's URL; by default a file in the directory.
        storage_path: the path or URL to which runs are copied; by default all machines share the directory.
        keep_models: keep all trained models; otherwise only those of the first seed.
        margin: the largest difference that counts as none, in the unit of the metric; by default one point.

    Raises:
        UserError: a method is unknown, appears twice or does not fit a task; or the directory is not empty.
    """
    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, got {seeds}")
    requested = [method.name for method in methods]
    all_methods, controls = add_controls(methods, asdict(base_configs[0]))
    names = [method.name for method in all_methods]
    if baseline is not None and baseline not in names:
        raise UserError(f"--baseline {baseline}: expected one of the methods {', '.join(names)}")
    for added in (name for name in names if name not in requested):
        treated = [method for method, control in controls.items() if control == added]
        logger.info("added the control %s for %s", added, ", ".join(treated))
    first_seed = base_configs[0].seed
    runs = plan_runs(base_configs, all_methods, range(first_seed, first_seed + seeds))
    check_methods(runs)
    if len(all_methods) < 2:
        raise UserError(f"--methods {' '.join(requested)}: expected at least two methods to compare")
    return Study.create(
        out_dir,
        "compare",
        runs,
        storage=storage,
        storage_path=storage_path,
        keep_models=keep_models,
        maximize=higher_is_better(base_configs),
        baseline=baseline or controls.get(requested[0], requested[0]),
        controls={} if baseline else controls,
        margin=margin,
    )


def run_comparison(study: Study, resources: Resources) -> bool:
    """Run a comparison, print its results and write its report. Return whether all runs finished.

    Raises:
        KeyboardInterrupt: the study was stopped; it can be resumed.
    """
    return run_and_report(study, resources, lambda: report_comparison(study), command="compare")


def run_and_report(study: Study, resources: Resources, report: Callable[[], None], *, command: str) -> bool:
    """Run a study and report on the finished runs. Return whether all runs finished.

    Args:
        study: the study.
        resources: the resources of this machine.
        report: prints and writes the results.
        command: the command that resumes the study.
    """
    study.run(resources)
    unfinished = study.unfinished()
    try:
        report()
        logger.info("report.html, the tables and all runs are in %s", study.study_dir.path)
    except UserError as error:
        if not unfinished:
            raise
        logger.error("%s", error)
    log_unfinished(unfinished, command, study.study_dir.path)
    return not unfinished


def report_comparison(study: Study) -> None:
    """Analyze the finished runs, write the report and print the results."""
    from headwise.studies.report import print_analysis, write_report  # takes seconds to import

    analysis = analyze_comparison(study)
    write_report(analysis, study.study_dir.path)
    print_analysis(analysis)


def analyze_comparison(study: Study) -> "Analysis":
    """Analyze the finished runs.

    Raises:
        UserError: no run has finished, or the database or the files of a run are damaged.
    """
    from headwise.studies.analysis import analyze

    metadata = study.metadata
    if not isinstance(metadata.get("baseline"), str) or not isinstance(metadata.get("controls"), dict):
        raise UserError(f"{study.study_dir.path}: the database has no baseline and controls; it is damaged")
    return analyze(study.results(), metadata["baseline"], metadata["controls"], metadata.get("margin"))


def log_unfinished(unfinished: Sequence[TrialStatus], command: str, out_dir: Path) -> None:
    """Log the runs that did not finish, one line for each reason, and the command that retries them."""
    runs_by_reason: dict[str, list[str]] = {}
    for status in unfinished:
        runs_by_reason.setdefault(status.error or status.state, []).append(str(status.run))
    for reason, runs in runs_by_reason.items():
        more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        logger.error("not finished: %s%s: %s", runs[0], more, reason)
    if unfinished:
        logger.error("to retry: headwise %s --resume --out %s", command, quote(str(out_dir)))
