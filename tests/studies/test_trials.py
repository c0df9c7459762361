"""Trials and the scheduler: every run is executed once, and none is lost."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from headwise.studies.interrupts import delay_interrupts, interrupt_on
from headwise.studies.scheduler import Scheduler
from headwise.studies.trials import MAX_WORKER_DEATHS, ClaimedTrial, TrialStatus
from headwise.studies.worker import Outcome
from tests.studies.conftest import create_study, states, two_method_runs


def test_every_run_is_started_once(tmp_path: Path, storage: str | None) -> None:
    study = create_study(tmp_path / "study", seeds=6, storage=storage)
    scheduler, started = Scheduler(study.trials), []
    while (claimed := scheduler.claim()) is not None:
        started.append(claimed.run.key)
        scheduler.end(Outcome(claimed.trial_id, "finished", 0.5))
    assert started == [run.key for run in two_method_runs(6)]
    assert scheduler.is_finished
    assert states(study) == ["finished"] * 12
    assert scheduler.statuses == study.trials.statuses(), "the states in memory are those in the database"


def test_enqueue_ignores_existing_runs(tmp_path: Path) -> None:
    study = create_study(tmp_path / "study")
    study.trials.enqueue(two_method_runs(2))
    assert [status.run for status in study.trials.statuses()] == two_method_runs(2)


def test_runs_of_a_dead_command_are_started_again(tmp_path: Path, storage: str | None) -> None:
    study = create_study(tmp_path / "study", seeds=1, storage=storage)
    dead = Scheduler(study.trials)
    first = dead.claim()
    assert first is not None
    scheduler = Scheduler(study.trials)
    again = scheduler.claim()
    assert again is not None
    assert again.run == first.run
    scheduler.end(Outcome(again.trial_id, "finished", 0.9))
    study.trials.finish(first, 0.1)  # too late
    assert [status.value for status in study.trials.statuses()] == [0.9, None], "each run counts once"


def test_run_interrupted_while_it_starts_is_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = create_study(tmp_path / "study", seeds=1)
    scheduler, start = Scheduler(study.trials), study.trials.start

    def start_and_interrupt(status: TrialStatus) -> ClaimedTrial:
        start(status)
        raise KeyboardInterrupt

    monkeypatch.setattr(study.trials, "start", start_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        scheduler.claim()
    assert states(study) == ["running", "waiting"]
    scheduler.release_running()
    assert states(study) == ["waiting", "waiting"]


def test_interrupts_wait_for_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = create_study(tmp_path / "study", seeds=1)
    scheduler, begin = Scheduler(study.trials), sqlalchemy.engine.Connection.begin
    begun = []

    def interrupt_and_begin(connection: sqlalchemy.engine.Connection) -> Any:
        monkeypatch.undo()
        os.kill(os.getpid(), signal.SIGINT)
        begun.append(begin(connection))
        return begun[0]

    monkeypatch.setattr(sqlalchemy.engine.Connection, "begin", interrupt_and_begin)
    with interrupt_on(signal.SIGINT), pytest.raises(KeyboardInterrupt):
        scheduler.claim()
    assert begun, "the transaction goes on"
    scheduler.release_running()
    assert states(study) == ["waiting", "waiting"]


def test_second_interrupt_does_not_wait() -> None:
    reached = []

    def send_interrupts() -> None:
        with delay_interrupts():
            for number in range(3):
                reached.append(number)
                os.kill(os.getpid(), signal.SIGINT)

    with interrupt_on(signal.SIGINT), pytest.raises(KeyboardInterrupt):
        send_interrupts()
    assert reached == [0, 1]
    with delay_interrupts():
        pass  # nothing is left of it


def test_run_that_kills_its_workers_fails(tmp_path: Path) -> None:
    study = create_study(tmp_path / "study", seeds=1)
    scheduler = Scheduler(study.trials)
    methods = []
    while (claimed := scheduler.claim()) is not None:
        methods.append(claimed.run.method)
        is_deadly = claimed.run.method == "plain"
        scheduler.end(Outcome(claimed.trial_id, "died") if is_deadly else Outcome(claimed.trial_id, "finished", 0.5))
    assert sorted(methods) == ["plain"] * MAX_WORKER_DEATHS + ["rpr"]
    assert states(study) == ["failed", "finished"]
    assert study.trials.statuses()[0].error == "its workers died"


def test_interruptions_do_not_count_as_deaths(tmp_path: Path) -> None:
    study = create_study(tmp_path / "study", seeds=1)
    scheduler = Scheduler(study.trials)
    for _ in range(4 * MAX_WORKER_DEATHS):
        claimed = scheduler.claim()
        assert claimed is not None
        scheduler.end(Outcome(claimed.trial_id, "interrupted"))
    assert states(study) == ["waiting", "waiting"]
