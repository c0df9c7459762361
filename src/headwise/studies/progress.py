"""Progress of a study on stderr: a bar over all runs, and a line for each run that ended."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as ProgressBar

from headwise.studies.study_dir import StudyDir
from headwise.studies.trials import TrialStatus

logger = logging.getLogger(__name__)

END_STATES = ("finished", "failed", "pruned")


class Progress:
    """Progress of a study, shown if messages of the level INFO are logged. The bar is for terminals only.

    Args:
        study_dir: the study's directory.
    """

    def __init__(self, study_dir: StudyDir) -> None:
        self.study_dir = study_dir
        self.console = Console(
            stderr=True, highlight=False, soft_wrap=True, quiet=not logger.isEnabledFor(logging.INFO)
        )
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
        )
        self.bar = ProgressBar(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)
        self.bar_task = self.bar.add_task("runs", total=None, status="")
        self.reported_runs: set[tuple[str, str, int]] | None = None
        self.reported_errors: set[str] = set()
        self.finished_seconds, self.num_finished = 0.0, 0

    def __enter__(self) -> "Progress":
        self.bar.start()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def update(
        self, statuses: Sequence[TrialStatus], *, num_to_start: int, places: Mapping[int, str] | None = None
    ) -> None:
        """Update the bar and print a line for each run that ended since the last call.

        Args:
            statuses: all runs so far.
            num_to_start: how many runs have not started.
            places: the nodes of a cluster that the running trials run on.
        """
        ended = [status for status in statuses if status.state in END_STATES]
        num_running = sum(status.state == "running" for status in statuses)
        total = len(ended) + num_running + num_to_start
        if self.reported_runs is None:
            self.reported_runs = {status.run.key for status in ended}
            self.add_durations(ended)
            if ended:
                self.console.print(f"{len(ended)} of {total} runs have already ended")
        newly_ended = [status for status in ended if status.run.key not in self.reported_runs]
        for status in sorted(newly_ended, key=lambda status: str(status.trial.datetime_complete)):
            self.reported_runs.add(status.run.key)
            self.console.print(self.format_line(status, len(self.reported_runs), total), markup=False)
        self.add_durations(newly_ended)
        mean_seconds = self.finished_seconds / self.num_finished if self.num_finished else 0.0
        time_left = format_time_left(mean_seconds, num_running, num_to_start)
        self.bar.update(
            self.bar_task,
            completed=len(ended),
            total=total,
            status=f"{num_running} running{format_places(places or {})}, {time_left}",
        )

    def add_durations(self, ended: Sequence[TrialStatus]) -> None:
        """Count the durations of finished runs, to estimate the remaining time."""
        durations = [status.seconds for status in ended if status.state == "finished" and status.seconds > 0]
        self.finished_seconds += sum(durations)
        self.num_finished += len(durations)

    def format_line(self, status: TrialStatus, number: int, total: int) -> str:
        """Return the line of a run that ended."""
        prefix = f"[{number}/{total}] {status.run}"
        if status.state == "failed":
            log, is_new = self.study_dir.log_path(status.run), status.error not in self.reported_errors
            self.reported_errors.add(status.error)
            log_tail = "".join(f"\n    {line}" for line in read_tail(log, 5).splitlines()) if is_new else ""
            return f"{prefix}: failed: {status.error}{log_tail}\n    log: {log}"
        if status.state == "pruned":
            return f"{prefix}: stopped early, worse than other runs ({status.seconds:.0f} s)"
        place = status.trial.user_attrs.get("place")
        return f"{prefix}: {status.value:.4f} ({status.seconds:.0f} s{f', {place}' if place else ''})"


def format_places(places: Mapping[int, str]) -> str:
    """Return how many trials run on each node of a cluster.

    >>> format_places({7: "node-b", 8: "node-a", 9: "node-b"}), format_places({})
    (' (node-a: 1, node-b: 2)', '')
    """
    counts = sorted(Counter(places.values()).items())
    return f" ({', '.join(f'{place}: {count}' for place, count in counts)})" if counts else ""


def format_time_left(mean_seconds: float, num_running: int, num_to_start: int) -> str:
    """Estimate the remaining time from the mean duration of finished runs.

    >>> format_time_left(60, 2, 9), format_time_left(0, 2, 9)
    ('about 0:05:00 left', 'time left unknown')
    """
    if not mean_seconds or not num_running:
        return "time left unknown"
    seconds = mean_seconds * (num_to_start + num_running / 2) / num_running
    return f"about {timedelta(seconds=round(seconds))} left"


def read_tail(path: Path, num_lines: int) -> str:
    """Return the last lines of a log that are not empty; of a progress bar only its last state."""
    try:
        text = path.read_bytes()[-100_000:].decode(errors="replace")
    except OSError:
        return ""
    lines = [line.rsplit("\r", 1)[-1].rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    return "\n".join([line for line in lines if line][-num_lines:])
