"""Where a study is kept: SQLite in its folder, or PostgreSQL, which workers on many machines share."""

import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import optuna
from optuna.storages import RDBStorage
from sqlalchemy import make_url, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from headwise.errors import UserError

#: Seconds between two signs of life of a worker, and after how many without one its run is taken over.
HEARTBEAT, GRACE = 10, 60

#: Seconds to wait for another process that writes.
PATIENCE = 120


def in_folder(folder: Path) -> str:
    """The address of a study that is kept in its own folder."""
    return f"sqlite:///{(folder / 'study.db').absolute()}"


def address(url: str) -> URL:
    """A database's address, with the driver that we ask for.

    Raises:
        UserError: no address, or that of another kind of database.

    Example:
        >>> address("postgresql://me@host/studies").drivername
        'postgresql+psycopg'
    """
    try:
        found = make_url(url)
    except ArgumentError:
        raise UserError(f"--storage {url}: expected postgresql://USER@HOST/DATABASE or sqlite:///FILE") from None
    kind = found.get_backend_name()
    if kind not in ("sqlite", "postgresql"):
        raise UserError(f"--storage {shown(url)}: a study is kept in sqlite or postgresql, not in {kind}")
    return found.set(drivername="postgresql+psycopg") if found.drivername == "postgresql" else found


def shown(url: str) -> str:
    """An address without its password."""
    return make_url(url)._replace(password=None).render_as_string()


def connect(url: str, *, heartbeat: int = HEARTBEAT, grace: int = GRACE) -> RDBStorage:
    """Optuna's storage at an address.

    Raises:
        UserError: it cannot be reached, or its driver is not installed.
    """
    where = address(url)
    local = where.get_backend_name() == "sqlite"
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return RDBStorage(
                where.render_as_string(hide_password=False),
                engine_kwargs={"connect_args": {"timeout": PATIENCE}} if local else {"pool_pre_ping": True},
                heartbeat_interval=heartbeat,
                grace_period=grace,
            )
    except ImportError:
        raise UserError("--storage postgresql://…: needs psycopg; pip install 'headwise[postgresql]'") from None
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        why = str(getattr(error, "orig", None) or error.__cause__ or error).strip().splitlines()[0]
        raise UserError(f"--storage {shown(url)}: {why}") from None


def one_at_a_time(storage: RDBStorage, study: int) -> AbstractContextManager[None]:
    """While it lasts, no other process that asks for the same study gets in. The lock of one that dies is freed."""
    if storage.engine.dialect.name == "postgresql":
        return on_server(storage, study)
    return by_file(Path(f"{storage.engine.url.database}.lock"))


@contextmanager
def on_server(storage: RDBStorage, study: int) -> Iterator[None]:
    with storage.engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('headwise'), :study)"), {"study": study})
        yield


@contextmanager
def by_file(path: Path) -> Iterator[None]:
    """SQLite's own lock, on a file beside the database, which stays free for those inside."""
    with closing(sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)) as lock:
        lock.execute("BEGIN EXCLUSIVE")
        yield
