"""A database that goes away in the middle of a study, and a command that dies: nothing is lost."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from optuna.storages import RDBStorage
from sqlalchemy import event

from headwise.cli import main
from headwise.errors import UserError
from headwise.studies import outages, worker_pool
from headwise.studies.study import Study
from headwise.studies.worker_pool import Resources, run_workers
from tests.studies.conftest import create_study, states
from tests.studies.postgresql import Server, why_no_server
from tests.studies.worker_script import (
    SOURCE,
    allow_runs,
    read_starts,
    wait_until,
    worker_environment,
    write_worker_script,
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    reason = why_no_server()
    if reason:
        pytest.skip(reason)
    with Server() as server:
        yield server


@pytest.fixture(autouse=True)
def frequent_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "RETRY_SECONDS", 0.2)
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))


def test_study_waits_for_its_database(tmp_path: Path, server: Server, study_log: list[str]) -> None:
    study = create_study(tmp_path / "study", seeds=4, storage=server.url)
    allow_runs(study, 0)

    def interrupt(num_started: int, num_outages: int) -> None:
        wait_until(lambda: len(read_starts(study)) >= num_started)
        server.stop()
        allow_runs(study, num_outages)  # the end of a run is written to the database
        wait_until(lambda: sum("cannot be reached" in line for line in study_log) >= num_outages)
        server.start()
        wait_until(lambda: sum("database is back" in line for line in study_log) >= num_outages)

    def interrupt_twice() -> None:
        interrupt(1, 1)
        interrupt(3, 2)
        allow_runs(study, None)

    thread = threading.Thread(target=interrupt_twice, daemon=True)
    thread.start()
    worker = write_worker_script(tmp_path / "worker.py")
    run_workers(study.study_dir, study.trials, Resources(2), study.url, worker)
    thread.join()
    assert states(study) == ["finished"] * 8
    assert len(study.results()) == 8
    assert set(Counter((model, seed) for model, seed, _ in read_starts(study)).values()) == {1}, "no run is repeated"
    lines = [line for line in study_log if "database" in line]
    assert len(lines) == 4, "each outage and its end are reported once"
    assert all("cannot be reached" in line and "\n" not in line for line in lines[::2])
    assert all(line.startswith("the database is back after") for line in lines[1::2])
    logs = "".join(path.read_text() for path in (tmp_path / "study" / "logs").rglob("*.log"))
    assert "OperationalError" not in logs, "no stack traces of the database"
    assert "StorageInternalError" not in logs


def test_lost_database_is_one_line(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    study = create_study(tmp_path / "study", seeds=2, storage=server.url)
    allow_runs(study, 1)
    worker = write_worker_script(tmp_path / "worker.py")
    monkeypatch.setattr(worker_pool, "WORKER_COMMAND", worker)
    monkeypatch.setattr(outages, "OUTAGE_TIMEOUT", 1.0)

    def stop_server() -> None:
        wait_until(lambda: len(read_starts(study)) >= 2)
        server.stop()
        allow_runs(study, 2)  # the end of a run is written to the database

    thread = threading.Thread(target=stop_server, daemon=True)
    thread.start()
    try:
        code = main(["compare", "--resume", "--out", str(study.study_dir.path)])
        thread.join()
        stderr = capfd.readouterr().err
        assert code == 2
        assert "Traceback" not in stderr
        assert stderr.count("cannot be reached") == 1
        assert stderr.splitlines()[-1].startswith(f"headwise: error: --storage {server.url}: the database could not be")
        assert "--resume continues the study" in stderr.splitlines()[-1]
    finally:
        server.start()
    finished = {path: path.stat().st_mtime_ns for path in (tmp_path / "study").rglob("metrics.json")}
    assert finished
    allow_runs(study, None)
    resumed = Study.resume(study.study_dir.path)
    run_workers(resumed.study_dir, resumed.trials, Resources(1), resumed.url, worker)
    assert states(resumed) == ["finished"] * 4
    assert {path: path.stat().st_mtime_ns for path in finished} == finished, "finished runs are kept"


def test_a_connection_lost_during_a_query_is_an_outage(tmp_path: Path, server: Server, study_log: list[str]) -> None:
    """Optuna asks again in the same transaction, and SQLAlchemy refuses that with an error of its own."""
    import psycopg

    study = create_study(tmp_path / "study", seeds=1, storage=server.url)
    assert states(study) == ["waiting"] * 2
    lost: list[str] = []

    def lose_connection(connection: Any, cursor: Any, statement: str, *args: Any) -> None:
        if "FROM trials" in statement and not lost:
            lost.append(statement)
            with psycopg.connect(server.url) as other:
                other.execute("SELECT pg_terminate_backend(%s, 60000)", [cursor.connection.info.backend_pid])

    assert isinstance(study.trials.storage, RDBStorage)
    event.listen(study.trials.storage.engine, "before_cursor_execute", lose_connection)
    assert states(study) == ["waiting"] * 2
    assert lost
    assert len(study_log) == 2
    assert "terminating connection" in study_log[0]
    assert study_log[1].startswith("the database is back after")


def test_connection_lost_in_a_query(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Optuna repeats such a query in the same session, which fails in another way."""
    study = create_study(tmp_path / "study", seeds=1)
    lost: list[str] = []

    def lose_connection(cursor: Any, statement: str, parameters: Any, context: Any) -> None:
        if "FROM trials" in statement and not lost:
            lost.append(statement)
            raise sqlite3.OperationalError("the connection is lost")

    def mark_as_lost(context: Any) -> None:
        context.is_disconnect = True

    assert isinstance(study.trials.storage, RDBStorage)
    engine = study.trials.storage.engine
    event.listen(engine, "do_execute", lose_connection)
    event.listen(engine, "handle_error", mark_as_lost)
    assert states(study) == ["waiting"] * 2
    assert lost
    assert "Falling back" not in capfd.readouterr().err


