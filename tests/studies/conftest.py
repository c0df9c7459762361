"""Studies with fake runs, messages that studies log, and a PostgreSQL server if one is installed."""

import logging
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwise.studies.methods import Method
from headwise.studies.plan import Run, plan_runs
from headwise.studies.study import Study
from headwise.training import TextConfig
from tests.training.conftest import bert, headwise, own_cache, reviews

__all__ = ["bert", "headwise", "own_cache", "reviews"]

PLAIN, RPR = Method("plain", {"model": "plain"}), Method("rpr", {"model": "rpr"})


def two_method_runs(seeds: int = 2) -> list[Run]:
    """Runs of two methods that are never trained."""
    return plan_runs([TextConfig(data=("reviews.csv",))], (PLAIN, RPR), range(seeds))


def create_study(out_dir: Path, seeds: int = 2, **options: Any) -> Study:
    """Create a comparison of two methods."""
    return Study.create(out_dir, "compare", two_method_runs(seeds), baseline="plain", **options)


def states(study: Study) -> list[str]:
    return [status.state for status in study.trials.statuses()]


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


def find_server_programs() -> Path | None:
    """Return the directory of PostgreSQL's programs: on the path, or where Debian installs them."""
    initdb = shutil.which("initdb")
    directories = [Path(initdb).parent] if initdb else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((directory for directory in directories if (directory / "postgres").exists()), None)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URL of an empty PostgreSQL server."""
    programs = find_server_programs()
    if programs is None:
        pytest.skip("no PostgreSQL server on this machine (Debian: apt-get install postgresql)")
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'headwise[postgresql]'")
    # The server refuses to run as root. It then runs as nobody, who has no access to pytest's directories.
    user: dict[str, Any] = {"user": "nobody"} if os.getuid() == 0 else {}
    directory = Path(tempfile.mkdtemp(prefix="headwise-postgresql-"))
    if user:
        shutil.chown(directory, "nobody")
    with socket.socket() as free_socket:
        free_socket.bind(("127.0.0.1", 0))
        port = free_socket.getsockname()[1]
    data, options = directory / "data", f"-p {port} -c listen_addresses=127.0.0.1 -k {directory} -c fsync=off"
    subprocess.run(
        [programs / "initdb", "-D", data, "-U", "headwise", "--auth=trust", "-E", "UTF8", "--locale=C"],
        check=True, capture_output=True, cwd=directory, **user,
    )  # fmt: skip
    control = [str(programs / "pg_ctl"), "-D", str(data), "-w"]
    quiet: dict[str, Any] = {"check": True, "stdout": subprocess.DEVNULL, "cwd": directory, **user}
    subprocess.run([*control, "-o", options, "-l", str(directory / "log"), "start"], **quiet)
    try:
        yield f"postgresql://headwise@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], **quiet)
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def storage(request: pytest.FixtureRequest) -> str | None:
    """The database of a study: in its directory (None), and on a server."""
    url: str | None = request.getfixturevalue("postgresql") if request.param == "postgresql" else None
    return url
