"""Worker processes of tests: their runs write down when they start, and end when the test allows it."""

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

starts, allowed = (Path(sys.argv[1]) / name for name in ("starts.txt", "allowed.txt"))

def train(config, run_dir, resume):
    line = f"{{config.model}} {{config.seed}} {{os.getpid()}}"
    with open(starts, "a") as file:
        file.write(line + "\\n")
    index = starts.read_text().splitlines().index(line)
    run_dir.mkdir(parents=True, exist_ok=True)
    while allowed.exists() and index >= int(allowed.read_text()):
        time.sleep(0.05)
    return fake_train(config, run_dir)

sys.exit(serve(train))
"""


def write_worker_script(path: Path) -> list[str]:
    """Write the script of a worker. Return its command.

    Args:
        path: the script's path.
    """
    tests = str(Path(__file__).parents[2])
    path.write_text(SCRIPT.format(tests=tests))
    return [sys.executable, str(path)]


def worker_environment(**variables: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"} | variables


def allow_runs(study: Study, number: int | None) -> None:
    """Let the study's first runs finish, in the order of their starts. Others wait. None lets all finish."""
    path = study.study_dir.path / "allowed.txt"
    if number is None:
        path.unlink()
    else:
        new_path = path.with_suffix(".new")
        new_path.write_text(str(number))
        new_path.replace(path)


def read_starts(study: Study) -> list[list[str]]:
    """Return model, seed and process id of every run that was started."""
    path = study.study_dir.path / "starts.txt"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def wait_until(condition: Callable[[], object]) -> None:
    """Wait without a limit: pytest ends tests that hang."""
    while not condition():
        time.sleep(0.05)
