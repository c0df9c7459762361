"""Worker pools: workers are replaced when they cannot start, and stopped with the study."""

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from headwise.errors import UserError
from headwise.locks import lock_output
from headwise.studies.plan import plan_more_seeds
from headwise.studies.study import Study
from headwise.studies.trials import TrialStatus
from headwise.studies.worker_pool import JOBS_VARIABLE, Resources, run_workers
from tests.studies.conftest import create_study, states
from tests.studies.worker_script import SOURCE, allow_runs, read_starts, wait_until, write_worker_script


def test_two_commands_do_not_run_one_study(tmp_path: Path) -> None:
    study = create_study(tmp_path / "study")
    with lock_output(study.study_dir.path, is_directory=True):
        with pytest.raises(UserError, match="study: in use by this process"):
            study.run(Resources(1))
        with pytest.raises(UserError, match="study: in use by this process"):
            Study.resume(study.study_dir.path)
    assert states(study) == ["waiting"] * 4


def test_interrupted_study_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = create_study(tmp_path / "study", seeds=2)
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))

    def interrupt() -> None:
        wait_until(lambda: len(study.results()) >= 1)
        os.kill(os.getpid(), signal.SIGINT)

    allow_runs(study, 1)
    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    worker = write_worker_script(tmp_path / "worker.py")
    with pytest.raises(KeyboardInterrupt):
        run_workers(study.study_dir, study.trials, Resources(1), study.url, worker)
    thread.join()
    assert Counter(states(study)) == {"finished": 1, "waiting": 3}
    resumed = Study.resume(study.study_dir.path)
    allow_runs(study, None)
    run_workers(resumed.study_dir, resumed.trials, Resources(1), resumed.url, worker)
    assert len(resumed.results()) == 4
    assert len(read_starts(study)) <= 5, "finished runs were not trained again"


def test_runs_that_are_added_while_the_study_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are trained by the workers of the other runs."""
    study = create_study(tmp_path / "study", seeds=1)
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))

    class AddSeed:
        num_planned = 2

        def __call__(self, statuses: Sequence[TrialStatus]) -> bool:
            if any(status.state != "finished" for status in statuses) or not self.num_planned:
                return False
            study.trials.enqueue(plan_more_seeds([status.run for status in statuses], range(2)))
            self.num_planned = 0
            return True

    worker = write_worker_script(tmp_path / "worker.py")
    run_workers(study.study_dir, study.trials, Resources(1), study.url, worker, AddSeed())
    assert states(study) == ["finished"] * 4
    assert len(list((study.study_dir.path / "logs").glob("worker-*.log"))) == 1


def test_jobs_are_added_while_the_study_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, jobs_file = create_study(tmp_path / "study", seeds=2), tmp_path / "jobs"
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    monkeypatch.setenv(JOBS_VARIABLE, str(jobs_file))
    jobs_file.write_text("")  # as while it is written
    allow_runs(study, 0)

    def add_jobs() -> None:
        wait_until(lambda: len(read_starts(study)) == 1)
        jobs_file.write_text("3")
        wait_until(lambda: len(read_starts(study)) == 3)
        allow_runs(study, None)

    thread = threading.Thread(target=add_jobs, daemon=True)
    thread.start()
    run_workers(study.study_dir, study.trials, Resources(1), study.url, write_worker_script(tmp_path / "worker.py"))
    thread.join()
    assert states(study) == ["finished"] * 4
    assert len({pid for *_, pid in read_starts(study)}) == 3


def test_workers_that_cannot_start_are_an_error(tmp_path: Path) -> None:
    study = create_study(tmp_path / "study", seeds=1)
    broken = [sys.executable, "-c", "raise SystemExit('no torch here')"]
    with pytest.raises(UserError, match=r"4 workers in a row died .* status 1: no torch here .* --resume continues"):
        run_workers(study.study_dir, study.trials, Resources(1), study.url, broken)


def test_worker_killed_before_its_first_run_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = create_study(tmp_path / "study", seeds=1)
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    worker = write_worker_script(tmp_path / "worker.py")
    script = tmp_path / "killed_once.py"
    script.write_text(
        "import os, pathlib, signal, sys; marker = pathlib.Path(sys.argv[0] + '.marker')\n"
        "if not marker.exists(): marker.touch(); os.kill(os.getpid(), signal.SIGKILL)\n"
        f"os.execv({worker[0]!r}, [*{list(worker)!r}, *sys.argv[1:]])\n"
    )
    run_workers(study.study_dir, study.trials, Resources(1), study.url, [sys.executable, str(script)])
    assert (tmp_path / "killed_once.py.marker").exists()
    assert len(study.results()) == 2


def test_gpus_are_assigned_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    resources = Resources(4, ("0", "3"))
    assert [resources.environment(slot)["CUDA_VISIBLE_DEVICES"] for slot in range(4)] == ["0", "3", "0", "3"]
    assert int(resources.environment(0)["OMP_NUM_THREADS"]) >= 1
    with pytest.raises(UserError, match="--jobs must be at least 1, got 0"):
        Resources(0)
