"""Trials: every run is executed once, whichever worker claims it, and none is lost."""

import threading
from pathlib import Path

from headwise.studies.storage import connect
from headwise.studies.trials import MAX_WORKER_DEATHS, Trials
from tests.studies.conftest import create_study, states, two_method_runs


def test_workers_claim_every_run_once(tmp_path: Path, storage: str | None) -> None:
    study = create_study(tmp_path / "study", seeds=6, storage=storage)
    claimed_runs: list[tuple[str, str, int]] = []

    def claim_all(name: str) -> None:
        trials = Trials(connect(study.url), study.study_dir.name)
        while (claimed := trials.claim(name)) is not None:
            claimed_runs.append(claimed.run.key)
            trials.finish(claimed, 0.5)

    threads = [threading.Thread(target=claim_all, args=(f"worker {i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed_runs) == sorted(run.key for run in two_method_runs(6))
    assert states(study) == ["finished"] * 12


def test_enqueue_ignores_existing_runs(tmp_path: Path) -> None:
    study = create_study(tmp_path / "study")
    study.trials.enqueue(two_method_runs(2))
    assert [status.run for status in study.trials.statuses()] == two_method_runs(2)


def test_run_without_heartbeat_goes_to_another_worker(tmp_path: Path, storage: str | None) -> None:
    study = create_study(tmp_path / "study", seeds=1, storage=storage)
    first = study.trials.claim("first")
    assert first is not None
    other = study.trials.claim("second")
    assert other is not None
    assert other.run != first.run, "the first worker may still be alive"
    study.trials.finish(other, 0.5)
    trials = Trials(connect(study.url, heartbeat_seconds=1, heartbeat_timeout=1), study.study_dir.name)
    again = None
    while again is None:  # until the heartbeat of the first worker is too old
        again = trials.claim("second")
    assert again.run == first.run
    trials.finish(first, 0.1)  # the first worker was alive, but its result is too late
    assert trials.send_heartbeat(first) is False
    trials.finish(again, 0.9)
    assert sorted(status.value or 0 for status in trials.statuses()) == [0.5, 0.9], "each run counts once"


def test_run_that_kills_its_workers_fails(tmp_path: Path) -> None:
    study = create_study(tmp_path / "study", seeds=1)
    for attempt in range(MAX_WORKER_DEATHS):
        claimed = study.trials.claim(f"worker {attempt}")
        assert claimed is not None
        assert claimed.run.method == "plain"
        study.trials.release_all(f"worker {attempt}")
    assert states(study) == ["failed", "waiting"]
    assert study.trials.statuses()[0].error == "its workers died"


def test_interruptions_do_not_count_as_deaths(tmp_path: Path) -> None:
    study = create_study(tmp_path / "study", seeds=1)
    for _ in range(2 * MAX_WORKER_DEATHS):
        claimed = study.trials.claim("worker")
        assert claimed is not None
        study.trials.release(claimed)
    assert states(study) == ["waiting", "waiting"]
