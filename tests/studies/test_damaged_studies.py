"""Damaged databases and files of finished runs are one-line errors, found by fuzzing."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from optuna.storages import RDBStorage

from headwise.errors import UserError
from headwise.studies.compare import analyze_comparison
from headwise.studies.scheduler import Scheduler
from headwise.studies.study import Study
from headwise.studies.study_dir import StudyDir
from tests.studies.conftest import create_study
from tests.studies.fakes import fake_train


@pytest.fixture(scope="module")
def undamaged_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of two methods whose runs are finished."""
    path = tmp_path_factory.mktemp("undamaged") / "study"
    study = create_study(path)
    scheduler = Scheduler(study.trials)
    while (claimed := scheduler.claim()) is not None:
        metrics = fake_train(claimed.run.config, study.study_dir.run_dir(claimed.run))
        study.trials.finish(claimed, metrics["metrics"]["test"]["accuracy"])
    assert isinstance(study.trials.storage, RDBStorage)
    study.trials.storage.engine.dispose()
    return path


@pytest.fixture
def study_path(undamaged_path: Path, tmp_path: Path) -> Path:
    """A copy of the comparison."""
    return Path(shutil.copytree(undamaged_path, tmp_path / "study"))


def analyze(path: Path) -> Any:
    study_dir = StudyDir.read(path)
    return analyze_comparison(Study(study_dir, study_dir.open_trials(), study_dir.database_url()))


def test_an_undamaged_study_is_analyzed(study_path: Path) -> None:
    assert analyze(study_path).baseline == "plain"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE trials SET state = 'eager'",
        "UPDATE trials SET datetime_start = 'yesterday'",
        "UPDATE study_user_attributes SET value_json = '{'",
        "UPDATE trial_user_attributes SET value_json = '[]' WHERE key = 'config'",
        "DELETE FROM trial_user_attributes WHERE key = 'seed'",
        "DELETE FROM study_user_attributes WHERE key = 'baseline'",
        "DELETE FROM trials",
        "DROP TABLE trials",
        "UPDATE alembic_version SET version_num = 'v9.0.0'",
        "INSERT INTO alembic_version VALUES ('v9.0.0')",
    ],
)
def test_damaged_databases_are_refused(statement: str, study_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "headwise.studies.outages.time.sleep", lambda _: pytest.fail("waits for a database that is damaged")
    )
    with closing(sqlite3.connect(study_path / "study.db", isolation_level=None)) as connection:
        connection.execute(statement)
    with pytest.raises(UserError):
        analyze(study_path)


@pytest.mark.parametrize(
    "values",
    [
        {"metrics": []},
        {"metrics": {"test": {"accuracy": "0.5"}}},
        {"metrics": {"test": {"accuracy": None}}},
        {"metrics": {"test": {}}},
        {"metrics": {}},
        {"primary_metric": ["accuracy"]},
        {"train_seconds": "x"},
        {"label_type": {}},
        {"task": None},
        {"labels": 3},
    ],
    ids=str,
)
def test_damaged_metrics_are_refused(values: dict[str, Any], study_path: Path) -> None:
    path = next(study_path.glob("runs/*/*/*/metrics.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    with pytest.raises(UserError, match=r"metrics\.json: not written by headwise, or damaged"):
        analyze(study_path)


def test_a_run_with_another_split_is_refused(study_path: Path) -> None:
    path = next(study_path.glob("runs/*/*/*/metrics.json"))
    metrics = json.loads(path.read_text())
    metrics["metrics"] = {"holdout" if name == "test" else name: values for name, values in metrics["metrics"].items()}
    path.write_text(json.dumps(metrics))
    with pytest.raises(UserError, match=r"metrics\.json: has no accuracy on (test|holdout), unlike other runs"):
        analyze(study_path)


def test_damaged_predictions_are_refused(study_path: Path) -> None:
    for path in study_path.glob("runs/*/*/*"):
        (path / "predictions.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"predictions\.parquet: not written by headwise, or damaged"):
        analyze(study_path)
