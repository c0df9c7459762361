"""Studies whose runs are quick fakes, and a PostgreSQL server where there is one."""

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
from headwise.studies.plan import Run, runs
from headwise.studies.study import Study
from headwise.training import TextConfig
from tests.training.conftest import bert, headwise, own_cache, reviews

__all__ = ["bert", "headwise", "own_cache", "reviews"]

PLAIN, RPR = Method("plain", {"model": "plain"}), Method("rpr", {"model": "rpr"})


def planned(seeds: int = 2, *methods: Method) -> list[Run]:
    return runs([TextConfig(data=("reviews.csv",))], methods or (PLAIN, RPR), range(seeds))


def begun(out: Path, seeds: int = 2, **about: Any) -> Study:
    return Study.begin(out, "compare", planned(seeds), baseline="plain", **about)


def server_programs() -> Path | None:
    """Where PostgreSQL's server is: on the path, or where Debian puts it."""
    found = shutil.which("initdb")
    places = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "postgres").exists()), None)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The address of a server of our own, empty."""
    programs = server_programs()
    if programs is None:
        pytest.skip("no PostgreSQL server on this machine (Debian: apt-get install postgresql)")
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'headwise[postgresql]'")
    # The server refuses to be root, so root lends it to nobody, who cannot look into pytest's own folders.
    user: dict[str, Any] = {"user": "nobody"} if os.getuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="headwise-postgresql-"))
    if user:
        shutil.chown(folder, "nobody")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data, options = folder / "data", f"-p {port} -c listen_addresses=127.0.0.1 -k {folder} -c fsync=off"
    subprocess.run(
        [programs / "initdb", "-D", data, "-U", "headwise", "--auth=trust", "-E", "UTF8", "--locale=C"],
        check=True, capture_output=True, cwd=folder, **user,
    )  # fmt: skip
    control = [str(programs / "pg_ctl"), "-D", str(data), "-w"]
    quiet: dict[str, Any] = {"check": True, "stdout": subprocess.DEVNULL, "cwd": folder, **user}
    subprocess.run([*control, "-o", options, "-l", str(folder / "log"), "start"], **quiet)
    try:
        yield f"postgresql://headwise@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], **quiet)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def storage(request: pytest.FixtureRequest) -> str | None:
    """Where a study is kept: in its folder, and on a server."""
    found: str | None = request.getfixturevalue("postgresql") if request.param == "postgresql" else None
    return found
