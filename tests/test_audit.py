"""tools/audit.py with a local vulnerability database."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.short_form import choose_size

ROOT = Path(__file__).parents[1]


@pytest.fixture
def database() -> Iterator[tuple[str, dict[str, str]]]:
    """A database in OSV's format: its URL, and the version that fixes each vulnerable package."""
    fix_versions: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            package = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["package"]
            response: dict[str, object] = {}
            if package["name"] in fix_versions:
                events = [{"introduced": "0"}, {"fixed": fix_versions[package["name"]]}]
                affected = {"package": package, "ranges": [{"type": "ECOSYSTEM", "events": events}]}
                response = {"vulns": [{"id": "OSV-1", "affected": [affected]}]}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(response).encode())

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", fix_versions
    server.shutdown()
    server.server_close()


def audit(url: str) -> tuple[int, str]:
    """Return the exit code and the output of the audit."""
    command = [sys.executable, "tools/audit.py", "-s", "osv", "--osv-url", url]
    environment = os.environ | {"NO_PROXY": "127.0.0.1"}
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return process.returncode, process.stdout + process.stderr


@pytest.mark.long
def test_known_vulnerability_fails(database: tuple[str, dict[str, str]]) -> None:
    url, fix_versions = database
    if choose_size(short=False, long=True):
        code, output = audit(url)
        assert code == 0, output
        assert "packages looked up, 0 with known vulnerabilities" in output
    fix_versions["pyyaml"] = "99.1"
    code, output = audit(url)
    assert code == 1, output
    assert "OSV-1, fixed in 99.1" in output
    assert "1 with known vulnerabilities" in output


@pytest.mark.long
def test_unreachable_database_fails() -> None:
    code, output = audit("http://127.0.0.1:9")
    assert code == 1, output
    assert "a network is required" in output
