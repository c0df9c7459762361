"""Workers whose runs fail, or that are killed: the study is completed nevertheless."""

import os
import signal
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from headwise.errors import UserError
from headwise.locks import OutputInUseError, lock_output
from headwise.studies.worker import prepare_resume
from headwise.studies.worker_pool import Resources, run_workers
from headwise.training.core.config import RunConfig
from headwise.training.core.run_dir import write_manifest
from headwise.training.core.run_settings import get_settings
from tests.short_form import keep_short
from tests.studies.conftest import create_study, states, two_method_runs
from tests.studies.fakes import fake_train, work
from tests.studies.worker_script import SOURCE, allow_runs, read_starts, wait_until, write_worker_script


@pytest.mark.parametrize("storage", keep_short(["sqlite", "postgresql"], "sqlite"), indirect=True)
def test_worker_killed_during_a_run(tmp_path: Path, storage: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    study = create_study(tmp_path / "study", seeds=3, storage=storage)
    allow_runs(study, 0)

    def kill_first() -> None:
        wait_until(lambda: len(read_starts(study)) == 2)
        os.kill(int(read_starts(study)[0][-1]), signal.SIGKILL)
        allow_runs(study, None)

    thread = threading.Thread(target=kill_first, daemon=True)
    thread.start()
    run_workers(study.study_dir, study.trials, Resources(2), study.url, write_worker_script(tmp_path / "worker.py"))
    thread.join()
    statuses = study.trials.statuses()
    assert [status.state for status in statuses] == ["finished"] * 6, "no run is lost"
    assert [status.run.key for status in statuses] == [run.key for run in two_method_runs(3)]
    assert len(study.results()) == 6, "no run counts twice"
    num_starts = Counter((model, seed) for model, seed, _ in read_starts(study))
    assert sorted(num_starts.values()) == [1] * 5 + [2], "only the run of the killed worker is repeated"
    first, *others = read_starts(study)
    assert [pid != first[-1] for *run, pid in others if run == first[:2]] == [True]


def test_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    """A worker may die after a run has finished and before its metric is recorded."""
    study = create_study(tmp_path / "study", seeds=1)
    for run in two_method_runs(1):
        fake_train(run.config, study.study_dir.run_dir(run))

    def train(config: RunConfig, run_dir: Path, resume: bool) -> dict[str, Any]:
        raise AssertionError("the run is finished")

    work(study, train)
    assert [status.value for status in study.trials.statuses()] == [0.0, 0.0]


def test_only_complete_checkpoints_of_the_same_run_are_resumed(tmp_path: Path) -> None:
    study = create_study(tmp_path / "study", seeds=2)
    complete_run, truncated_run, wrong_run, new_run = two_method_runs(2)
    for run in (complete_run, truncated_run, wrong_run):
        run_dir = study.study_dir.run_dir(run)
        checkpoint = run_dir / "checkpoints" / "checkpoint-5"
        checkpoint.mkdir(parents=True)
        config = new_run.config if run is wrong_run else run.config
        (run_dir / "run.yaml").write_text(config.to_yaml())
        if run is not truncated_run:
            (checkpoint / "trainer_state.json").write_text('{"global_step": 5}')
            write_manifest(checkpoint)
    calls = {}

    def train(config: RunConfig, run_dir: Path, resume: bool) -> dict[str, Any]:
        calls[config.model, config.seed] = resume, run_dir.exists()
        return fake_train(config, run_dir)

    work(study, train)
    assert calls == {
        ("plain", 0): (True, True),
        ("rpr", 0): (False, False),
        ("plain", 1): (False, False),
        ("rpr", 1): (False, False),
    }


def test_run_whose_last_worker_still_writes_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose command was killed may still write for a moment."""
    study = create_study(tmp_path / "study", seeds=1)
    run = two_method_runs(1)[0]
    run_dir = study.study_dir.run_dir(run)
    run_dir.mkdir(parents=True)
    (run_dir / "run.yaml").write_text(run.config.to_yaml())
    last_worker = ExitStack()
    last_worker.enter_context(lock_output(run_dir, is_directory=True))
    monkeypatch.setattr("time.sleep", lambda seconds: last_worker.close())  # it ends while the new worker waits
    files_at_start = []

    def train(config: RunConfig, run_dir: Path, resume: bool) -> dict[str, Any]:
        files_at_start.append(run_dir.exists())
        return fake_train(config, run_dir)

    with pytest.raises(OutputInUseError):
        prepare_resume(run, run_dir)
    assert (run_dir / "run.yaml").exists(), "nothing is deleted while another worker writes"
    work(study, train)
    assert states(study) == ["finished"] * 2
    assert files_at_start == [False, False]


def test_failed_run_does_not_stop_the_others(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    study = create_study(tmp_path / "study", seeds=2)

    def train(config: RunConfig, run_dir: Path, resume: bool) -> dict[str, Any]:
        os.system("echo output of a subprocess")
        if config.model == "rpr" and config.seed == 0:
            raise UserError("reviews.csv: no such file")
        if config.model == "rpr":
            raise RuntimeError("CUDA out of memory\nmore of it")
        return fake_train(config, run_dir)

    work(study, train)
    ends = {status.run.key: (status.state, status.error) for status in study.trials.statuses()}
    assert ends["reviews.csv", "rpr", 0] == ("failed", "reviews.csv: no such file")
    assert ends["reviews.csv", "rpr", 1] == ("failed", "RuntimeError: CUDA out of memory")
    assert [state for state, _ in ends.values()].count("finished") == 2
    log = study.study_dir.log_path(two_method_runs(2)[1]).read_text()
    assert "output of a subprocess" in log
    assert "reviews.csv: no such file" in log
    assert capfd.readouterr().out == "", "output of runs goes to their logs"


def test_nan_metric_is_a_failure(tmp_path: Path) -> None:
    study = create_study(tmp_path / "study", seeds=1)

    def train(config: RunConfig, run_dir: Path, resume: bool) -> dict[str, Any]:
        return {"primary_metric": "rmse", "metrics": {"test": {"rmse": float("nan")}}}

    work(study, train)
    assert {status.error for status in study.trials.statuses()} == {"the metric is NaN: training diverged"}


@pytest.mark.parametrize("keep_models", [False, True])
def test_models_of_the_first_seed_are_kept(tmp_path: Path, keep_models: bool) -> None:
    study = create_study(tmp_path / "study", seeds=2, keep_models=keep_models)

    def train(config: RunConfig, run_dir: Path, resume: bool) -> dict[str, Any]:
        metrics = fake_train(config, run_dir)
        (run_dir / "checkpoints" / "checkpoint-1").mkdir(parents=True)
        (run_dir / "model.safetensors").touch()
        results_only[config.seed] = get_settings().results_only
        return metrics

    results_only: dict[int, bool] = {}
    work(study, train)
    assert results_only == {0: False, 1: not keep_models}
    for run in two_method_runs(2):
        files = sorted(path.name for path in study.study_dir.run_dir(run).iterdir())
        model = ["model.safetensors"] if keep_models or run.seed == 0 else []
        assert files == ["metrics.json", *model, "run.yaml"]


@pytest.mark.parametrize("storage_path", [None, "memory://tokens"])
def test_runs_share_tokens_until_the_study_ends(tmp_path: Path, storage_path: str | None) -> None:
    """A worker on another machine does not see the study's directory."""
    study = create_study(tmp_path / "study", seeds=1, storage_path=storage_path)
    token_dirs = []

    def train(config: RunConfig, run_dir: Path, resume: bool) -> dict[str, Any]:
        token_dirs.append(get_settings().token_dir)
        return fake_train(config, run_dir)

    work(study, train)
    assert token_dirs == [tmp_path / "study" / ".tokens" if storage_path is None else None] * 2
    (tmp_path / "study" / ".tokens").mkdir()
    study.run(Resources(1))
    assert not (tmp_path / "study" / ".tokens").exists()
