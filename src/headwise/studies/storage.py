"""Study databases: SQLite in the study's directory, or PostgreSQL or a journal, which several machines can write to."""

from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy import make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError

from headwise.errors import UserError
from headwise.studies.outages import Outages, get_reason

#: The SQLite database in a study's directory.
DATABASE_FILE = "study.db"

#: The scheme of the URL of a journal: a file that several machines can append to, also on a network file system.
JOURNAL_SCHEME = "journal"

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
        raise UserError(
            f"--storage {url}: expected postgresql://USER@HOST/DATABASE, journal:///FILE or sqlite:///FILE"
        ) from None
    backend = parsed.get_backend_name()
    if backend not in ("sqlite", "postgresql", JOURNAL_SCHEME):
        raise UserError(f"--storage {hide_password(url)}: expected sqlite, postgresql or journal, got {backend}")
    if backend == JOURNAL_SCHEME and (parsed.host or not parsed.database):
        raise UserError(f"--storage {url}: expected journal:///FILE with the absolute path of a file")
    return parsed.set(drivername="postgresql+psycopg") if parsed.drivername == "postgresql" else parsed


def hide_password(url: str) -> str:
    """Return a URL without its password."""
    return make_url(url)._replace(password=None).render_as_string()


def display_url(storage: BaseStorage) -> str:
    """Return the URL of a storage for messages: without password and driver."""
    if isinstance(storage, RDBStorage):
        return hide_password(storage.url).replace("postgresql+psycopg:", "postgresql:", 1)
    backend = getattr(storage, "_backend", None)
    return f"{JOURNAL_SCHEME}://{getattr(backend, '_file_path', '')}"


def allows_several_machines(url: str) -> bool:
    """Return whether processes on several machines can write to a database."""
    return parse_url(url).get_backend_name() != "sqlite"


def connect(url: str, *, wait: bool = False) -> BaseStorage:
    """Open Optuna's storage at a URL.

    Args:
        url: the database.
        wait: whether to wait for a database that cannot be reached.

    Raises:
        UserError: the database cannot be reached, is damaged or of another version, or its driver is not installed.
    """
    parsed = parse_url(url)
    is_sqlite = parsed.get_backend_name() == "sqlite"
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    optuna.logging.get_logger("optuna.storages._rdb.storage").setLevel(optuna.logging.ERROR)  # we report outages

    def open_storage() -> BaseStorage:
        if parsed.drivername == JOURNAL_SCHEME:
            return JournalStorage(JournalFileBackend(str(parsed.database)))
        return RDBStorage(
            parsed.render_as_string(hide_password=False),
            engine_kwargs={"connect_args": {"timeout": LOCK_TIMEOUT}} if is_sqlite else server_options(parsed),
        )

    try:
        return Outages(hide_password(url)).run(open_storage) if wait else open_storage()
    except ImportError:
        raise UserError("--storage postgresql://…: needs psycopg; pip install 'headwise[postgresql]'") from None
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"--storage {url}: {error.strerror or error}") from None
    except Exception as error:  # a database from elsewhere can contain anything
        raise UserError(f"--storage {hide_password(url)}: {get_reason(error)}") from None


def server_options(url: URL) -> dict[str, Any]:
    """Return the options of a connection to a server: a lost one is noticed, and replaced before it is used."""
    connect_args = {name: value for name, value in CONNECTION_OPTIONS.items() if name not in url.query}
    return {"pool_pre_ping": True, "connect_args": connect_args}
