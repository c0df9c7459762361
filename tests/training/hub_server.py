"""A stand-in for the Hugging Face Hub: it accepts repositories and commits, and stores the uploaded files."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class HubServer(ThreadingHTTPServer):
    """The server's state: repositories, whether they are private, and the files of each."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.is_read_only = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: HubServer

    def log_message(self, *args: Any) -> None:
        """Print nothing."""

    def answer(self, code: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_GET(self) -> None:
        self.answer(404, {"error": "Repository not found"})

    def do_POST(self) -> None:
        body = self.body()
        parts = self.path.strip("/").split("/")
        if self.server.is_read_only:
            self.answer(403, {"error": "You have no write access"})
        elif self.path == "/api/repos/create":
            request = json.loads(body)
            owner = request.get("organization") or "me"
            repository = f"{owner}/{request['name']}"
            self.server.files.setdefault(repository, {})
            self.server.private[repository] = bool(request.get("private")) or request.get("visibility") == "private"
            self.answer(200, {"url": f"{self.server.url}/{repository}", "name": repository, "id": repository})
        elif self.path == "/api/validate-yaml":
            self.answer(200, {"errors": [], "warnings": []})
        elif "preupload" in parts:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            self.answer(200, {"files": files})
        elif "commit" in parts:
            repository = "/".join(parts[2:4])
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    value = entry["value"]
                    self.server.files[repository][value["path"]] = base64.b64decode(value["content"])
            commit = "0" * 40
            url = f"{self.server.url}/{repository}/commit/{commit}"
            self.answer(200, {"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""})
        else:
            self.answer(404, {"error": self.path})


@contextmanager
def hub_server() -> Iterator[HubServer]:
    """Run a server in a thread."""
    server = HubServer()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
