"""Study databases: SQLite in the study's directory, or PostgreSQL shared by workers on several machines."""

import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import RDBStorage
from sqlalchemy import make_url, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError

from headwise.errors import UserError
from headwise.studies.outages import Outages, get_reason

#: The SQLite database in a study's directory.
DATABASE_FILE = "study.db"

#: Seconds between two heartbeats of a worker.
HEARTBEAT_SECONDS = 10

#: Seconds without a heartbeat after which a worker counts as dead.
HEARTBEAT_TIMEOUT = 60

#: Seconds to wait for another process that writes to the database.
LOCK_TIMEOUT = 120

#: Options of connections to PostgreSQL: seconds (tcp_user_timeout: milliseconds) until a silent server counts as lost.
CONNECTION_OPTIONS = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}


def sqlite_url(study_dir: Path) -> str:
    """Return the URL of the database in a study's directory."""
    return f"sqlite:///{(study_dir / DATABASE_FILE).absolute()}"


def parse_url(url: str) -> URL:
    """Parse a database URL and select the driver for PostgreSQL.

    Raises:
        UserError: the URL is malformed or names an unsupported database.

    Example:
        >>> parse_url("postgresql://me@host/studies").drivername
        'postgresql+psycopg'
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise UserError(f"--storage {url}: expected postgresql://USER@HOST/DATABASE or sqlite:///FILE") from None
    backend = parsed.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise UserError(f"--storage {hide_password(url)}: expected sqlite or postgresql, got {backend}")
    return parsed.set(drivername="postgresql+psycopg") if parsed.drivername == "postgresql" else parsed


def hide_password(url: str) -> str:
    """Return a URL without its password."""
    return make_url(url)._replace(password=None).render_as_string()


def display_url(storage: RDBStorage) -> str:
    """Return the URL of a storage for messages: without password and driver."""
    return hide_password(storage.url).replace("postgresql+psycopg:", "postgresql:", 1)


def connect(
    url: str, *, wait: bool = False, heartbeat_seconds: int | None = None, heartbeat_timeout: int | None = None
) -> RDBStorage:
    """Open Optuna's storage at a URL.

    Args:
        url: the database.
        wait: whether to wait for a database that cannot be reached.
        heartbeat_seconds: seconds between two heartbeats; by default `HEARTBEAT_SECONDS`.
        heartbeat_timeout: seconds after which a worker counts as dead; by default `HEARTBEAT_TIMEOUT`.

    Raises:
        UserError: the database cannot be reached, is damaged or of another version, or its driver is not installed.
    """
    parsed = parse_url(url)
    is_sqlite = parsed.get_backend_name() == "sqlite"
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    optuna.logging.get_logger("optuna.storages._rdb.storage").setLevel(optuna.logging.ERROR)  # we report outages

    def open_storage() -> RDBStorage:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return RDBStorage(
                parsed.render_as_string(hide_password=False),
                engine_kwargs={"connect_args": {"timeout": LOCK_TIMEOUT}} if is_sqlite else server_options(parsed),
                heartbeat_interval=HEARTBEAT_SECONDS if heartbeat_seconds is None else heartbeat_seconds,
                grace_period=HEARTBEAT_TIMEOUT if heartbeat_timeout is None else heartbeat_timeout,
            )

    try:
        return Outages(hide_password(url)).run(open_storage) if wait else open_storage()
    except ImportError:
        raise UserError("--storage postgresql://…: needs psycopg; pip install 'headwise[postgresql]'") from None
    except UserError:
        raise
    except Exception as error:  # a database from elsewhere can contain anything
        raise UserError(f"--storage {hide_password(url)}: {get_reason(error)}") from None


def server_options(url: URL) -> dict[str, Any]:
    """Return the options of a connection to a server: a lost one is noticed, and replaced before it is used."""
    connect_args = {name: value for name, value in CONNECTION_OPTIONS.items() if name not in url.query}
    return {"pool_pre_ping": True, "connect_args": connect_args}


def lock_study(storage: RDBStorage, study_id: int) -> AbstractContextManager[None]:
    """Return a lock on a study that excludes all other processes. It is released when its owner dies."""
    if storage.engine.dialect.name == "postgresql":
        return _postgresql_lock(storage, study_id)
    return _file_lock(Path(f"{storage.engine.url.database}.lock"))


@contextmanager
def _postgresql_lock(storage: RDBStorage, study_id: int) -> Iterator[None]:
    with storage.engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('headwise'), :study)"), {"study": study_id})
        yield


@contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    """Use SQLite's lock on a second file, so that the owner can still write to the database itself."""
    with closing(sqlite3.connect(path, timeout=LOCK_TIMEOUT, isolation_level=None)) as lock:
        lock.execute("BEGIN EXCLUSIVE")
        yield
