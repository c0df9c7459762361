"""Trials of a study: the runs are stored as trials of an Optuna study, which any number of workers share.

A trial waits until a worker claims it. If the worker's heartbeats stop, the trial fails and the run gets a new trial.
A run can therefore have several trials. At most one of them is running. The result is that of the first complete one.
"""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import DuplicatedStudyError, ExperimentalWarning, UpdateFinishedTrialError
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState, create_trial

from headwise.errors import UserError
from headwise.studies.outages import Outages, refuses_damage, waits_for_database
from headwise.studies.plan import Run
from headwise.studies.storage import display_url, lock_study

State = Literal["waiting", "running", "finished", "pruned", "failed"]

#: After this many deaths of its workers, a run is not tried again, because the run may be their cause.
MAX_WORKER_DEATHS = 3


@dataclass(frozen=True)
class TrialStatus:
    """The current state of a run.

    Args:
        run: the run.
        state: its state.
        trial: the Optuna trial that determines the state.
        is_enqueued: for a waiting run, whether it has a waiting trial. It is False if the last worker died or was
            interrupted, and the run needs a new trial.
    """

    run: Run
    state: State
    trial: FrozenTrial
    is_enqueued: bool = True

    @property
    def value(self) -> float | None:
        """The metric of a finished run."""
        return self.trial.value if self.state == "finished" else None

    @property
    def error(self) -> str:
        """The error message of a failed run, otherwise empty."""
        return str(self.trial.user_attrs.get("error", "its workers died")) if self.state == "failed" else ""

    @property
    def seconds(self) -> float:
        """The duration of the trial."""
        duration = self.trial.duration
        return 0.0 if duration is None else duration.total_seconds()


@dataclass(frozen=True)
class ClaimedTrial:
    """A run that a worker has claimed, and its trial."""

    run: Run
    trial_id: int


