"""A study whose conductor, worker or both are killed: it goes on, nothing finished is run again, nothing differs."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import headwise as package
from tests.training.conftest import rows, write

#: The command, and its workers, with signs of life more often: else it takes a minute until one is given up.
IMPATIENT = """
import sys
from headwise.studies import storage, worker_pool
storage.HEARTBEAT_SECONDS, storage.HEARTBEAT_TIMEOUT = 1, 3
if sys.argv[1] == "worker":
    from headwise.studies.worker import main
    sys.argv = sys.argv[1:]
    sys.exit(main())
worker_pool.WORKER_COMMAND = (sys.executable, __file__, "worker")
from headwise.cli import main
sys.exit(main())
"""
METHODS = ("--methods", "plain", "rpr", "--seeds", "2", "--epochs", "20", "--heads", "2", "--head-dim", "4")


def family(parent: int) -> list[int]:
    try:
        found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    except OSError:
        return []
    return [int(child) for child in found]


def finished(study: Path) -> dict[Path, int]:
    return {path.relative_to(study): path.stat().st_mtime_ns for path in study.rglob("metrics.json")}


def outcome(study: Path) -> dict[str, Any]:
    found = {}
    for path in study.rglob("metrics.json"):
        metrics = json.loads(path.read_text())
        losses = [log["loss"] for log in metrics["history"] if "loss" in log]
        found[str(path.parent.relative_to(study))] = metrics["metrics"], losses
    return found


@pytest.mark.slow
def test_a_study(tmp_path: Path) -> None:
    script = tmp_path / "impatient.py"
    script.write_text(IMPATIENT)
    data = write(tmp_path / "reviews.csv", ("text", "label"), list(rows(100)))
    environment = os.environ | {
        "PYTHONPATH": str(Path(package.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "HF_DATASETS_CACHE": str(tmp_path / "cache"),
    }

    def start(*args: object) -> subprocess.Popen[bytes]:
        with (tmp_path / "said.txt").open("ab") as said:
            command = [sys.executable, str(script), "compare", *map(str, args)]
            return subprocess.Popen(command, env=environment, stdout=said, stderr=said)

    whole, out = tmp_path / "whole", tmp_path / "study"
    began = time.monotonic()
    assert start("--data", data, *METHODS, "--batch-size", 16, "--out", whole).wait(300) == 0
    lasts = time.monotonic() - began
    draw, kills = random.Random(0), 0
    while kills < 8 and len(finished(out)) < 6:
        before = finished(out)
        arguments = ("--resume",) if (out / "study.yaml").exists() else ("--data", data, *METHODS, "--batch-size", 16)
        process = start(*arguments, "--out", out)
        try:
            process.wait(draw.uniform(0.1, 0.35) * lasts)  # so that two kills cannot leave it finished
        except subprocess.TimeoutExpired:
            workers = family(process.pid)
            victims = [[process.pid], [process.pid, *workers], workers][kills % 3]
            for victim in victims:
                os.kill(victim, signal.SIGKILL)
            kills += 1
            if process.pid in victims:
                process.wait()
        else:
            assert process.returncode in (0, 2), (tmp_path / "said.txt").read_text()[-3000:]
        if process.poll() is None:
            assert process.wait(300) == 0, (tmp_path / "said.txt").read_text()[-3000:]
        after = finished(out)
        assert {path: after.get(path) for path in before} == before, "what is finished is not run again"
    while not (out / "report.html").exists():
        assert start("--resume", "--out", out).wait(300) == 0, (tmp_path / "said.txt").read_text()[-3000:]
    assert kills >= 2
    assert outcome(out) == outcome(whole)
