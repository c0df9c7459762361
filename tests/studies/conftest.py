"""Studies with fake runs, messages that studies log, and a PostgreSQL server if one is installed."""

import logging
import shutil
import sqlite3
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import alembic.util
import pytest
from optuna.storages import RDBStorage
from sqlalchemy import event, make_url
from sqlalchemy.engine import Engine

from headwise.studies.methods import Method
from headwise.studies.plan import Run, plan_runs
from headwise.studies.study import Study
from headwise.training import TextConfig
from tests.short_form import choose_size
from tests.studies.postgresql import Server, why_no_server
from tests.training.conftest import bert, cheap_baselines, cheap_figures, headwise, own_cache, reviews

__all__ = ["bert", "cheap_baselines", "cheap_figures", "headwise", "own_cache", "reviews"]

#: Optuna reads all versions of its database's schema whenever a database is opened. They are loaded once.
alembic.util.load_python_file = cache(alembic.util.load_python_file)  # type: ignore[assignment]

PLAIN, RPR = Method("plain", {"model": "plain"}), Method("rpr", {"model": "rpr"})


def two_method_runs(seeds: int = 2) -> list[Run]:
    """Runs of two methods that are never trained."""
    return plan_runs([TextConfig(data=("reviews.csv",))], (PLAIN, RPR), range(seeds))


def create_study(out_dir: Path, seeds: int = 2, **options: Any) -> Study:
    """Create a comparison of two methods."""
    return Study.create(out_dir, "compare", two_method_runs(seeds), baseline="plain", controls={}, **options)


def states(study: Study) -> list[str]:
    return [status.state for status in study.trials.statuses()]


@pytest.fixture(autouse=True)
def uncollected_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave garbage to Python: collecting it after each run takes longer than fake runs."""
    monkeypatch.setattr("headwise.studies.worker.gc", SimpleNamespace(collect=lambda: 0))


@pytest.fixture(scope="package", autouse=True)
def cheap_databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """In the short form, copy one empty SQLite database for all studies, and do not wait for disks."""
    empty = tmp_path_factory.mktemp("databases") / "empty.db"

    class CopiedStorage(RDBStorage):
        def __init__(self, url: str, **options: Any) -> None:
            path = Path(make_url(url).database or "")
            if url.startswith("sqlite:") and path.parent.is_dir() and not path.exists():
                if not empty.exists():
                    RDBStorage(f"sqlite:///{empty}").engine.dispose()
                shutil.copyfile(empty, path)
            super().__init__(url, **options)

    def stop_waiting(connection: Any, _: Any) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous = OFF")

    with pytest.MonkeyPatch.context() as patch:
        if choose_size(short=True, long=False):
            patch.setattr("headwise.studies.storage.RDBStorage", CopiedStorage)
            event.listen(Engine, "connect", stop_waiting)
        yield
        if event.contains(Engine, "connect", stop_waiting):
            event.remove(Engine, "connect", stop_waiting)


@pytest.fixture
def study_log() -> Iterator[list[str]]:
    """Messages that studies log, independent of the handlers of the command line."""
    messages: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("headwise.studies")
    old_level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield messages
    logger.removeHandler(handler)
    logger.setLevel(old_level)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URL of an empty PostgreSQL server."""
    reason = why_no_server()
    if reason:
        pytest.skip(reason)
    with Server() as server:
        yield server.url


@pytest.fixture(params=["sqlite", "postgresql"])
def storage(request: pytest.FixtureRequest) -> str | None:
    """The database of a study: in its directory (None), and on a server."""
    url: str | None = request.getfixturevalue("postgresql") if request.param == "postgresql" else None
    return url
