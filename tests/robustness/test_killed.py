"""Kill it anywhere: what goes on afterwards ends as what was never killed, bit for bit.

A handful of kills each; `make torture` does hundreds.
"""

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.robustness.launcher import KILLED, Launcher
from tests.training.conftest import rows, write
from tests.training.translation.conftest import SMALL as SMALL_TRANSLATOR
from tests.training.translation.conftest import sentences
from tests.training.translation.conftest import write as write_pairs

SMALL = ("--heads", "2", "--head-dim", "4", "--word-dim", "8", "--batch-size", "16", "--learning-rate", "0.01")


@dataclass(frozen=True)
class Job:
    """Something long.

    Args:
        start: the command.
        again: what goes on with it; None where it begins anew.
        begun: the file that is there once there is something to go on with.
        ends: the file that is there when all is done.
        outcome: what is in the folder then, to compare.
    """

    start: tuple[Any, ...]
    again: tuple[Any, ...] | None
    begun: str
    ends: str
    outcome: Callable[[Path], Any]

    def command(self, out: Path) -> tuple[Any, ...]:
        there = self.again is not None and (out / self.begun).exists()
        return (*(self.again if there and self.again else self.start), "--out", out)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data") / "reviews.csv", ("text", "label"), list(rows(100)))


def trained(out: Path) -> Any:
    """Everything that a run found, but for how long it took."""
    metrics = json.loads((out / "metrics.json").read_text())
    for name in ("train_seconds", "examples_per_second", "impressions_per_second", "peak_memory", "decoding"):
        metrics.pop(name, None)
    timed = ("_runtime", "_per_second")
    metrics["history"] = [{k: x for k, x in log.items() if not k.endswith(timed)} for log in metrics["history"]]
    files = {path.name: path.read_bytes() for path in out.glob("*.safetensors")}
    assert files
    return metrics, files, pq.read_table(out / "predictions.parquet").to_pydict()


def everything(out: Path) -> Any:
    return {path.relative_to(out): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def runs(data: Path) -> Job:
    """With dropout, whose random numbers go on, and with patience, which is counted on."""
    options = ("--data", data, *SMALL, "--epochs", "6", "--early-stopping-patience", "2", "--dropout", "0.2")
    return Job(("train", *options), ("train", "--resume"), "run.yaml", "metrics.json", trained)


def guided(data: Path, bert: Path) -> Job:
    """With weights that are found while it trains."""
    options = ("--data", data, "--model", bert, "--guides", "mdg", "pdg", "--epochs", "3", "--batch-size", "16")
    return Job(("train", *options), ("train", "--resume"), "run.yaml", "metrics.json", trained)


def recommender(log: Path) -> Job:
    options = ("--task", "mind", "--data", log, "--heads", "2", "--head-dim", "4", "--word-dim", "8", "--epochs", "3")
    return Job(("train", *options, "--batch-size", "16"), ("train", "--resume"), "run.yaml", "metrics.json", trained)


def translator(pairs: Path) -> Job:
    """Of checkpoints that are averaged."""
    options = [part for name, x in SMALL_TRANSLATOR.items() for part in (f"--{name.replace('_', '-')}", x)]
    options += ["--task", "translation", "--data", pairs, "--steps", "30", "--average", "3", "--scheme", "rpr"]
    return Job(("train", *options), ("train", "--resume"), "run.yaml", "metrics.json", trained)


def simulated(data: Path) -> Job:
    options = ("--titles", data, "--impressions", "3000", "--users", "300", "--candidates", "10", "--past", "3")
    return Job(("simulate", "mind", *options), None, "", "truth.json", everything)


def check(launcher: Launcher, job: Job, folder: Path, kills: int, seed: int = 0) -> int:
    """Kill a job at random moments, in time or at a file, and go on, until it was killed so often.

    Returns:
        How many kills hit.
    """
    draw, whole = random.Random(seed), folder / "whole"
    start = time.monotonic()
    assert launcher.run(*job.command(whole)) == 0, launcher.said()
    lasts, expected = time.monotonic() - start, job.outcome(whole)
    hit = number = 0
    while hit < kills:
        number += 1
        out, chain = folder / f"run-{number}" / "run", 0
        code = KILLED
        while code == KILLED:
            where: dict[str, Any] = {}
            if chain < 4 and hit + chain < kills:
                late = draw.random() * lasts
                at_a_file = {"operation": int(300 * draw.random() ** 2), "inside": out.parent}
                where = draw.choice([{"seconds": late}, at_a_file])
            code = launcher.run(*job.command(out), **where)
            if code == KILLED:
                chain += 1
                if (out / job.ends).exists():
                    code = 0  # it was done, and died afterwards
        assert code == 0, launcher.said()
        assert job.outcome(out) == expected, f"chain {number}, seed {seed}"
        hit += chain
        done = (out / job.ends).stat().st_mtime_ns
        assert launcher.run(*job.command(out)) == 2, "what is finished is not done again"
        assert (out / job.ends).stat().st_mtime_ns == done
        assert not list(out.parent.rglob("*.part")), "nothing half written is left"
    return hit


@pytest.fixture
def many(request: pytest.FixtureRequest) -> int:
    """How many times more kills there are in the full form."""
    return 40 if request.config.getoption("--slow") else 1


def test_a_run(launcher: Launcher, data: Path, tmp_path: Path, many: int) -> None:
    check(launcher, runs(data), tmp_path, kills=3 * many)


def test_a_guided_run(launcher: Launcher, data: Path, bert: Path, tmp_path: Path, many: int) -> None:
    check(launcher, guided(data, bert), tmp_path, kills=many)


@pytest.mark.slow
def test_a_recommender(launcher: Launcher, log: Path, tmp_path: Path, many: int) -> None:
    check(launcher, recommender(log), tmp_path, kills=many)


def test_a_translator(launcher: Launcher, tmp_path: Path, many: int) -> None:
    for split, count in (("train", 120), ("dev", 10), ("test", 10)):
        write_pairs(tmp_path / "pairs", split, sentences(count, seed=count))
    check(launcher, translator(tmp_path / "pairs"), tmp_path, kills=many)


def test_a_simulation(launcher: Launcher, data: Path, tmp_path: Path, many: int) -> None:
    check(launcher, simulated(data), tmp_path, kills=2 * many)
