"""Workers that fail, are killed or are stopped: the study ends complete all the same."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import headwise as package
from headwise.errors import UserError
from headwise.studies.study import Study
from headwise.studies.worker import TAKEN_OVER, work
from headwise.studies.worker_pool import Resources, WorkerPool, conduct
from headwise.training.core.config import RunConfig
from headwise.training.core.run_dir import write_manifest
from tests.studies.conftest import begun, planned
from tests.studies.fakes import fake

ROOT = Path(package.__file__).parents[1]

#: A worker of its own process, whose runs write down that they began, and of which some take their time.
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {tests!r})
from headwise.studies import storage
storage.HEARTBEAT, storage.GRACE = 1, 2
storage.connect.__kwdefaults__.update(heartbeat=1, grace=2)
from headwise.studies.study_dir import Folder
from headwise.studies.worker import work, main
from tests.studies.fakes import fake

def train(settings, out, resume):
    with open(Path(sys.argv[1]) / "begun.txt", "a") as file:
        file.write(f"{{settings.model}} {{settings.seed}} {{os.getpid()}}\\n")
    out.mkdir(parents=True, exist_ok=True)
    time.sleep({seconds})
    return fake(settings, out)

folder = Folder.read(Path(sys.argv[1]))
work(folder.ledger(), folder, train, name=sys.argv[2], poll=0.1)
"""


def script(path: Path, seconds: float) -> list[str]:
    path.write_text(SCRIPT.format(tests=str(Path(__file__).parents[2]), seconds=seconds))
    return [sys.executable, str(path)]


