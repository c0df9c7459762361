"""What a study has to run, is running and has finished: an Optuna study that any number of workers share.

Every run is a trial that waits until a worker claims it. A trial whose worker gives no sign of life any more failed,
and the run gets another trial. So a run may have several trials, of which at most one lives and at most one counts.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import optuna
from optuna.exceptions import DuplicatedStudyError, ExperimentalWarning, StorageInternalError, UpdateFinishedTrialError
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState, create_trial

from headwise.errors import UserError
from headwise.studies.plan import Run
from headwise.studies.storage import one_at_a_time

State = Literal["waiting", "running", "finished", "pruned", "failed"]

#: A run whose workers died so often is not tried again: it may be what kills them.
ATTEMPTS = 3

T = TypeVar("T")


@dataclass(frozen=True)
class TrialStatus:
    """A run as it stands.

    Args:
        run: which.
        state: where it is.
        trial: the trial that says so.
        number: of its first trial: runs are done in this order.
        fresh: whether it waits as a trial; one whose worker was lost or interrupted has to be enqueued again.
    """

    run: Run
    state: State
    trial: FrozenTrial
    number: int
    fresh: bool = True

    @property
    def value(self) -> float | None:
        return self.trial.value if self.state == "finished" else None

    @property
    def error(self) -> str:
        return str(self.trial.user_attrs.get("error", "its workers died")) if self.state == "failed" else ""

    @property
    def seconds(self) -> float:
        taken = self.trial.duration
        return 0.0 if taken is None else taken.total_seconds()


@dataclass(frozen=True)
class ClaimedTrial:
    """A run that a worker has, and nobody else."""

    run: Run
    trial: int


class Trials:
    """A study's runs in a database.

    Args:
        storage: see `headwise.studies.storage.connect`.
        name: the study's.
    """

    def __init__(self, storage: RDBStorage, name: str) -> None:
        self.storage, self.name = storage, name
        try:
            self.study = optuna.load_study(study_name=name, storage=storage)
        except KeyError:
            raise UserError(f"--storage {storage.engine.url}: there is no study {name!r}") from None
        self.id = storage.get_study_id_from_name(name)

    @classmethod
    def create(cls, storage: RDBStorage, name: str, about: Mapping[str, Any], *, maximise: bool = True) -> "Trials":
        """A new study.

        Args:
            storage: where.
            name: what optuna-dashboard calls it.
            about: what to keep with it.
            maximise: whether a higher figure is better.
        """
        try:
            study = optuna.create_study(
                storage=storage, study_name=name, direction="maximize" if maximise else "minimize"
            )
        except DuplicatedStudyError:
            raise UserError(f"--storage {storage.engine.url}: there is a study {name!r} already") from None
        for key, value in about.items():
            study.set_user_attr(key, value)
        return cls(storage, name)

    @property
    def about(self) -> dict[str, Any]:
        """What is kept with the study."""
        return self.storage.get_study_user_attrs(self.id)

    def alone(self) -> AbstractContextManager[None]:
        return one_at_a_time(self.storage, self.id)

    def entries(self) -> list[TrialStatus]:
        """All runs as they stand, in their order."""
        trials: dict[tuple[str, str, int], list[FrozenTrial]] = {}
        for trial in self.study.get_trials(deepcopy=False):
            known = trial.user_attrs
            if "settings" in known:
                trials.setdefault((known["task"], known["method"], known["seed"]), []).append(trial)
        return [standing(found) for found in trials.values()]

    def enqueue(self, runs: Iterable[Run], *, again: bool = False) -> None:
        """Make sure that every run is there once.

        Args:
            runs: of which some may be there already.
            again: those that failed, too, are to be run again.
        """
        with self.alone():
            there = {entry.run.key: entry for entry in self.entries()}
            for run in runs:
                if run.key not in there or (again and there[run.key].state == "failed"):
                    self.add(run)

    def add(self, run: Run, params: Mapping[str, Any] | None = None, distributions: Any = None) -> None:
        self.study.add_trial(
            create_trial(
                state=TrialState.WAITING,
                user_attrs=run.written(),
                params=dict(params or {}),
                distributions=dict(distributions or {}),
            )
        )

    def claim(self, worker: str) -> ClaimedTrial | None:
        """The next run that waits, or whose worker was lost; None if there is none.

        Args:
            worker: who will do it.
        """
        with self.alone():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                fail_stale_trials(self.study)
            for entry in self.entries():
                if entry.state == "waiting":
                    return self.take(entry, worker)
            return self.drawn(worker)

    def to_begin(self, entries: Sequence[TrialStatus]) -> int:
        """How many runs nobody has begun yet."""
        return sum(entry.state == "waiting" for entry in entries)

    def over(self, entries: Sequence[TrialStatus]) -> bool:
        """Whether nothing is left to do."""
        return self.to_begin(entries) == 0 and not any(entry.state == "running" for entry in entries)

    def drawn(self, worker: str) -> ClaimedTrial | None:
        """A run that nobody planned; only a search has such."""
        return None

    def looked_on(self, claim: ClaimedTrial) -> AbstractContextManager[None]:
        """While it lasts, a run's dev figures are followed, where that is of use."""
        return nullcontext()

    def take(self, entry: TrialStatus, worker: str) -> ClaimedTrial:
        if not entry.fresh:
            self.add(entry.run, entry.trial.params, entry.trial.distributions)
            entry = next(other for other in self.entries() if other.run.key == entry.run.key)
        trial = entry.trial._trial_id
        self.storage.record_heartbeat(trial)  # first: one without a sign of life would never be missed
        self.storage.set_trial_user_attr(trial, "worker", worker)
        self.storage.set_trial_state_values(trial, TrialState.RUNNING)
        return ClaimedTrial(entry.run, trial)

    def alive(self, claim: ClaimedTrial) -> bool:
        """Give a sign of life. False means that another has the run by now."""
        self.storage.record_heartbeat(claim.trial)
        return self.storage.get_trial(claim.trial).state == TrialState.RUNNING

    def finished(self, claim: ClaimedTrial, value: float) -> None:
        """The run is done, and this is its figure.

        Raises:
            UserError: the figure is no number.
        """
        if math.isnan(value):
            raise UserError("the figure is not a number: training diverged")
        self.end(claim, TrialState.COMPLETE, [value])

    def failed(self, claim: ClaimedTrial, error: str) -> None:
        """The run cannot be done, for this reason."""
        self.end(claim, TrialState.FAIL, error=error)

    def interrupted(self, claim: ClaimedTrial) -> None:
        """The worker stops; the run is to be done later."""
        self.end(claim, TrialState.FAIL, interrupted=True)

    def pruned(self, claim: ClaimedTrial) -> None:
        """The run is not worth finishing."""
        self.end(claim, TrialState.PRUNED)

    def lost(self, worker: str, **known: Any) -> None:
        """The worker is dead; what it had is to be done by another."""
        with self.alone():
            for entry in self.entries():
                if entry.state == "running" and entry.trial.user_attrs.get("worker") == worker:
                    self.end(ClaimedTrial(entry.run, entry.trial._trial_id), TrialState.FAIL, **known)

    def end(self, claim: ClaimedTrial, state: TrialState, values: Sequence[float] | None = None, **known: Any) -> None:
        try:
            for name, value in known.items():
                patiently(partial(self.storage.set_trial_user_attr, claim.trial, name, value))
            patiently(partial(self.storage.set_trial_state_values, claim.trial, state, values))
        except UpdateFinishedTrialError:
            pass  # it was taken for lost; what counts is the trial of whoever has it now


def standing(trials: Sequence[FrozenTrial]) -> TrialStatus:
    """Where a run is, by its trials."""
    by_state = {trial.state: trial for trial in reversed(trials)}  # the first of each state
    last = trials[-1]
    entry = partial(TrialStatus, Run.read(last.user_attrs), number=trials[0].number)
    states: dict[TrialState, State] = {
        TrialState.COMPLETE: "finished",
        TrialState.RUNNING: "running",
        TrialState.WAITING: "waiting",
    }
    for found, state in states.items():
        if found in by_state:
            return entry(state=state, trial=by_state[found])
    if last.state == TrialState.PRUNED:
        return entry(state="pruned", trial=last)
    deaths = sum(not ({"error", "interrupted"} & trial.user_attrs.keys()) for trial in trials)
    if "error" in last.user_attrs or deaths >= ATTEMPTS:
        return entry(state="failed", trial=last)
    return entry(state="waiting", trial=last, fresh=False)


def patiently(action: Callable[[], T], *, tries: int = 8) -> T:
    """Try again, for some minutes, while the database cannot be reached."""
    for number in range(tries - 1):
        try:
            return action()
        except StorageInternalError:
            time.sleep(2**number)
    return action()
