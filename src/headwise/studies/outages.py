"""Outages of a study's database: operations wait until it is back, for a limited time."""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, PendingRollbackError

from headwise.errors import UserError
from headwise.studies.interrupts import delay_interrupts

logger = logging.getLogger(__name__)

#: Seconds to wait for a database that cannot be reached.
OUTAGE_TIMEOUT = 600.0
#: Seconds between two attempts.
RETRY_SECONDS = 2.0

P = ParamSpec("P")
T = TypeVar("T")


class DatabaseLostError(UserError):
    """The database of a study could not be reached for `OUTAGE_TIMEOUT` seconds."""


class Outages:
    """Runs operations of a database, and repeats them while it cannot be reached.

    All threads of a process share the limit. The outage and its end are logged once.

    Args:
        url: The database's URL without password, for messages.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.started: float | None = None
        self.waits = True
        self.mutex = threading.Lock()
        self.local = threading.local()

    def run(self, operation: Callable[[], T]) -> T:
        """Return the result of an operation, which must be safe to repeat.

        An operation inside of another one is not repeated by itself: the outer one may have lost its lock.

        Raises:
            DatabaseLostError: The database was out of reach for too long.
        """
        if getattr(self.local, "is_running", False):
            return operation()
        self.local.is_running = True
        try:
            while True:
                try:
                    with delay_interrupts():
                        result = operation()
                except (StorageInternalError, DBAPIError, sqlite3.OperationalError) as error:
                    if not is_outage(error):
                        raise
                    self.wait(error)
                else:
                    self.end()
                    return result
        finally:
            self.local.is_running = False

    def wait(self, error: BaseException) -> None:
        """Wait before the next attempt.

        Raises:
            DatabaseLostError: The database was out of reach for too long.
        """
        now = time.monotonic()
        with self.mutex:
            is_new = self.started is None
            self.started = now if self.started is None else self.started
            left = self.started + OUTAGE_TIMEOUT - now if self.waits else 0.0
        if left <= 0:
            raise DatabaseLostError(
                f"--storage {self.url}: the database could not be reached for {format_seconds(now - self.started)} "
                f"({get_reason(error)}); finished runs are kept, --resume continues the study"
            ) from None
        if is_new:
            logger.warning(
                "the database %s cannot be reached (%s); waiting for it, up to %s",
                self.url,
                get_reason(error),
                format_seconds(OUTAGE_TIMEOUT),
            )
        time.sleep(min(RETRY_SECONDS, left))

    def end(self) -> None:
        """Note that an operation has succeeded."""
        with self.mutex:
            if self.started is None:
                return
            seconds, self.started = time.monotonic() - self.started, None
        logger.warning("the database is back after %s", format_seconds(seconds))

    @contextmanager
    def not_waiting(self) -> Iterator[None]:
        """Do not wait for the database in this context."""
        self.waits = False
        try:
            yield
        finally:
            self.waits = True


class HasOutages(Protocol):
    """An object with operations of a database."""

    outages: Outages


S = TypeVar("S", bound=HasOutages)


def waits_for_database(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Repeat a method while the database cannot be reached."""

    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.outages.run(partial(method, self, *args, **kwargs))

    return wraps(method)(call)


def refuses_damage(method: Callable[[S], T]) -> Callable[[S], T]:
    """Turn errors of a reading method into a UserError: a database from elsewhere can contain anything."""

    @wraps(method)
    def call(self: S) -> T:
        try:
            return method(self)
        except UserError:
            raise
        except Exception as error:
            if is_outage(error):
                raise
            raise UserError(
                f"--storage {self.outages.url}: the database is damaged or of another program ({get_reason(error)})"
            ) from error

    return call


def is_outage(error: BaseException) -> bool:
    """Return whether an error of a database may go away by itself."""
    error = find_cause(error)
    if "no such table" in str(error) or "no such column" in str(error):  # SQLite's, for a damaged database
        return False
    is_lost = isinstance(error, DBAPIError) and error.connection_invalidated
    return is_lost or isinstance(error, OperationalError | InterfaceError | sqlite3.OperationalError)


def find_cause(error: BaseException) -> BaseException:
    """Return the error of the database that caused an error of Optuna, or of SQLAlchemy after a lost connection."""
    if isinstance(error, StorageInternalError) and error.__cause__ is not None:
        return find_cause(error.__cause__)
    if isinstance(error, PendingRollbackError) and error.__context__ is not None:
        return find_cause(error.__context__)
    return error


def get_reason(error: Any) -> str:
    """Return the first line of the driver's message."""
    cause = find_cause(error)
    lines = str(getattr(cause, "orig", None) or cause).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def format_seconds(seconds: float) -> str:
    """Return a duration in words.

    >>> format_seconds(600), format_seconds(60), format_seconds(4.2)
    ('10 minutes', '1 minute', '4 seconds')
    """
    unit, number = ("minute", seconds / 60) if seconds >= 60 else ("second", seconds)
    return f"{number:.0f} {unit}{'' if round(number) == 1 else 's'}"
