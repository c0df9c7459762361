"""Runs on a storage path: checkpoints, logs and results are copied, and a run that was killed goes on from there."""

import json
from pathlib import Path
from typing import Any

import fsspec
import pytest
from optuna.storages import RDBStorage
from transformers import TrainerCallback

from headwise.errors import UserError
from headwise.studies.plan import plan_runs
from headwise.studies.run_storage import StoredRun
from headwise.studies.study import Study
from headwise.studies.worker import train_run
from headwise.training import TextConfig
from headwise.training.core.callbacks import extra_callbacks
from headwise.training.core.config import RunConfig
from tests.studies.conftest import PLAIN, create_study, states, two_method_runs
from tests.studies.fakes import fake_train, work


class InterruptSecondEpoch(TrainerCallback):
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if round(state.epoch or 0) == 1:
            raise KeyboardInterrupt


def read_without_times(run_dir: Path) -> Any:
    metrics = json.loads((run_dir / "metrics.json").read_text())
    return metrics["metrics"], [log["loss"] for log in metrics["history"] if "loss" in log]


@pytest.mark.long
def test_interrupted_run_goes_on_from_the_storage_path(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwise.studies.worker.CHECKPOINT_SECONDS", 0.0)
    config = TextConfig(data=(str(reviews),), heads=2, head_dim=8, word_dim=16, epochs=3, batch_size=16)
    assert config.learning_rate is None, "run.yaml will have the value that is chosen from the data"
    runs = plan_runs([config], (PLAIN,), [0])
    url = f"memory://{tmp_path.name}"
    study = Study.create(tmp_path / "study", "compare", runs, storage_path=url, baseline="plain")
    resumed = []

    def train(config: RunConfig, run_dir: Path, resume: bool) -> dict[str, Any]:
        resumed.append(resume)
        return train_run(config, run_dir, resume)

    with extra_callbacks(InterruptSecondEpoch()), pytest.raises(KeyboardInterrupt):
        work(study, train)
    run_dir = study.study_dir.run_dir(runs[0])
    assert not run_dir.exists(), "the run is on the storage path only"
    work(Study.resume(tmp_path / "study"), train)
    assert states(study) == ["finished"]
    assert resumed == [False, True]
    assert study.study_dir.log_path(runs[0]).exists()

    alone = Study.create(tmp_path / "alone", "compare", runs, baseline="plain")
    work(alone, train_run)
    assert read_without_times(run_dir) == read_without_times(alone.study_dir.run_dir(runs[0]))
    assert (run_dir / "predictions.parquet").exists()
    stored = [Path(path).name for path in fsspec.filesystem("memory").find(f"/{tmp_path.name}")]
    assert "model.safetensors" in stored
    assert "optimizer.pt" not in stored, "checkpoints of a finished run are deleted"
    assert not (run_dir / "model.safetensors").exists(), "weights stay on the storage path"


def test_finished_run_on_the_storage_path_is_not_trained_again(tmp_path: Path) -> None:
    study = create_study(tmp_path / "study", seeds=1, storage_path=f"file://{tmp_path}/shared")
    work(study, fake_train)
    values = [status.value for status in study.trials.statuses()]
    for run in two_method_runs(1):
        (study.study_dir.run_dir(run) / "metrics.json").unlink()
    assert isinstance(study.trials.storage, RDBStorage)
    with study.trials.storage.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE trials SET state = 'RUNNING'")

    def train(config: Any, run_dir: Path, resume: bool) -> dict[str, Any]:
        raise AssertionError("the run is finished")

    again = Study.resume(tmp_path / "study")
    work(again, train)
    assert [status.value for status in again.trials.statuses()] == values
    assert len(again.results()) == 2


def test_interrupted_upload_leaves_the_previous_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = create_study(tmp_path / "study", seeds=1, storage_path=str(tmp_path / "shared"))
    stored = StoredRun(study.study_dir, two_method_runs(1)[0])
    run_dir, log = tmp_path / "run", tmp_path / "log.txt"
    log.write_text("first\n")
    write_checkpoint(run_dir, 1)
    stored.upload(run_dir, log)
    (run_dir / "checkpoints" / "checkpoint-1" / "weights").unlink()
    write_checkpoint(run_dir, 2)
    write = StoredRun._write

    def break_off(self: StoredRun, name: str, content: Any) -> None:
        if name == "uploaded.json":
            raise OSError("connection lost")
        write(self, name, content)

    monkeypatch.setattr(StoredRun, "_write", break_off)
    with pytest.raises(OSError, match="connection lost"):
        stored.upload(run_dir, log)
    assert download(stored, tmp_path / "before") == {"checkpoints/checkpoint-1/weights": "1" * 70_000}
    monkeypatch.undo()
    stored.upload(run_dir, log)
    assert download(stored, tmp_path / "after") == {"checkpoints/checkpoint-2/weights": "2" * 70_000}
    assert len(list((tmp_path / "shared").rglob("weights"))) == 1, "the old checkpoint is deleted"


def write_checkpoint(run_dir: Path, number: int) -> None:
    checkpoint = run_dir / "checkpoints" / f"checkpoint-{number}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_text(str(number) * 70_000)


def download(stored: StoredRun, path: Path) -> dict[str, str]:
    stored.download(path / "run", path / "log.txt")
    files = [file for file in (path / "run").rglob("*") if file.is_file()]
    return {file.relative_to(path / "run").as_posix(): file.read_text() for file in files}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense://bucket", "--storage-path nonsense://bucket: Protocol not known: nonsense"),
        ("/proc/nothing", "--storage-path /proc/nothing: cannot be written"),
    ],
)
def test_unusable_storage_path_is_one_line(url: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        create_study(tmp_path / "study", storage_path=url)
    assert not (tmp_path / "study").exists()


def test_storage_path_cannot_change(tmp_path: Path) -> None:
    create_study(tmp_path / "study", storage_path=str(tmp_path / "shared"))
    Study.resume(tmp_path / "study", storage_path=str(tmp_path / "shared"))
    with pytest.raises(UserError, match=r"--storage-path memory://x: the study in .* keeps its runs in .*shared"):
        Study.resume(tmp_path / "study", storage_path="memory://x")
