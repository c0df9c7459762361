"""Worker processes of tests: their runs write down when they start, and take a given time."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import headwise
from headwise.studies.study import Study

SOURCE = Path(headwise.__file__).parents[1]

SCRIPT = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from headwise.studies.worker import serve
from tests.studies.fakes import fake_train

def train(config, run_dir, resume):
    starts = Path(sys.argv[1]) / "starts.txt"
    seconds = {seconds} if starts.exists() else {first_seconds}
    with open(starts, "a") as file:
        file.write(f"{{config.model}} {{config.seed}} {{os.getpid()}}\\n")
    run_dir.mkdir(parents=True, exist_ok=True)
    time.sleep(seconds)
    return fake_train(config, run_dir)

sys.exit(serve(train))
"""


def write_worker_script(path: Path, seconds: float, first_seconds: float | None = None) -> list[str]:
    """Write the script of a worker. Return its command.

    Args:
        path: the script's path.
        seconds: the duration of each run.
        first_seconds: the duration of the study's first run, if it differs.
    """
    first_seconds = seconds if first_seconds is None else first_seconds
    tests = str(Path(__file__).parents[2])
    path.write_text(SCRIPT.format(tests=tests, seconds=seconds, first_seconds=first_seconds))
    return [sys.executable, str(path)]


def worker_environment(**variables: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"} | variables


def read_starts(study: Study) -> list[list[str]]:
    """Return model, seed and process id of every run that was started."""
    path = study.study_dir.path / "starts.txt"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
