"""Trials of a study: the runs are stored as trials of an Optuna study.

One command runs a study at a time. It alone starts and ends trials. If a worker dies, its trial fails and the run gets
a new trial. A run can therefore have several trials. At most one of them is running. The result is that of the first
complete one.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import DuplicatedStudyError, UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from headwise.errors import UserError
from headwise.studies.methods import SEPARATOR
from headwise.studies.outages import Outages, refuses_damage, waits_for_database
from headwise.studies.plan import Run
from headwise.studies.storage import display_url

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
    """A run that has been started, and its trial.

    Args:
        run: the run.
        trial_id: its trial.
        group: runs of one group need the same memory.
    """

    run: Run
    trial_id: int
    group: str = ""


class Trials:
    """The runs of a study in a database.

    Args:
        storage: the database, see `headwise.studies.storage.connect`.
        name: the study's name.

    Raises:
        UserError: the database has no such study.
    """

    def __init__(self, storage: BaseStorage, name: str) -> None:
        self.storage, self.name = storage, name
        self.outages = Outages(display_url(storage))
        self.study, self.id = self._load_study()

    @waits_for_database
    @refuses_damage
    def _load_study(self) -> tuple[optuna.Study, int]:
        try:
            study_id = self.storage.get_study_id_from_name(self.name)
        except KeyError:
            raise UserError(f"--storage {self.outages.url}: there is no study {self.name!r}") from None
        return optuna.load_study(study_name=self.name, storage=self.storage), study_id

    @classmethod
    def create(cls, storage: BaseStorage, name: str, metadata: Mapping[str, Any], *, maximize: bool = True) -> "Trials":
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
        direction: Literal["maximize", "minimize"] = "maximize" if maximize else "minimize"
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

    def set_metadata(self, name: str, value: Any) -> None:
        """Store a value with the study."""
        self.outages.run(partial(self.study.set_user_attr, name, value))

    @property
    @waits_for_database
    @refuses_damage
    def maximize(self) -> bool:
        """Whether a higher metric is better."""
        return self.study.direction.name == "MAXIMIZE"

    @waits_for_database
    @refuses_damage
    def by_run(self) -> dict[tuple[str, str, int], list[FrozenTrial]]:
        """Return the trials of every run, in the order in which the runs were added."""
        trials_of_run: dict[tuple[str, str, int], list[FrozenTrial]] = {}
        for trial in self.study.get_trials(deepcopy=False):
            attributes = trial.user_attrs
            if "config" in attributes:
                key = attributes["task"], attributes["method"], attributes["seed"]
                trials_of_run.setdefault(key, []).append(trial)
        for trials in trials_of_run.values():
            run_status(trials)  # raises an error if an attribute is damaged
        return trials_of_run

    def statuses(self) -> list[TrialStatus]:
        """Return the status of every run, in the order in which the runs were added."""
        return [run_status(trials) for trials in self.by_run().values()]

    @waits_for_database
    def enqueue(self, runs: Iterable[Run], *, retry_failed: bool = False) -> None:
        """Add the runs that the study does not have yet.

        Args:
            runs: the runs.
            retry_failed: whether to add failed runs again.
        """
        statuses = {status.run.key: status for status in self.statuses()}
        for run in runs:
            if run.key not in statuses or (retry_failed and statuses[run.key].state == "failed"):
                self._add(run)

    @waits_for_database
    def start(self, status: TrialStatus) -> ClaimedTrial:
        """Start a waiting run. A run whose last trial has ended gets a new one."""
        if self.outages.started is not None:  # repeated: the trial may have been added when the database was lost
            status = run_status(self.by_run()[status.run.key])
        trial_id = status.trial._trial_id
        if not status.is_enqueued:
            trial_id = self._add(status.run, status.trial.params, status.trial.distributions)
        self.storage.set_trial_state_values(trial_id, TrialState.RUNNING)
        return ClaimedTrial(status.run, trial_id, self.group(status.run))

    def sample(self) -> ClaimedTrial:
        """Sample a new run and start it. Only a search (`studies/search.py`) has such runs."""
        raise NotImplementedError

    def group(self, run: Run) -> str:
        """Return the group of a run. Runs of one group need the same memory."""
        return f"{run.task}, {run.method.partition(SEPARATOR)[0]}"  # the trials of a method, too

    def num_to_sample(self, num_runs: int) -> int:
        """Return how many runs are still to be sampled, given the number of runs so far."""
        return 0

    @waits_for_database
    def read(self, trial_id: int) -> FrozenTrial:
        """Read a trial."""
        return self.storage.get_trial(trial_id)

    def pruning(self, claimed: ClaimedTrial) -> AbstractContextManager[None]:
        """Return a context in which a search can stop the run early."""
        return nullcontext()

    def finish(self, claimed: ClaimedTrial, value: float) -> None:
        """Record the metric of a finished run."""
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

    def record_death(self, claimed: ClaimedTrial) -> None:
        """Record that the worker of a run died. After `MAX_WORKER_DEATHS` deaths, the run has failed."""
        self._end(claimed, TrialState.FAIL)

    @waits_for_database
    def release_running(self) -> None:
        """Return running runs to the queue. The caller holds the study's lock, so their command has died."""
        for status in self.statuses():
            if status.state == "running":
                self.release(ClaimedTrial(status.run, status.trial._trial_id))

    def set_attribute(self, claimed: ClaimedTrial, name: str, value: Any) -> None:
        """Store a value with a running trial."""
        self.outages.run(partial(self.storage.set_trial_user_attr, claimed.trial_id, name, value))

    def _add(
        self,
        run: Run,
        params: Mapping[str, Any] | None = None,
        distributions: Mapping[str, BaseDistribution] | None = None,
    ) -> int:
        trial = create_trial(
            state=TrialState.WAITING,
            user_attrs=run.to_attributes(),
            params=dict(params or {}),
            distributions=dict(distributions or {}),
        )
        return self.storage.create_new_trial(self.id, template_trial=trial)

    def _end(
        self, claimed: ClaimedTrial, state: TrialState, values: Sequence[float] | None = None, **attributes: Any
    ) -> None:
        try:
            for name, value in attributes.items():
                self.outages.run(partial(self.storage.set_trial_user_attr, claimed.trial_id, name, value))
            self.outages.run(partial(self.storage.set_trial_state_values, claimed.trial_id, state, values))
        except UpdateFinishedTrialError:
            pass  # repeated after an outage, which hid that the trial was ended


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
