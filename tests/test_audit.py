"""`make audit`, asking a database of our own: what it finds, it tells, and fails."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def database() -> Iterator[tuple[str, dict[str, str]]]:
    """Where it is, and which version of each vulnerable package mends it."""
    vulnerable: dict[str, str] = {}

    class Database(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["package"]
            answer: dict[str, object] = {}
            if asked["name"] in vulnerable:
                mended = {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": vulnerable[asked["name"]]}]}
                answer = {"vulns": [{"id": "OSV-1", "affected": [{"package": asked, "ranges": [mended]}]}]}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Database)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", vulnerable
    server.shutdown()
    server.server_close()


def audit(url: str) -> tuple[int, str]:
    command = [sys.executable, "tools/audit.py", "-s", "osv", "--osv-url", url]
    here = os.environ | {"NO_PROXY": "127.0.0.1"}
    done = subprocess.run(command, cwd=ROOT, env=here, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_package_with_a_known_vulnerability_fails(database: tuple[str, dict[str, str]]) -> None:
    url, vulnerable = database
    code, told = audit(url)
    assert (code, "packages looked up, 0 with known vulnerabilities" in told) == (0, True), told
    vulnerable["pyyaml"] = "99.1"
    code, told = audit(url)
    assert (code, "OSV-1, fixed in 99.1" in told, "1 with known" in told) == (1, True, True), told


def test_without_an_answer_it_fails() -> None:
    code, told = audit("http://127.0.0.1:9")
    assert (code, "it needs a network" in told) == (1, True), told
