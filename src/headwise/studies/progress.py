"""What a user sees while a study runs: a bar over all runs, and a line for each that ended."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from headwise.studies.study_dir import Folder
from headwise.studies.trials import TrialStatus

ENDED = ("finished", "failed", "pruned")


class Progress:
    """The bar.

    Args:
        folder: the study's.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[now]}")
        self.bar = Bar(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)
        self.task = self.bar.add_task("runs", total=None, now="")
        self.told: set[tuple[str, str, int]] | None = None
        self.errors: set[str] = set()

    def __enter__(self) -> "Progress":
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def update(self, entries: Sequence[TrialStatus], *, more: int) -> None:
        """Show how the study stands.

        Args:
            entries: all runs so far.
            more: how many are yet to begin.
        """
        ended = [entry for entry in entries if entry.state in ENDED]
        running = sum(entry.state == "running" for entry in entries)
        total = len(ended) + running + more
        if self.told is None:  # what was there before is no news
            self.told = {entry.run.key for entry in ended}
            if ended:
                self.console.print(f"{len(ended)} of {total} runs are there already")
        news = [entry for entry in ended if entry.run.key not in self.told]
        for entry in sorted(news, key=lambda entry: str(entry.trial.datetime_complete)):
            self.told.add(entry.run.key)
            self.console.print(self.line(entry, len(self.told), total), markup=False)
        self.bar.update(
            self.task,
            completed=len(ended),
            total=total,
            now=f"{running} at work, {left(ended, running, more)}",
        )

    def line(self, entry: TrialStatus, number: int, total: int) -> str:
        """What became of a run."""
        counted = f"[{number}/{total}] {entry.run}"
        if entry.state == "failed":
            log, known = self.folder.log(entry.run), entry.error in self.errors
            self.errors.add(entry.error)
            end = "" if known else "".join(f"\n    {line}" for line in tail(log, 5).splitlines())
            return f"{counted}: failed: {entry.error}{end}\n    log: {log}"
        if entry.state == "pruned":
            return f"{counted}: stopped early, others do better ({entry.seconds:.0f} s)"
        return f"{counted}: {entry.value:.4f} ({entry.seconds:.0f} s)"


def left(ended: Sequence[TrialStatus], running: int, more: int) -> str:
    """How long it will take, by what runs took."""
    taken = [entry.seconds for entry in ended if entry.state == "finished" and entry.seconds > 0]
    if not taken or not running:
        return "time left unknown"
    seconds = sum(taken) / len(taken) * (more + running / 2) / running
    return f"about {timedelta(seconds=round(seconds))} left"


def tail(path: Path, lines: int) -> str:
    """The end of a log."""
    try:
        said = path.read_bytes()[-100_000:].decode(errors="replace")
    except OSError:
        return ""
    # A bar writes over itself; what stands there in the end is what was seen.
    shown = [line.rsplit("\r", 1)[-1].rstrip() for line in said.replace("\r\n", "\n").split("\n")]
    return "\n".join([line for line in shown if line][-lines:])
