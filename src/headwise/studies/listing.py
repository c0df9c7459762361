"""Past studies: how they stand, what was best, and two of them side by side."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from headwise.errors import UserError
from headwise.studies.storage import connect
from headwise.studies.study_dir import ABOUT, Folder
from headwise.studies.trials import Trials, TrialStatus

#: A task and a method, and the figures of its finished runs.
Figures = dict[tuple[str, str], list[float]]


def print_studies(folders: Sequence[Path], storage: str | None = None) -> None:
    """Print the studies in folders, or in a database; exactly two are compared as well.

    Raises:
        UserError: there is none.
    """
    found = in_database(storage, folders) if storage is not None else in_folders(folders or [Path()])
    console = Console(soft_wrap=True, highlight=False)
    console.print(listed(found))
    if len(found) == 2 and (folders or storage is not None):
        console.print(side_by_side(*found))


def in_folders(folders: Iterable[Path]) -> list[tuple[str, Trials]]:
    """The studies that are these folders, or lie in them."""
    found: list[tuple[str, Trials]] = []
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder")
        paths = [folder] if (folder / ABOUT).is_file() else sorted(path.parent for path in folder.glob(f"*/{ABOUT}"))
        if not paths:
            raise UserError(f"{folder}: holds no study, nor do the folders in it")
        found += [(str(path), Folder.read(path).ledger()) for path in paths]
    return found


def in_database(url: str, folders: Iterable[Path]) -> list[tuple[str, Trials]]:
    if folders:
        raise UserError("--storage URL lists a database; leave the folders out, or the address")
    storage = connect(url)
    ours = [study.study_name for study in storage.get_all_studies() if "kind" in study.user_attrs]
    if not ours:
        raise UserError("--storage: holds no study of headwise")
    return [(name, Trials(storage, name)) for name in ours]


def listed(found: Sequence[tuple[str, Trials]]) -> Table:
    table = Table("study", "kind", "runs", "best", "begun")
    for name, ledger in found:
        entries = ledger.entries()
        started = [entry.trial.datetime_start for entry in entries if entry.trial.datetime_start is not None]
        begun = f"{min(started):%Y-%m-%d %H:%M}" if started else "not begun"
        table.add_row(name, ledger.about["kind"], state(entries), best(ledger, entries), begun)
    return table


def state(entries: Sequence[TrialStatus]) -> str:
    """How many runs there are of each state.

    >>> state([])
    'none'
    """
    counts = Counter(entry.state for entry in entries)
    told = [f"{counts[name]} {name}" for name in ("finished", "pruned", "running", "waiting", "failed") if counts[name]]
    return ", ".join(told) or "none"


def best(ledger: Trials, entries: Sequence[TrialStatus]) -> str:
    """Of each task the method with the best mean."""
    means = {key: statistics.fmean(values) for key, values in figures(entries).items()}
    choose = max if ledger.study.direction.name == "MAXIMIZE" else min
    told = []
    for task in dict.fromkeys(task for task, _ in means):
        method = choose((method for of, method in means if of == task), key=lambda method: means[task, method])
        told.append(f"{task}: {method} {means[task, method]:.4f}")
    return "\n".join(told)


def figures(entries: Iterable[TrialStatus]) -> Figures:
    found: Figures = {}
    for entry in entries:
        if entry.value is not None:
            found.setdefault((entry.run.task, entry.run.method), []).append(entry.value)
    return found


def side_by_side(one: tuple[str, Trials], other: tuple[str, Trials]) -> Table:
    """What two studies found for the same method and task."""
    first, second = (figures(ledger.entries()) for _, ledger in (one, other))
    table = Table("task", "method", one[0], other[0], "difference")
    for task, method in dict.fromkeys([*first, *second]):
        before, after = first.get((task, method), []), second.get((task, method), [])
        difference = f"{statistics.fmean(after) - statistics.fmean(before):+.4f}" if before and after else ""
        table.add_row(task, method, shown(before), shown(after), difference)
    return table


def shown(values: Sequence[float]) -> str:
    """A mean, its spread, and of how many.

    >>> shown([0.5, 0.7]), shown([0.5]), shown([])
    ('0.6000 ± 0.1414 (2)', '0.5000 (1)', '')
    """
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4f}{spread} ({len(values)})"
