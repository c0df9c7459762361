"""Runs code in new processes that start at once: forks of a process that has imported torch, but not transformers."""

import json
import os
import subprocess
import sys
import tempfile
import textwrap
import traceback
import warnings
from functools import cache
from importlib import import_module
from pathlib import Path

#: What takes long to import, except headwise and transformers.
PRELOADED = (
    *("torch", "torch._dynamo", "torch.distributed.fsdp", "accelerate", "huggingface_hub.hf_api", "jinja2", "pandas"),
    *("pyarrow", "scipy.stats", "sklearn.metrics"),
)


def run_fresh_python(code: str) -> str:
    """Run code in a new process that has imported neither headwise nor transformers, and return its output."""
    server = start_server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.NamedTemporaryFile() as log:
        server.stdin.write(json.dumps([textwrap.dedent(code), log.name]) + "\n")
        server.stdin.flush()
        status = server.stdout.readline()
        output = Path(log.name).read_text(encoding="utf-8")
    assert status == "0\n", output
    return output


@cache
def start_server() -> subprocess.Popen[str]:
    """Start the process that is forked. It ends with this process, which closes its standard input."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.fresh_python"]
    root = Path(__file__).parents[1]
    return subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def serve() -> None:
    """Fork a child for each line: code, and the file for its output. Answer with its exit status."""
    for name in PRELOADED:
        import_module(name)
    for line in sys.stdin:
        code, log = json.loads(line)
        child = os.fork()
        if child == 0:
            execute(code, log)
        print(os.waitpid(child, 0)[1], flush=True)


def execute(code: str, log: str) -> None:
    """Execute code in this process, and end it."""
    file = os.open(log, os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)
    warnings.simplefilter("ignore")
    status = 1
    try:
        exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # without the exit handlers of the server


if __name__ == "__main__":
    serve()
