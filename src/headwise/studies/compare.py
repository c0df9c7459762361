"""`headwise compare`: methods × tasks × seeds, paired, with their controls."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from headwise.errors import UserError
from headwise.studies.methods import Method, with_controls
from headwise.studies.plan import runs
from headwise.studies.study import Study, higher_is_better
from headwise.studies.trials import TrialStatus
from headwise.studies.worker_pool import Resources
from headwise.training.core.config import RunConfig

if TYPE_CHECKING:
    from headwise.studies.analysis import Analysis


def create_comparison(
    bases: Sequence[RunConfig],
    methods: Sequence[Method],
    seeds: int,
    out: Path,
    *,
    baseline: str | None = None,
    storage: str | None = None,
    keep_models: bool = False,
) -> Study:
    """A comparison, all of whose runs wait.

    Args:
        bases: for each task the settings that all methods share; seeds are counted from the first one's.
        methods: what to compare; controls that are missing are added.
        seeds: how many.
        out: the study's folder.
        baseline: the method that others are compared to; by default the first method's control.
        storage: the database's address; by default a file in the folder.
        keep_models: keep all trained models; otherwise only those of the first seed.

    Raises:
        UserError: a method that is not known, is there twice, or that a task cannot have; or a folder that is taken.
    """
    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, got {seeds}")
    given = [method.name for method in methods]
    everything, controls = with_controls(methods, asdict(bases[0]))
    names = [method.name for method in everything]
    if baseline is not None and baseline not in names:
        raise UserError(f"--baseline {baseline}: is none of the methods {', '.join(names)}")
    for control in (name for name in names if name not in given):
        of = [name for name, found in controls.items() if found == control]
        print(f"Control added: {control}, which {', '.join(of)} must beat.", file=sys.stderr)
    if len(everything) < 2:
        raise UserError(f"--methods {' '.join(given)}: there is nothing to compare; name two methods at least")
    first = bases[0].seed
    return Study.begin(
        out,
        "compare",
        runs(bases, everything, range(first, first + seeds)),
        storage=storage,
        keep_models=keep_models,
        maximise=higher_is_better(bases),
        baseline=baseline or controls.get(given[0], given[0]),
        controls={} if baseline else controls,
    )


def run_comparison(study: Study, machine: Resources) -> bool:
    """Do what waits in a comparison, and tell and write what came out; False if some of it failed.

    Raises:
        KeyboardInterrupt: stopped; the study can be resumed.
    """
    return conducted(study, machine, lambda: conclude(study).tell(), command="compare")


def conducted(study: Study, machine: Resources, tell: Callable[[], None], *, command: str) -> bool:
    """Do what waits, tell what came out of what is finished, and what is missing; False if something is."""
    study.conduct(machine)
    missing = study.missing()
    try:
        tell()
        print(f"report.html, tables and all runs are in {study.folder.path}")
    except UserError as mistake:
        if not missing:
            raise
        print(f"headwise: {mistake}", file=sys.stderr)
    told_missing(missing, command, study.folder.path)
    return not missing


def conclude(study: Study) -> "Analysis":
    """The answer of what is finished, also in files."""
    from headwise.studies import report  # which takes seconds
    from headwise.studies.analysis import analyze

    found = analyze(study.results(), study.about["baseline"], study.about["controls"])
    report.write(found, study.folder.path)
    return found


def told_missing(missing: Sequence[TrialStatus], command: str, folder: Path) -> None:
    """What is not in the answer, and why: a line for each reason; and what tries it again."""
    reasons: dict[str, list[str]] = {}
    for entry in missing:
        reasons.setdefault(entry.error or entry.state, []).append(str(entry.run))
    for reason, runs_ in reasons.items():
        more = f" and {len(runs_) - 1} more" if len(runs_) > 1 else ""
        print(f"headwise: missing: {runs_[0]}{more}: {reason}", file=sys.stderr)
    if missing:
        print(f"headwise {command} --resume --out {quote(str(folder))} tries again", file=sys.stderr)