def test_errors_that_do_not_go_away_are_not_waited_for(tmp_path: Path) -> None:
    study = create_study(tmp_path / "study", seeds=1)
    with pytest.raises(UserError, match="there is no study 'other'"):
        type(study.trials)(study.trials.storage, "other")
    assert study.trials.outages.started is None


PARENT = """
import signal, sys
from pathlib import Path
from headwise.studies.study import Study
from headwise.studies.worker_pool import Resources, run_workers
study = Study.resume(Path(sys.argv[1]))
run_workers(study.study_dir, study.trials, Resources(3), study.url, sys.argv[2:])
"""


def is_running(process: int) -> bool:
    """Return whether a process runs; one that has ended may wait for its parent."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    study = create_study(tmp_path / "study", seeds=4)
    allow_runs(study, 0)
    worker = write_worker_script(tmp_path / "worker.py")
    command = [sys.executable, "-c", PARENT, str(study.study_dir.path), *worker]
    parent = subprocess.Popen(command, env=worker_environment(), stderr=subprocess.DEVNULL)
    wait_until(lambda: len(read_starts(study)) == 3)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    workers = [int(process) for *_, process in read_starts(study)]
    wait_until(lambda: not any(map(is_running, workers)))
    assert states(Study.resume(study.study_dir.path)) == ["waiting"] * 8, "their runs are back in the queue"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_worker_ends_if_its_parent_died_before_it_started(tmp_path: Path) -> None:
    study = create_study(tmp_path / "study", seeds=1)
    allow_runs(study, 0)
    worker = write_worker_script(tmp_path / "worker.py")
    environment = worker_environment(HEADWISE_PARENT_PROCESS=str(os.getppid()))  # not the parent of the worker
    process = subprocess.Popen(
        [*worker, str(study.study_dir.path)], env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.communicate()
    assert process.returncode != 0
    assert "running" not in states(study)