class Trials:
    """The runs of a study in a database.

    Args:
        storage: the database, see `headwise.studies.storage.connect`.
        name: the study's name.

    Raises:
        UserError: the database has no such study.
    """

    def __init__(self, storage: RDBStorage, name: str) -> None:
        self.storage, self.name = storage, name
        self.outages = Outages(display_url(storage))
        try:
            self.study = self.outages.run(lambda: optuna.load_study(study_name=name, storage=storage))
        except KeyError:
            raise UserError(f"--storage {self.outages.url}: there is no study {name!r}") from None
        self.id = self.outages.run(lambda: storage.get_study_id_from_name(name))

    @classmethod
    def create(cls, storage: RDBStorage, name: str, metadata: Mapping[str, Any], *, maximize: bool = True) -> "Trials":
        """Create a study.

        Args:
            storage: the database.
            name: the study's name, also in optuna-dashboard.
            metadata: values to store with the study.
            maximize: whether a higher metric is better.

        Raises:
            UserError: the database has a study of this name.
        """
        outages = Outages(display_url(storage))
        direction = "maximize" if maximize else "minimize"
        try:
            if name in outages.run(lambda: optuna.get_all_study_names(storage)):
                raise DuplicatedStudyError
            # Repeated after an outage, which may have hidden that the study was created.
            create = partial(optuna.create_study, study_name=name, direction=direction, load_if_exists=True)
            study = outages.run(lambda: create(storage=storage))
        except DuplicatedStudyError:
            raise UserError(f"--storage {outages.url}: there is a study {name!r} already") from None
        for key, value in metadata.items():
            outages.run(partial(study.set_user_attr, key, value))
        return cls(storage, name)

    @property
    @waits_for_database
    @refuses_damage
    def metadata(self) -> dict[str, Any]:
        """The values stored with the study."""
        return self.storage.get_study_user_attrs(self.id)

    @property
    @waits_for_database
    @refuses_damage
    def maximize(self) -> bool:
        """Whether a higher metric is better."""
        return self.study.direction.name == "MAXIMIZE"

    def lock(self) -> AbstractContextManager[None]:
        """Return a lock that excludes all other processes of the study."""
        return lock_study(self.storage, self.id)

    @waits_for_database
    @refuses_damage
    def statuses(self) -> list[TrialStatus]:
        """Return the status of every run, in the order in which the runs were added."""
        trials_of_run: dict[tuple[str, str, int], list[FrozenTrial]] = {}
        for trial in self.study.get_trials(deepcopy=False):
            attributes = trial.user_attrs
            if "config" in attributes:
                key = attributes["task"], attributes["method"], attributes["seed"]
                trials_of_run.setdefault(key, []).append(trial)
        return [run_status(trials) for trials in trials_of_run.values()]

    @waits_for_database
    def enqueue(self, runs: Iterable[Run], *, retry_failed: bool = False) -> None:
        """Add the runs that the study does not have yet.

        Args:
            runs: the runs.
            retry_failed: whether to add failed runs again.
        """
        with self.lock():
            statuses = {status.run.key: status for status in self.statuses()}
            for run in runs:
                if run.key not in statuses or (retry_failed and statuses[run.key].state == "failed"):
                    self._add(run)

    @waits_for_database
    def claim(self, worker: str) -> ClaimedTrial | None:
        """Claim the next run that is waiting or whose worker died.

        Args:
            worker: the name of the worker.

        Returns:
            The run, or None if no run is left to start.
        """
        with self.lock():
            self._fail_stale()
            statuses = self.statuses()
            if self.outages.started is not None:  # repeated: a run may have been claimed when the database was lost
                for status in statuses:
                    if status.state == "running" and status.trial.user_attrs.get("worker") == worker:
                        return ClaimedTrial(status.run, status.trial._trial_id)
            for status in statuses:
                if status.state == "waiting":
                    return self._claim_waiting(status, worker)
            return self.sample(worker)

    def sample(self, worker: str) -> ClaimedTrial | None:
        """Sample a new run and claim it. Only a search (`studies/search.py`) has such runs."""
        return None

    def num_to_start(self, statuses: Sequence[TrialStatus]) -> int:
        """Return the number of runs that wait for a worker."""
        return sum(status.state == "waiting" for status in statuses)

    def is_finished(self, statuses: Sequence[TrialStatus]) -> bool:
        """Return whether all runs have ended."""
        return self.num_to_start(statuses) == 0 and not any(status.state == "running" for status in statuses)

    def pruning(self, claimed: ClaimedTrial) -> AbstractContextManager[None]:
        """Return a context in which a search can stop the run early."""
        return nullcontext()

    @waits_for_database
    def send_heartbeat(self, claimed: ClaimedTrial) -> bool:
        """Record a heartbeat. Return whether the run still belongs to this worker."""
        self.storage.record_heartbeat(claimed.trial_id)
        return self.storage.get_trial(claimed.trial_id).state == TrialState.RUNNING

    def finish(self, claimed: ClaimedTrial, value: float) -> None:
        """Record the metric of a finished run.

        Raises:
            UserError: the metric is NaN.
        """
        if math.isnan(value):
            raise UserError("the metric is NaN: training diverged")
        self._end(claimed, TrialState.COMPLETE, [value])

    def fail(self, claimed: ClaimedTrial, error: str) -> None:
        """Record that a run failed, and why."""
        self._end(claimed, TrialState.FAIL, error=error)

    def release(self, claimed: ClaimedTrial) -> None:
        """Return an interrupted run to the queue."""
        self._end(claimed, TrialState.FAIL, interrupted=True)

    def prune(self, claimed: ClaimedTrial) -> None:
        """Record that a run was stopped early."""
        self._end(claimed, TrialState.PRUNED)

    @waits_for_database
    def release_all(self, worker: str, *, interrupted: bool = False) -> None:
        """Return the runs of a dead worker to the queue.

        Args:
            worker: the worker's name.
            interrupted: whether the worker was stopped on purpose, which does not count as a death.
        """
        attributes: dict[str, Any] = {"interrupted": True} if interrupted else {}
        with self.lock():
            for status in self.statuses():
                if status.state == "running" and status.trial.user_attrs.get("worker") == worker:
                    self._end(ClaimedTrial(status.run, status.trial._trial_id), TrialState.FAIL, **attributes)

    @waits_for_database
    def release_stale(self) -> None:
        """Return the runs of workers without heartbeats to the queue."""
        with self.lock():
            self._fail_stale()

    def _fail_stale(self) -> None:
        if self.outages.ended_within(self.storage.grace_period or 0):
            return  # living workers could not send heartbeats
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            fail_stale_trials(self.study)

    def _add(
        self,
        run: Run,
        params: Mapping[str, Any] | None = None,
        distributions: Mapping[str, BaseDistribution] | None = None,
    ) -> None:
        self.study.add_trial(
            create_trial(
                state=TrialState.WAITING,
                user_attrs=run.to_attributes(),
                params=dict(params or {}),
                distributions=dict(distributions or {}),
            )
        )

    def _claim_waiting(self, status: TrialStatus, worker: str) -> ClaimedTrial:
        if not status.is_enqueued:
            self._add(status.run, status.trial.params, status.trial.distributions)
            status = next(other for other in self.statuses() if other.run.key == status.run.key)
        trial_id = status.trial._trial_id
        self.storage.record_heartbeat(trial_id)  # before RUNNING: a trial without a heartbeat never becomes stale
        self.storage.set_trial_user_attr(trial_id, "worker", worker)
        self.storage.set_trial_state_values(trial_id, TrialState.RUNNING)
        return ClaimedTrial(status.run, trial_id)

    def _end(
        self, claimed: ClaimedTrial, state: TrialState, values: Sequence[float] | None = None, **attributes: Any
    ) -> None:
        try:
            for name, value in attributes.items():
                self.outages.run(partial(self.storage.set_trial_user_attr, claimed.trial_id, name, value))
            self.outages.run(partial(self.storage.set_trial_state_values, claimed.trial_id, state, values))
        except UpdateFinishedTrialError:
            pass  # the trial became stale and was marked as failed; another worker takes over


def run_status(trials: Sequence[FrozenTrial]) -> TrialStatus:
    """Return the status of a run, given its trials."""
    first_by_state = {trial.state: trial for trial in reversed(trials)}
    last = trials[-1]
    status = partial(TrialStatus, Run.from_attributes(last.user_attrs))
    states: dict[TrialState, State] = {
        TrialState.COMPLETE: "finished",
        TrialState.RUNNING: "running",
        TrialState.WAITING: "waiting",
    }
    for trial_state, state in states.items():
        if trial_state in first_by_state:
            return status(state=state, trial=first_by_state[trial_state])
    if last.state == TrialState.PRUNED:
        return status(state="pruned", trial=last)
    num_deaths = sum(not ({"error", "interrupted"} & trial.user_attrs.keys()) for trial in trials)
    if "error" in last.user_attrs or num_deaths >= MAX_WORKER_DEATHS:
        return status(state="failed", trial=last)
    return status(state="waiting", trial=last, is_enqueued=False)
