"""List of studies, and a comparison of two of them."""

import logging
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headwise.errors import UserError, first_line
from headwise.studies.storage import DATABASE_FILE, connect
from headwise.studies.study import higher_is_better
from headwise.studies.study_dir import STORAGE_VARIABLE, STUDY_FILE, StudyDir
from headwise.studies.trials import Trials, TrialStatus

logger = logging.getLogger(__name__)


def print_studies(directories: Sequence[Path], storage: str | None = None) -> None:
    """Print the studies in directories or in a database; exactly two studies are also compared.

    Args:
        directories: directories of studies, or directories that contain them; by default the current directory.
        storage: the database's URL.

    Raises:
        UserError: there is no study.
    """
    by_database = storage is not None and not directories
    studies = open_database(storage) if storage and by_database else open_folders(directories or [Path()], storage)
    console = Console(soft_wrap=True, highlight=False)
    console.print(build_list(studies))
    if len(studies) == 2 and (directories or storage is not None):
        console.print(build_comparison(*studies))


def open_folders(directories: Iterable[Path], storage: str | None = None) -> list[tuple[str, Trials]]:
    """Open the studies in these directories and in their subfolders.

    A directory may come from elsewhere, so no address that only its study.yaml names is connected to.

    Args:
        directories: the directories.
        storage: the database's URL, for studies with a database outside of their directory.

    Raises:
        UserError: a directory does not exist or contains no study, or the database of a study was not named.
    """
    studies: list[tuple[str, Trials]] = []
    for directory in directories:
        if not directory.is_dir():
            raise UserError(f"{directory}: no such directory")
        if (directory / STUDY_FILE).is_file():
            paths = [directory]
        else:
            paths = sorted(path.parent for path in directory.glob(f"*/{STUDY_FILE}"))
        if not paths:
            raise UserError(f"{directory}: contains no study, nor do its subfolders")
        for path in paths:
            try:
                studies.append((str(path), open_study(StudyDir.read(path), storage)))
            except UserError as error:
                if path == directory:
                    raise
                logger.warning("skipped %s", error)
    if not studies:
        raise UserError("no study can be listed")
    return studies


def open_study(study_dir: StudyDir, storage: str | None) -> Trials:
    """Open a study for reading.

    Args:
        study_dir: the study's directory.
        storage: the database's URL that the user named, if any.

    Raises:
        UserError: the study's database was not named, or it is damaged.
    """
    url = storage or os.environ.get(STORAGE_VARIABLE)
    if study_dir.storage is not None and url is None:
        raise UserError(
            f"{study_dir.path}: its database is {study_dir.storage}, which was not connected to; if you trust the "
            f"address, add --storage {study_dir.storage}"
        )
    database = study_dir.path / DATABASE_FILE
    if study_dir.storage is None and not database.is_file():
        raise UserError(f"{database}: not found; the study was stopped before it was complete, or moved in part")
    try:
        trials = study_dir.open_trials(None if study_dir.storage is None else url)
        build_list([(str(study_dir.path), trials)])
    except UserError:
        raise
    except Exception as error:  # a database from elsewhere can contain anything
        reason = first_line(error)
        raise UserError(f"{study_dir.path}: the database is damaged or of another program ({reason:.200})") from None
    return trials


def open_database(url: str) -> list[tuple[str, Trials]]:
    """Open the studies in a database.

    Raises:
        UserError: the database contains no study of headwise.
    """
    storage = connect(url)
    names = [study.study_name for study in storage.get_all_studies() if "kind" in study.user_attrs]
    if not names:
        raise UserError("--storage: the database contains no study of headwise")
    return [(name, Trials(storage, name)) for name in names]


def build_list(studies: Sequence[tuple[str, Trials]]) -> Table:
    """Return a table with one row for each study."""
    table = Table("study", "kind", "runs", "best", "started")
    for name, trials in studies:
        statuses = trials.statuses()
        start_times = [status.trial.datetime_start for status in statuses if status.trial.datetime_start is not None]
        started = f"{min(start_times):%Y-%m-%d %H:%M}" if start_times else "not started"
        best = format_best(leave_out_candidates(trials, statuses))
        cells = name, trials.metadata["kind"], format_states(statuses), best, started
        table.add_row(*map(to_plain_text, cells))
    return table


def format_states(statuses: Sequence[TrialStatus]) -> str:
    """Return the number of runs in each state.

    >>> format_states([])
    'none'
    """
    counts = Counter[str](status.state for status in statuses)
    states = ("finished", "pruned", "running", "waiting", "failed")
    return ", ".join(f"{counts[state]} {state}" for state in states if counts[state]) or "none"


def leave_out_candidates(trials: Trials, statuses: Sequence[TrialStatus]) -> list[TrialStatus]:
    """Return the runs that are not trials of tuned methods, whose metrics are those on dev."""
    candidates = {(x["task"], y) for x in trials.metadata.get("tuning", ()) for y in x["candidates"]}
    return [status for status in statuses if (status.run.task, status.run.method) not in candidates]


def format_best(statuses: Sequence[TrialStatus]) -> str:
    """Return the method with the best mean, for each task."""
    means = {key: statistics.fmean(values) for key, values in collect_values(statuses).items()}
    configs = {status.run.task: status.run.config for status in statuses}
    lines = []
    for task in dict.fromkeys(task for task, _ in means):
        choose = max if higher_is_better([configs[task]]) else min
        best = choose((key for key in means if key[0] == task), key=lambda key: means[key])
        lines.append(f"{task}: {best[1]} {means[best]:.4f}")
    return "\n".join(lines)


def collect_values(statuses: Iterable[TrialStatus]) -> dict[tuple[str, str], list[float]]:
    """Return the metrics of finished runs by task and method."""
    values: dict[tuple[str, str], list[float]] = {}
    for status in statuses:
        if status.value is not None:
            values.setdefault((status.run.task, status.run.method), []).append(status.value)
    return values


def build_comparison(old: tuple[str, Trials], new: tuple[str, Trials]) -> Table:
    """Return a table of the metrics of two studies for the same tasks and methods."""
    old_values, new_values = (collect_values(leave_out_candidates(x, x.statuses())) for _, x in (old, new))
    table = Table("task", "method", old[0], new[0], "difference")
    for key in dict.fromkeys([*old_values, *new_values]):
        before, after = old_values.get(key, []), new_values.get(key, [])
        difference = f"{statistics.fmean(after) - statistics.fmean(before):+.4f}" if before and after else ""
        table.add_row(*map(to_plain_text, (*key, format_mean(before), format_mean(after), difference)))
    return table


def to_plain_text(cell: str) -> Text:
    """Return a cell without markup and without control characters, which names from elsewhere may contain."""
    return Text("".join(character if character.isprintable() or character == "\n" else "�" for character in str(cell)))


def format_mean(values: Sequence[float]) -> str:
    """Return mean, standard deviation and count.

    >>> format_mean([0.5, 0.7]), format_mean([0.5]), format_mean([])
    ('0.6000 ± 0.1414 (2)', '0.5000 (1)', '')
    """
    if not values:
        return ""
    std = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4f}{std} ({len(values)})"
