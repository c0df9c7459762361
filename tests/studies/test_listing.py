"""`headwise studies` on directories from elsewhere: no connection to addresses that the user did not name."""

import json
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwise.studies.plan import Run, plan_runs
from headwise.studies.study import Study
from headwise.training import TextConfig
from headwise.training.core.config import RunConfig
from tests.studies.conftest import PLAIN, RPR, create_study
from tests.studies.fakes import work, write_run
from tests.training.conftest import Headwise


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A port of this machine, and whether anybody connects to it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        yield server


def is_contacted(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except TimeoutError:
        return False
    return True


def write_foreign(path: Path, listener: socket.socket) -> str:
    url = f"postgresql://me@127.0.0.1:{listener.getsockname()[1]}/studies"
    path.mkdir()
    (path / "study.yaml").write_text(f"name: foreign\nkind: compare\nstorage: {url}\n")
    return url


def test_address_in_a_directory_is_not_connected_to(
    tmp_path: Path, listener: socket.socket, headwise: Headwise
) -> None:
    url = write_foreign(tmp_path / "foreign", listener)
    code, _, err = headwise("studies", tmp_path / "foreign")
    assert code == 2
    assert err.startswith(f"headwise: error: {tmp_path / 'foreign'}: its database is {url}, which was not connected to")
    assert f"--storage {url}" in err
    assert err.count("\n") == 1
    assert not is_contacted(listener)


def test_other_studies_of_a_directory_are_listed(tmp_path: Path, listener: socket.socket, headwise: Headwise) -> None:
    write_foreign(tmp_path / "foreign", listener)
    create_study(tmp_path / "own", seeds=1)
    code, out, err = headwise("studies", tmp_path)
    assert code == 0
    assert "2 waiting" in out
    assert f"skipped {tmp_path / 'foreign'}: its database is postgresql://" in err
    assert not is_contacted(listener)


def test_sqlite_files_outside_of_the_directory_are_not_opened(tmp_path: Path, headwise: Headwise) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "study.yaml").write_text(
        f"name: a\nkind: compare\nstorage: sqlite:///{tmp_path}/other.db\n"
    )
    assert headwise("studies", tmp_path / "foreign")[0] == 2
    assert not (tmp_path / "other.db").exists()


def test_named_database_is_used(tmp_path: Path, postgresql: str, headwise: Headwise) -> None:
    create_study(tmp_path / "study", seeds=1, storage=postgresql)
    assert headwise("studies", tmp_path / "study")[0] == 2
    code, out, _ = headwise("studies", tmp_path / "study", "--storage", postgresql)
    assert code == 0
    assert "2 waiting" in out


def train_rpr_better(config: RunConfig, run_dir: Path, resume: bool = False) -> dict[str, Any]:
    """Write a run: `rpr` has a higher accuracy and a lower error than `plain`."""
    is_rpr = config.model == "rpr"
    if getattr(config, "label_type", None) == "regression":
        metrics = write_run(run_dir, config, {"rmse": 1.0 if is_rpr else 2.0})
        return {**metrics, "label_type": "regression", "primary_metric": "rmse"}
    return write_run(run_dir, config, {"accuracy": 0.8 if is_rpr else 0.7})


def test_best_of_tasks_with_accuracies_and_errors(tmp_path: Path, headwise: Headwise) -> None:
    bases = [TextConfig(data=("reviews.csv",)), TextConfig(data=("stars.csv",), label_type="regression")]
    study = Study.create(tmp_path / "a", "compare", plan_runs(bases, (PLAIN, RPR), [0]), baseline="plain", controls={})
    work(study, train_rpr_better)
    out = " ".join(headwise("studies", tmp_path / "a")[1].split())
    assert "reviews.csv: rpr" in out
    assert "stars.csv: rpr" in out


