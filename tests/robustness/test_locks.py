"""Output directories and files are written by one process at a time."""

import multiprocessing
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from headwise.errors import UserError
from headwise.locks import LOCK_FILE, lock_output

HOLD = """
import sys
from pathlib import Path
from headwise.locks import lock_output
with lock_output(Path(sys.argv[1]), is_directory=sys.argv[2] == "directory"):
    print("locked", flush=True)
    sys.stdin.read()
"""


def hold(path: Path, kind: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_second_process_is_refused_with_the_holder(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "out"
    with hold(path, kind) as process:
        with pytest.raises(UserError, match=rf"out: in use by process {process.pid} on "), lock(path, kind):
            pass
        process.communicate("")
    with lock(path, kind):
        pass
    assert not path.exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_lock_ends_with_a_killed_process(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "out"
    with hold(path, kind) as process:
        process.kill()
        process.wait()
    with lock(path, kind):
        pass


def test_lock_is_not_inherited_by_children(tmp_path: Path) -> None:
    """A data loader that outlives a killed run must not keep its lock."""
    path = tmp_path / "out"
    context = multiprocessing.get_context("fork")
    release = context.Event()
    with lock(path, "directory"):
        child = context.Process(target=release.wait, args=(60,))
        child.start()
    try:
        with hold(path, "directory") as process:
            process.communicate("")
    finally:
        release.set()
        child.join()


def test_threads_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    errors: list[str] = []

    def second() -> None:
        try:
            with lock(tmp_path / "out", "directory"):
                pass
        except UserError as error:
            errors.append(str(error))

    with lock(tmp_path / "out", "directory"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert len(errors) == 1
    assert "in use by this process" in errors[0]


def test_directory_with_files_is_kept(tmp_path: Path) -> None:
    with lock(tmp_path / "out", "directory"):
        (tmp_path / "out" / "result").touch()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["result"]


def test_file_systems_without_locks_get_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.lockf", unsupported)
    with lock(tmp_path / "out", "directory"):
        (tmp_path / "out" / "result").touch()
    assert "does not support locks" in caplog.text


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"process": "\\u001b[31m", "host": 3}', b"\xff" * 5000])
def test_damaged_holder_is_not_trusted(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.locks.HOLDER_DELAY", 0.0)
    path = tmp_path / "out"
    with hold(path, "directory") as process:
        (path / LOCK_FILE).write_bytes(content)
        with pytest.raises(UserError, match="in use by another process"), lock(path, "directory"):
            pass
        process.communicate("")


def test_counts_stay_exact_with_many_processes(tmp_path: Path) -> None:
    """Processes that create and remove the lock file in turn never hold it together."""
    counter = tmp_path / "counter"
    counter.write_text("0")
    program = """
import sys, time
from pathlib import Path
from headwise.errors import UserError
from headwise.locks import lock_output
counter, done = Path(sys.argv[1]), 0
while done < 30:
    try:
        with lock_output(counter.with_name("out"), is_directory=True):
            number = int(counter.read_text())
            time.sleep(0)
            counter.write_text(str(number + 1))
            done += 1
    except UserError:
        pass
"""
    processes = [subprocess.Popen([sys.executable, "-c", program, str(counter)]) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert int(counter.read_text()) == 90


def test_a_directory_that_is_removed_while_it_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir, errors = Path.mkdir, [FileExistsError(), FileExistsError()]

    def race(path: Path, *args: Any, **kwargs: Any) -> None:
        if path.name == "out" and errors:
            raise errors.pop()
        mkdir(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", race)
    with lock_output(tmp_path / "out", is_directory=True):
        assert not errors
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError), lock_output(tmp_path / "file", is_directory=True):
        pass


def lock(path: Path, kind: str):  # type: ignore[no-untyped-def]
    return lock_output(path, is_directory=kind == "directory")
