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
import os, signal, sys, time
from pathlib import Path
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.default_int_handler)
sys.path.insert(0, {tests!r})
from headwise.studies.parent import end_with_parent
from headwise.studies.storage import connect
from headwise.studies.study_dir import StudyDir
from headwise.studies.trials import Trials
from headwise.studies.worker import work
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

end_with_parent()
study_dir = StudyDir.read(Path(sys.argv[1]))
storage = connect(study_dir.database_url(), wait=True, heartbeat_seconds=1, heartbeat_timeout={heartbeat_timeout})
try:
    work(Trials(storage, study_dir.name), study_dir, train, name=sys.argv[2], poll_seconds=0.1)
except KeyboardInterrupt:  # as in `worker.main`: the study has ended while this worker waits
    sys.exit(130)
"""


def write_worker_script(path: Path, *, heartbeat_timeout: int = 3600) -> list[str]:
    """Write a script that works on a study with frequent heartbeats. Return its command.

    Args:
        path: the script's path.
        heartbeat_timeout: seconds without a heartbeat after which the run of another worker is taken over.
    """
    tests = str(Path(__file__).parents[2])
    path.write_text(SCRIPT.format(tests=tests, heartbeat_timeout=heartbeat_timeout))
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
