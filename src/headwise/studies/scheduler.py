"""The queue of a study: which run is next, and what happened to the others. An engine executes the runs.

Engines are processes on this machine (`worker_pool.py`) and tasks of a Ray cluster (`ray_tasks.py`).
"""

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Protocol

from headwise.studies.outages import DatabaseLostError
from headwise.studies.progress import Progress
from headwise.studies.run_storage import fetch_results
from headwise.studies.study_dir import StudyDir
from headwise.studies.trials import ClaimedTrial, Trials, TrialStatus, run_status
from headwise.studies.worker import Outcome

#: Seconds between two updates of the progress.
POLL_SECONDS = 0.5


class AddRuns(Protocol):
    """Adds runs that depend on the results of others, such as those of tuned methods."""

    @property
    def num_planned(self) -> int:
        """How many runs are still to be added."""

    def __call__(self, statuses: Sequence[TrialStatus]) -> bool:
        """Return whether runs were added to the study's trials. Called with the status of every run when runs end."""


class Engine(AbstractContextManager["Engine"], Protocol):
    """Executes runs. The runs in progress are stopped at the end of the `with` block."""

    def has_capacity(self, group: str, num_to_start: int) -> bool:
        """Return whether a run can be submitted now.

        Args:
            group: the group of the next run. Runs of one group need the same memory.
            num_to_start: how many runs have not started.
        """
        ...

    def submit(self, claimed: ClaimedTrial) -> None:
        """Execute a run."""
        ...

    def wait(self, seconds: float) -> Sequence[Outcome]:
        """Return the runs that have ended. Wait for the first one, up to this time."""
        ...

    def places(self) -> Mapping[int, str]:
        """Return where the trials in progress run."""
        ...


class Scheduler:
    """The runs of a study and their states, in memory. Every change is written to the database.

    The command that creates a scheduler holds the lock of the study, so that no other process changes its trials.

    Args:
        trials: the study's trials.
    """

    def __init__(self, trials: Trials) -> None:
        self.trials = trials
        trials.release_running()  # of a command that died
        self.trials_of_run = trials.by_run()
        self.status_of_run = {key: run_status(of_run) for key, of_run in self.trials_of_run.items()}
        self.waiting = deque(status for status in self.status_of_run.values() if status.state == "waiting")
        self.running: dict[int, ClaimedTrial] = {}

    @property
    def statuses(self) -> list[TrialStatus]:
        """The status of every run."""
        return list(self.status_of_run.values())

    @property
    def num_to_start(self) -> int:
        """The number of runs that have not started, including those that are not sampled yet."""
        return len(self.waiting) + self.trials.num_to_sample(len(self.status_of_run))

    @property
    def is_finished(self) -> bool:
        """Whether all runs have ended."""
        return not self.num_to_start and not self.running

    @property
    def next_group(self) -> str:
        """The group of the next run."""
        run = self.waiting[0].run if self.waiting else next(iter(self.status_of_run.values())).run
        return self.trials.group(run)

    def claim(self) -> ClaimedTrial | None:
        """Start the next run. Return None if all have started."""
        if self.waiting:
            claimed = self.trials.start(self.waiting[0])
            self.waiting.popleft()
        elif self.num_to_start:
            claimed = self.trials.sample()
        else:
            return None
        self.running[claimed.trial_id] = claimed
        self._reload(claimed)
        return claimed

    def end(self, outcome: Outcome) -> None:
        """Record how a run ended. A run whose worker died, or that was interrupted, is started again."""
        claimed = self.running[outcome.trial_id]
        if outcome.place:
            self.trials.set_attribute(claimed, "place", outcome.place)
        if outcome.state == "finished" and outcome.value is not None:
            self.trials.finish(claimed, outcome.value)
        elif outcome.state == "failed":
            self.trials.fail(claimed, outcome.error)
        elif outcome.state == "pruned":
            self.trials.prune(claimed)
        elif outcome.state == "died":
            self.trials.record_death(claimed)
        else:
            self.trials.release(claimed)
        del self.running[outcome.trial_id]
        status = self._reload(claimed)
        if status.state == "waiting":
            self.waiting.append(status)

    def add_new(self) -> None:
        """Append the runs to the queue that were added to the study's trials."""
        for key, trials_of_run in self.trials.by_run().items():
            if key not in self.status_of_run:
                self.trials_of_run[key] = trials_of_run
                self.status_of_run[key] = run_status(trials_of_run)
                self.waiting.append(self.status_of_run[key])

    def release_running(self) -> None:
        """Return the runs in progress to the queue, unless the database cannot be reached.

        The database says which runs these are: an interrupt can come when a run has started but is not in `running`.
        """
        with self.trials.outages.not_waiting(), suppress(DatabaseLostError):  # else --resume does it
            self.trials.release_running()

    def _reload(self, claimed: ClaimedTrial) -> TrialStatus:
        trial = self.trials.read(claimed.trial_id)
        others = [x for x in self.trials_of_run.get(claimed.run.key, []) if x._trial_id != claimed.trial_id]
        self.trials_of_run[claimed.run.key] = [*others, trial]
        status = run_status(self.trials_of_run[claimed.run.key])
        self.status_of_run[claimed.run.key] = status
        return status


def run_study(study_dir: StudyDir, trials: Trials, engine: Engine, add_runs: AddRuns | None = None) -> None:
    """Execute all runs of a study, and show its progress.

    Args:
        study_dir: the study's directory.
        trials: the study's trials.
        engine: executes the runs.
        add_runs: adds runs that depend on the results of others.

    Raises:
        KeyboardInterrupt: the study was stopped; it can be resumed.
    """
    scheduler = Scheduler(trials)
    try:
        with engine, Progress(study_dir) as progress:

            def show_progress() -> None:
                num_planned = 0 if add_runs is None else add_runs.num_planned
                num_to_start = scheduler.num_to_start + num_planned
                progress.update(scheduler.statuses, num_to_start=num_to_start, places=engine.places())

            while True:
                show_progress()
                if scheduler.is_finished:
                    return
                while scheduler.num_to_start and engine.has_capacity(scheduler.next_group, scheduler.num_to_start):
                    claimed = scheduler.claim()
                    assert claimed is not None
                    engine.submit(claimed)
                outcomes = engine.wait(POLL_SECONDS)
                for outcome in outcomes:
                    fetch_results(study_dir, scheduler.running[outcome.trial_id].run)
                    scheduler.end(outcome)
                if outcomes and add_runs is not None:
                    show_progress()  # the trials that have ended, before the settings that are chosen from them
                    if add_runs(scheduler.statuses):
                        scheduler.add_new()
    finally:
        scheduler.release_running()
