"""A PostgreSQL server for tests, which can be stopped and started again."""

import os
import shutil
import socket
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any


def find_server_programs() -> Path | None:
    """Return the directory of PostgreSQL's programs: on the path, or where Debian installs them."""
    initdb = shutil.which("initdb")
    directories = [Path(initdb).parent] if initdb else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((directory for directory in directories if (directory / "postgres").exists()), None)


def why_no_server() -> str:
    """Return why no server can be started, or an empty text."""
    if find_server_programs() is None:
        return "no PostgreSQL server on this machine (Debian: apt-get install postgresql)"
    return "" if find_spec("psycopg") else "psycopg is not installed: pip install 'headwise[postgresql]'"


class Server:
    """An empty server, which runs in the `with` block."""

    def __init__(self) -> None:
        programs = find_server_programs()
        assert programs is not None
        # The server refuses to run as root. It then runs as nobody, who has no access to pytest's directories.
        user: dict[str, Any] = {"user": "nobody"} if os.getuid() == 0 else {}
        self.directory = Path(tempfile.mkdtemp(prefix="headwise-postgresql-"))
        if user:
            shutil.chown(self.directory, "nobody")
        with socket.socket() as free_socket:
            free_socket.bind(("127.0.0.1", 0))
            self.port = free_socket.getsockname()[1]
        self.url = f"postgresql://headwise@127.0.0.1:{self.port}/postgres"
        data = self.directory / "data"
        self.options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self.directory} -c fsync=off"
        self.control = [str(programs / "pg_ctl"), "-D", str(data), "-w", "-t", "600"]
        self.quiet: dict[str, Any] = {"check": True, "stdout": subprocess.DEVNULL, "cwd": self.directory, **user}
        subprocess.run(
            [programs / "initdb", "-D", data, "-U", "headwise", "--auth=trust", "-E", "UTF8", "--locale=C"],
            check=True, capture_output=True, cwd=self.directory, **user,
        )  # fmt: skip

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(check=False)
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        subprocess.run([*self.control, "-o", self.options, "-l", str(self.directory / "log"), "start"], **self.quiet)

    def stop(self, *, check: bool = True) -> None:
        """Stop the server at once, as a crash does: all connections break."""
        subprocess.run([*self.control, "-m", "immediate", "stop"], **(self.quiet | {"check": check}))