def test_trials_of_tuned_methods_are_no_methods(tmp_path: Path, headwise: Headwise) -> None:
    runs = plan_runs([TextConfig(data=("reviews.csv",))], (PLAIN, RPR), [0])
    trial = Run(runs[0].task, "plain: default settings", 1000, runs[0].config)
    tuning = [{"task": trial.task, "method": "plain", "candidates": [trial.method], "num_trials": 1}]
    for name in ("a", "b"):
        study = Study.create(tmp_path / name, "compare", [*runs, trial], baseline="plain", controls={}, tuning=tuning)
        work(study, train_rpr_better)
    out = headwise("studies", tmp_path / "a", tmp_path / "b")[1]
    assert out.count("rpr") > 1
    assert "default" not in out


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "study.yaml",
            "name: [a]\nkind: compare\n",
            "name, kind, storage and storage_path must be text",
        ),
        ("study.yaml", "name: a\n", "study.yaml: is damaged; expected name and kind"),
        ("study.yaml", DEEP, "study.yaml: nested more than 100 levels"),
        ("study.yaml", "name: " + "9" * 5000, "study.yaml: not valid YAML"),
        ("study.db", "no database", "file is not a database"),
        ("study.db", "", "there is no study"),
    ],
)
def test_damaged_studies_are_one_line(
    name: str, content: str, message: str, tmp_path: Path, headwise: Headwise
) -> None:
    create_study(tmp_path / "study", seeds=1)
    (tmp_path / "study" / name).write_text(content)
    code, _, err = headwise("studies", tmp_path / "study")
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.short_form("values")
@pytest.mark.parametrize("value", [DEEP, "[1, 2", json.dumps({"a": 1}), json.dumps("9" * 5000), json.dumps(DEEP)])
@pytest.mark.parametrize("column", ["config", "task", "seed"])
def test_hostile_values_in_a_database_are_one_line(column: str, value: str, tmp_path: Path, headwise: Headwise) -> None:
    create_study(tmp_path / "study", seeds=1)
    with sqlite3.connect(tmp_path / "study" / "study.db") as database:
        database.execute("UPDATE trial_user_attributes SET value_json = ? WHERE key = ?", (value, column))
    database.close()
    code, _, err = headwise("studies", tmp_path / "study")
    assert "Traceback" not in err
    assert code == 0 or (code == 2 and err.count("\n") == 1), err
    if column == "config":
        assert "the database is damaged" in err or "study: " in err


@pytest.mark.parametrize(("column", "value"), [("method", "5"), ("task", "null"), ("seed", '"0"')])
def test_runs_of_other_types_are_a_damaged_database(
    column: str, value: str, tmp_path: Path, headwise: Headwise
) -> None:
    create_study(tmp_path / "study", seeds=1)
    with sqlite3.connect(tmp_path / "study" / "study.db") as database:
        database.execute("UPDATE trial_user_attributes SET value_json = ? WHERE key = ?", (value, column))
    database.close()
    code, _, err = headwise("studies", tmp_path / "study")
    assert (code, err.count("\n")) == (2, 1), err
    assert "the database is damaged" in err


def test_unknown_direction_of_a_study_is_one_line(tmp_path: Path, headwise: Headwise) -> None:
    create_study(tmp_path / "study", seeds=1)
    with sqlite3.connect(tmp_path / "study" / "study.db") as database:
        database.execute("UPDATE study_directions SET direction = '0'")
    database.close()
    code, _, err = headwise("studies", tmp_path / "study")
    assert (code, err.count("\n")) == (2, 1), err
    assert "the database is damaged" in err


def test_names_cannot_control_the_terminal(tmp_path: Path, headwise: Headwise) -> None:
    create_study(tmp_path / "study", seeds=1)
    with sqlite3.connect(tmp_path / "study" / "study.db") as database:
        kind = json.dumps("[red]x[/red]\x1b]0;title\x07")
        database.execute("UPDATE study_user_attributes SET value_json = ? WHERE key = 'kind'", (kind,))
    database.close()
    code, out, _ = headwise("studies", tmp_path / "study")
    assert code == 0
    assert "\x1b" not in out
    assert "[red]x" in out