def environment(**others: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | others


def lines(study: Study) -> list[list[str]]:
    path = study.folder.path / "begun.txt"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(what: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_worker_that_is_killed_in_the_middle_of_a_run(tmp_path: Path, storage: str | None) -> None:
    study = begun(tmp_path / "study", seeds=3, storage=storage)
    command = [*script(tmp_path / "worker.py", seconds=0.7), str(study.folder.path)]
    environ = environment(HEADWISE_STORAGE=study.url)
    first, second = (subprocess.Popen([*command, name], env=environ) for name in ("first", "second"))
    wait_for(lambda: str(first.pid) in {line[2] for line in lines(study)})
    time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert second.wait(120) == 0
    entries = study.ledger.entries()
    assert [entry.state for entry in entries] == ["finished"] * 6, "nothing is lost"
    assert sorted(entry.run.key for entry in entries) == sorted(run.key for run in planned(3))
    assert len(study.results()) == 6, "nothing counts twice"
    starts = Counter((model, seed) for model, seed, _ in lines(study))
    assert set(starts.values()) == {1, 2}
    twice = [run for run, count in starts.items() if count == 2]
    assert len(twice) == 1, "only the run that was cut off began again"
    assert [pid for *run, pid in lines(study) if tuple(run) == twice[0]] == [str(first.pid), str(second.pid)]


def test_a_worker_that_was_taken_for_dead_ends(tmp_path: Path) -> None:
    study = begun(tmp_path / "study", seeds=1)
    command = [*script(tmp_path / "worker.py", seconds=60), str(study.folder.path), "asleep"]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL)
    wait_for(lambda: lines(study))
    study.ledger.lost("asleep")
    assert process.wait(60) == TAKEN_OVER
    assert [entry.state for entry in study.ledger.entries()] == ["waiting", "waiting"]


def test_a_run_that_was_finished_but_not_told_is_not_run_again(tmp_path: Path) -> None:
    study = begun(tmp_path / "study", seeds=1)
    for run in planned(1):
        fake(run.settings, study.folder.of(run))
    work(study.ledger, study.folder, train_never, name="worker")
    assert [entry.value for entry in study.ledger.entries()] == [0.0, 0.0]


def train_never(settings: RunConfig, out: Path, resume: bool) -> dict[str, Any]:
    raise AssertionError("it is done already")


def test_what_has_a_checkpoint_is_resumed_and_what_has_not_begins_anew(tmp_path: Path) -> None:
    study = begun(tmp_path / "study", seeds=2)
    first, second, third, fourth = planned(2)
    for run in (first, second, third):
        out = study.folder.of(run)
        checkpoint = out / "checkpoints" / "checkpoint-5"
        checkpoint.mkdir(parents=True)
        settings = fourth.settings if run is third else run.settings
        (out / "run.yaml").write_text(settings.to_yaml())
        if run is not second:
            (checkpoint / "trainer_state.json").write_text('{"global_step": 5}')
            write_manifest(checkpoint)
    resumed = {}

    def train(settings: RunConfig, out: Path, resume: bool) -> dict[str, Any]:
        resumed[settings.model, settings.seed] = resume, out.exists()
        return fake(settings, out)

    work(study.ledger, study.folder, train, name="worker")
    assert resumed == {
        ("plain", 0): (True, True),
        ("rpr", 0): (False, False),  # its checkpoint was cut off
        ("plain", 1): (False, False),  # a checkpoint of another run
        ("rpr", 1): (False, False),
    }


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    study = begun(tmp_path / "study", seeds=2)

    def train(settings: RunConfig, out: Path, resume: bool) -> dict[str, Any]:
        os.system("echo loud and clear")
        if settings.model == "rpr" and settings.seed == 0:
            raise UserError("reviews.csv: no such file")
        if settings.model == "rpr":
            raise RuntimeError("CUDA out of memory\nmore of it")
        return fake(settings, out)

    work(study.ledger, study.folder, train, name="worker")
    found = {entry.run.key: (entry.state, entry.error) for entry in study.ledger.entries()}
    assert found["reviews.csv", "rpr", 0] == ("failed", "reviews.csv: no such file")
    assert found["reviews.csv", "rpr", 1] == ("failed", "RuntimeError: CUDA out of memory")
    assert [state for state, _ in found.values()].count("finished") == 2
    log = study.folder.log(planned(2)[1]).read_text()
    assert "loud and clear" in log
    assert "reviews.csv: no such file" in log
    assert capfd.readouterr().out == "", "what runs say is in their logs"


def test_a_figure_that_is_no_number_is_a_failure(tmp_path: Path) -> None:
    study = begun(tmp_path / "study", seeds=1)

    def train(settings: RunConfig, out: Path, resume: bool) -> dict[str, Any]:
        return {"primary": "rmse", "figures": {"test": {"rmse": float("nan")}}}

    work(study.ledger, study.folder, train, name="worker")
    assert {entry.error for entry in study.ledger.entries()} == {"the figure is not a number: training diverged"}


def test_models_of_the_first_seed_are_kept(tmp_path: Path) -> None:
    study = begun(tmp_path / "study", seeds=2)

    def train(settings: RunConfig, out: Path, resume: bool) -> dict[str, Any]:
        metrics = fake(settings, out)
        (out / "checkpoints" / "checkpoint-1").mkdir(parents=True)
        (out / "model.safetensors").touch()
        return metrics

    work(study.ledger, study.folder, train, name="worker")
    kept = {run.key: sorted(path.name for path in study.folder.of(run).iterdir()) for run in planned(2)}
    assert kept["reviews.csv", "plain", 0] == ["metrics.json", "model.safetensors", "run.yaml"]
    assert kept["reviews.csv", "plain", 1] == ["metrics.json", "run.yaml"]


def test_a_crew_replaces_who_dies_and_stops_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = begun(tmp_path / "study", seeds=4)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = script(tmp_path / "worker.py", seconds=300)
    with WorkerPool(study.folder, study.ledger, Resources(2), study.url, command) as crew:
        crew.tend(study.ledger.entries())
        assert len(crew.workers) == 2
        victim = crew.workers[0]
        wait_for(lambda: len(lines(study)) == 2)
        victim.process.kill()
        victim.process.wait()
        crew.tend(study.ledger.entries())
        assert victim not in crew.workers
        assert len(crew.workers) == 2
        assert Counter(entry.state for entry in study.ledger.entries()) == {"running": 1, "waiting": 7}
    assert Counter(entry.state for entry in study.ledger.entries()) == {"waiting": 8}, "all give back what they have"


def test_a_study_that_is_interrupted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = begun(tmp_path / "study", seeds=2)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def interrupt() -> None:
        wait_for(lambda: len(study.results()) >= 1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        conduct(study.folder, study.ledger, Resources(1), study.url, script(tmp_path / "worker.py", seconds=1))
    thread.join()
    kept = Counter(entry.state for entry in study.ledger.entries())
    assert kept["running"] == 0
    assert kept["finished"] >= 1
    assert kept["waiting"] >= 1
    again = Study.resume(study.folder.path)
    conduct(again.folder, again.ledger, Resources(1), again.url, script(tmp_path / "worker.py", seconds=0))
    assert len(again.results()) == 4
    starts = Counter((model, seed) for model, seed, _ in lines(study))
    assert sum(starts.values()) <= 5, "what was finished was not run again"


def test_workers_that_cannot_even_start_are_told(tmp_path: Path) -> None:
    study = begun(tmp_path / "study", seeds=1)
    broken = [sys.executable, "-c", "raise SystemExit('no torch here')"]
    with pytest.raises(UserError, match=r"4 workers in a row ended .* code 1: no torch here .* --resume goes on"):
        conduct(study.folder, study.ledger, Resources(1), study.url, broken)


def test_a_worker_that_is_killed_at_its_start_is_replaced(tmp_path: Path) -> None:
    study = begun(tmp_path / "study", seeds=1)
    worker = script(tmp_path / "worker.py", seconds=0)
    first = tmp_path / "first.py"
    killed = "import os, pathlib, signal, sys; seen = pathlib.Path(sys.argv[0] + '.seen')\n"
    killed += "if not seen.exists(): seen.touch(); os.kill(os.getpid(), signal.SIGKILL)\n"
    first.write_text(killed + f"os.execv({worker[0]!r}, [*{list(worker)!r}, *sys.argv[1:]])\n")
    conduct(study.folder, study.ledger, Resources(1), study.url, [sys.executable, str(first)])
    assert (tmp_path / "first.py.seen").exists()
    assert len(study.results()) == 2


def test_gpus_are_taken_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    machine = Resources(4, ("0", "3"))
    assert [machine.environment(place)["CUDA_VISIBLE_DEVICES"] for place in range(4)] == ["0", "3", "0", "3"]
    assert int(machine.environment(0)["OMP_NUM_THREADS"]) >= 1
    with pytest.raises(UserError, match="--jobs must be at least 1, got 0"):
        Resources(0)


def test_progress_is_a_line_for_each_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from headwise.studies.progress import Progress

    study = begun(tmp_path / "study", seeds=1)
    with Progress(study.folder) as shown:
        shown.update(study.ledger.entries(), more=2)
        claim = study.ledger.claim("worker")
        assert claim is not None
        study.ledger.finished(claim, 0.75)
        other = study.ledger.claim("worker")
        assert other is not None
        study.folder.log(other.run).parent.mkdir()
        study.folder.log(other.run).write_text("10%\r20%\r30%\nTraceback\nValueError: bad luck\n")
        study.ledger.failed(other, "bad luck")
        shown.update(study.ledger.entries(), more=0)
    said = capsys.readouterr().err
    assert "[1/2] reviews.csv, plain, seed 0: 0.7500 (0 s)\n" in said
    assert "[2/2] reviews.csv, rpr, seed 0: failed: bad luck\n    30%\n    Traceback\n    ValueError: bad" in said
    assert f"log: {study.folder.log(other.run)}" in said


def test_metrics_are_read_from_disk(tmp_path: Path) -> None:
    study = begun(tmp_path / "study", seeds=1)
    work(study.ledger, study.folder, fake, name="worker")
    found = study.results()
    assert [(one.task, one.method, one.seed) for one in found] == [run.key for run in planned(1)]
    assert all(one.metrics == json.loads((one.folder / "metrics.json").read_text()) for one in found)
