"""Locks on output directories and files, so that two processes never write to the same one.

The operating system releases a lock when its process ends, however it ends. On network file systems with POSIX locks it
also excludes other machines; on file systems without locks, and on Windows, a warning is logged.
"""

import errno
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from headwise.errors import UserError

try:
    fcntl: Any = import_module("fcntl")
except ImportError:  # Windows
    fcntl = None

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"

#: How often a lock's record is read, and the seconds in between, if its holder has not written it yet.
HOLDER_ATTEMPTS, HOLDER_DELAY = 20, 0.05

#: Error numbers of file systems that have no locks.
UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}

_process_locks: set[Path] = set()  # POSIX locks do not exclude threads of one process
_process_mutex = threading.Lock()


class OutputInUseError(UserError):
    """Another process or thread writes to an output."""


@contextmanager
def lock_output(path: Path, *, is_directory: bool) -> Iterator[None]:
    """Hold the lock of an output directory or file.

    A directory is created if it does not exist, and removed again if it is still empty in the end. Of the processes of
    one distributed command, which all have the same output, only the first one holds the lock.

    Args:
        path: The directory or file that is written.
        is_directory: Whether it is a directory.

    Raises:
        OutputInUseError: Another process or thread holds the lock.
    """
    if os.environ.get("RANK", "0") != "0":
        yield
        return
    lock_path = path / LOCK_FILE if is_directory else path.with_name(f".{path.name}{LOCK_FILE}")
    existed = lock_path.parent.is_dir()
    with _exclude_threads(path, lock_path.resolve()):
        descriptor = _acquire(path, lock_path)
        try:
            yield
        finally:
            if descriptor is not None:
                lock_path.unlink(missing_ok=True)  # while the lock is held: see `_acquire`
                os.close(descriptor)
            if is_directory and not existed:
                with suppress(OSError):  # it has files now, or another process has created its lock
                    path.rmdir()


@contextmanager
def _exclude_threads(path: Path, key: Path) -> Iterator[None]:
    with _process_mutex:
        if key in _process_locks:
            raise OutputInUseError(f"{path}: in use by this process; choose another output path")
        _process_locks.add(key)
    try:
        yield
    finally:
        with _process_mutex:
            _process_locks.discard(key)


def _acquire(path: Path, lock_path: Path) -> int | None:
    """Lock a file and write the holder into it.

    Returns:
        The file descriptor, or None if the operating system or the file system has no locks.
    """
    if fcntl is None:
        lock_path.parent.mkdir(parents=True, exist_ok=True)
        logger.warning("%s: Windows has no such locks; make sure that no other process writes there", path)
        return None
    while True:
        try:
            lock_path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:  # the last holder has just removed its empty directory
            continue
        except FileExistsError:  # the same, while mkdir looked at it; or it is no directory
            if os.path.lexists(lock_path.parent) and not lock_path.parent.is_dir():
                raise
            continue
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _read_holder(descriptor)
            os.close(descriptor)
            if error.errno in UNSUPPORTED:
                lock_path.unlink(missing_ok=True)
                logger.warning(
                    "%s: the file system does not support locks; make sure that no other process writes there", path
                )
                return None
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise OutputInUseError(
                f"{path}: in use by {holder}; wait until it has finished, or choose another path"
            ) from None
        if _is_current(descriptor, lock_path):
            break
        os.close(descriptor)  # the last holder has removed the file in the meantime
    os.ftruncate(descriptor, 0)
    record = {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv)[:500],
    }
    os.write(descriptor, json.dumps(record).encode())
    return descriptor


def _is_current(descriptor: int, lock_path: Path) -> bool:
    """Return whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(lock_path))
    except FileNotFoundError:
        return False


def _read_holder(descriptor: int) -> str:
    """Return the holder of a lock, in words. A holder that has just taken the lock may not have written its record."""
    for _ in range(HOLDER_ATTEMPTS):
        try:
            holder = json.loads(os.pread(descriptor, 4096, 0))
            return f"process {int(holder['process'])} on {holder['host']!s:.64} since {holder['since']!s:.32}"
        except (ValueError, KeyError, TypeError, OSError):
            time.sleep(HOLDER_DELAY)
    return "another process"
