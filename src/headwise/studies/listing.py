"""List of studies, and a comparison of two of them."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from headwise.errors import UserError
from headwise.studies.storage import connect
from headwise.studies.study_dir import STUDY_FILE, StudyDir
from headwise.studies.trials import Trials, TrialStatus


def print_studies(directories: Sequence[Path], storage: str | None = None) -> None:
    """Print the studies in directories or in a database; exactly two studies are also compared.

    Args:
        directories: directories of studies, or directories that contain them; by default the current directory.
        storage: the database's URL.

    Raises:
        UserError: there is no study.
    """
    studies = open_database(storage, directories) if storage is not None else open_folders(directories or [Path()])
    console = Console(soft_wrap=True, highlight=False)
    console.print(build_list(studies))
    if len(studies) == 2 and (directories or storage is not None):
        console.print(build_comparison(*studies))


def open_folders(directories: Iterable[Path]) -> list[tuple[str, Trials]]:
    """Open the studies in these directories and in their subfolders.

    Raises:
        UserError: a directory does not exist or holds no study.
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
            raise UserError(f"{directory}: holds no study, nor do its subfolders")
        studies += [(str(path), StudyDir.read(path).open_trials()) for path in paths]
    return studies


def open_database(url: str, directories: Sequence[Path]) -> list[tuple[str, Trials]]:
    """Open the studies in a database.

    Raises:
        UserError: directories are given too, or the database holds no study of headwise.
    """
    if directories:
        raise UserError("--storage and directories cannot be combined")
    storage = connect(url)
    names = [study.study_name for study in storage.get_all_studies() if "kind" in study.user_attrs]
    if not names:
        raise UserError("--storage: the database holds no study of headwise")
    return [(name, Trials(storage, name)) for name in names]


def build_list(studies: Sequence[tuple[str, Trials]]) -> Table:
    """Return a table with one row for each study."""
    table = Table("study", "kind", "runs", "best", "started")
    for name, trials in studies:
        statuses = trials.statuses()
        start_times = [status.trial.datetime_start for status in statuses if status.trial.datetime_start is not None]
        started = f"{min(start_times):%Y-%m-%d %H:%M}" if start_times else "not started"
        best = format_best(statuses, maximize=trials.maximize)
        table.add_row(name, trials.metadata["kind"], format_states(statuses), best, started)
    return table


def format_states(statuses: Sequence[TrialStatus]) -> str:
    """Return the number of runs in each state.

    >>> format_states([])
    'none'
    """
    counts = Counter[str](status.state for status in statuses)
    states = ("finished", "pruned", "running", "waiting", "failed")
    return ", ".join(f"{counts[state]} {state}" for state in states if counts[state]) or "none"


def format_best(statuses: Sequence[TrialStatus], *, maximize: bool) -> str:
    """Return the method with the best mean, for each task."""
    means = {key: statistics.fmean(values) for key, values in collect_values(statuses).items()}
    choose = max if maximize else min
    lines = []
    for task in dict.fromkeys(task for task, _ in means):
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
    old_values, new_values = (collect_values(trials.statuses()) for _, trials in (old, new))
    table = Table("task", "method", old[0], new[0], "difference")
    for key in dict.fromkeys([*old_values, *new_values]):
        before, after = old_values.get(key, []), new_values.get(key, [])
        difference = f"{statistics.fmean(after) - statistics.fmean(before):+.4f}" if before and after else ""
        table.add_row(*key, format_mean(before), format_mean(after), difference)
    return table


def format_mean(values: Sequence[float]) -> str:
    """Return mean, standard deviation and count.

    >>> format_mean([0.5, 0.7]), format_mean([0.5]), format_mean([])
    ('0.6000 ± 0.1414 (2)', '0.5000 (1)', '')
    """
    if not values:
        return ""
    std = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4f}{std} ({len(values)})"
