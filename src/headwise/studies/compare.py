"""`headwise compare`: methods × tasks × seeds with paired seeds and controls."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from headwise.errors import UserError
from headwise.studies.method_checks import check_methods
from headwise.studies.methods import Method, add_controls
from headwise.studies.plan import Run, build_config, plan_runs, task_name
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
    trials: int | None = None,
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
        trials: the number of dev trials of each method, controls included; by default methods are not tuned.

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
    check_methods(sorted(runs, key=lambda run: run.method not in requested))  # errors name the user's methods
    if len(all_methods) < 2:
        raise UserError(f"--methods {' '.join(requested)}: expected at least two methods to compare")
    tuning: dict[str, Any] = {}
    if trials is not None:
        runs, tuned = plan_tuning(base_configs, all_methods, trials, seeds)
        kept_seed = None if keep_models else first_seed
        tuning = {"tuning": tuned, "first_seed": first_seed, "seeds": seeds, "keep_models_of_seed": kept_seed}
        logger.info(
            "%d trials, %d for each method, whose dev metrics select the settings of %d runs with other seeds",
            len(tuned) * trials,
            trials,
            len(tuned) * seeds,
        )
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
        **tuning,
    )


def plan_tuning(
    base_configs: Sequence[RunConfig], methods: Sequence[Method], trials: int, seeds: int
) -> tuple[list[Run], list[dict[str, Any]]]:
    """Return the runs of all methods' first trials on all tasks, and the tuned methods as the database stores them.

    Raises:
        UserError: the number of trials is below 2, or that of seeds too large.
    """
    from headwise.studies.trial_design import build_trials  # takes a second to import
    from headwise.studies.tuning import check_seeds, plan_trials

    check_seeds(seeds)

    if trials < 2:
        raise UserError(f"--tune must be at least 2, got {trials}")
    runs: list[Run] = []
    tuned = []
    for base in base_configs:
        for method in methods:
            config = build_config(base, method, base.seed)
            planned = plan_trials(base, method, build_trials(config, method, trials), task_name(base))
            tuned.append(planned[0].to_dict())
            runs += planned[1]
    return runs, tuned


def resume_comparison(
    out_dir: Path, *, storage: str | None = None, storage_path: str | None = None, seeds: int | None = None
) -> Study:
    """Open a comparison to finish or retry its runs, or to add seeds.

    Args:
        out_dir: the study's directory.
        storage: the database's URL, if it needs a password or has changed.
        storage_path: the path or URL to which runs are copied; it cannot change.
        seeds: the total number of seeds, to add seeds.

    Raises:
        UserError: the directory contains no comparison, or the study has more seeds.
    """
    from headwise.studies.tuning import enqueue_chosen, get_tuned_methods

    is_tuned = bool(get_tuned_methods(Study.open(out_dir, storage)))
    study = Study.resume(
        out_dir, storage=storage, storage_path=storage_path, seeds=None if is_tuned else seeds, kinds=["compare"]
    )
    if is_tuned:
        enqueue_chosen(study, seeds)
    return study


def run_comparison(study: Study, resources: Resources) -> bool:
    """Run a comparison, print its results and write its report. Return whether all runs finished.

    Raises:
        KeyboardInterrupt: the study was stopped; it can be resumed.
    """
    return run_and_report(study, resources, lambda: report_comparison(study), command="compare")


def run_and_report(study: Study, resources: Resources, report: Callable[[], None], *, command: str) -> bool:
    """Log the power of a study, run it and report on the finished runs. Return whether all runs finished.

    Args:
        study: the study.
        resources: the resources of this machine.
        report: prints and writes the results.
        command: the command that resumes the study.
    """
    from headwise.studies.power import log_expected_power, log_measured_power  # takes seconds to import
    from headwise.studies.tuning import ChosenRuns, get_tuned_methods

    log_expected_power(study)
    chosen_runs = ChosenRuns(study, lambda: log_measured_power(study)) if get_tuned_methods(study) else None
    study.run(resources, chosen_runs)
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
    from headwise.studies.report import print_analysis, stdout_console, write_report  # takes seconds to import
    from headwise.studies.tables import to_rich
    from headwise.studies.tuning_report import build_choice_tables, build_trial_tables, describe_tuning, write_trials

    analysis = analyze_comparison(study)
    choices = build_choice_tables(study)
    tuning_notes = describe_tuning(study)
    notes = [*study.metadata.get("power", ()), *tuning_notes, *describe_unfinished(study.unfinished())]
    extra_tables = [*choices, *build_trial_tables(study)]
    write_trials(study)
    write_report(analysis, study.study_dir.path, introduction=notes, extra_tables=extra_tables)
    console = stdout_console()
    print_analysis(analysis, console)
    for table in choices:
        console.print(to_rich(table))
    for note in tuning_notes:
        console.print(note, markup=False)


def analyze_comparison(study: Study) -> "Analysis":
    """Analyze the finished runs.

    Raises:
        UserError: no run has finished, or the database or the files of a run are damaged.
    """
    from headwise.studies.analysis import analyze
    from headwise.studies.tuning import select_final

    metadata = study.metadata
    if not isinstance(metadata.get("baseline"), str) or not isinstance(metadata.get("controls"), dict):
        raise UserError(f"{study.study_dir.path}: the database has no baseline and controls; it is damaged")
    results = select_final(study, study.results())
    return analyze(results, metadata["baseline"], metadata["controls"], metadata.get("margin"))


def describe_unfinished(unfinished: Sequence[TrialStatus]) -> list[str]:
    """Return the runs that did not finish, one line for each reason."""
    runs_by_reason: dict[str, list[str]] = {}
    for status in unfinished:
        runs_by_reason.setdefault(status.error or status.state, []).append(str(status.run))
    return [
        f"not finished: {runs[0]}{f' and {len(runs) - 1} more' if len(runs) > 1 else ''}: {reason}"
        for reason, runs in runs_by_reason.items()
    ]


def log_unfinished(unfinished: Sequence[TrialStatus], command: str, out_dir: Path) -> None:
    """Log the runs that did not finish, and the command that retries them."""
    for line in describe_unfinished(unfinished):
        logger.error("%s", line)
    if unfinished:
        logger.error("to retry: headwise %s --resume --out %s", command, quote(str(out_dir)))
