"""Cases of `make torture`. Each function does one and raises an AssertionError if headwise did not hold."""

import contextlib
import json
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.robustness.launcher import KILLED, Launcher, Victims
from tests.robustness.torture.jobs import SMALL, Data, Job, read_run, read_study

#: Kills in a row before a job may finish.
MAX_CHAIN = 4


class Reference:
    """What a job leaves behind if nothing happens to it, and how long it takes."""

    def __init__(self, launcher: Launcher, job: Job, out: Path) -> None:
        start = time.monotonic()
        assert launcher.run(*job.command(out)) == 0, launcher.said()
        self.seconds, self.outcome = time.monotonic() - start, job.outcome(out)


def kill_chain(launcher: Launcher, job: Job, reference: Reference, out: Path, seed: int, max_kills: int) -> int:
    """Kill a job a few times in a row, in time or at a file operation, and resume it.

    Returns:
        The number of kills that hit.
    """
    draw, num_kills, attempts = random.Random(seed), 0, 0
    while True:
        attempts += 1
        assert attempts < 40, f"the job does not finish: {launcher.said()[-2000:]}"
        finished_runs = finished_times(out)
        where: dict[str, Any] = {}
        is_killed_worker = False
        if num_kills < min(MAX_CHAIN, max_kills) and attempts <= 2 * MAX_CHAIN:
            where = {"seconds": draw.random() * reference.seconds}
            if job.is_study:
                victims: Victims = draw.choice(["command", "workers", "all"])
                where["victims"] = victims
                is_killed_worker = victims == "workers"
            elif draw.random() < 0.5:
                where = {"operation": int(300 * draw.random() ** 2), "inside": out.parent}
        code = launcher.run(*job.command(out), **where)
        after = finished_times(out)
        assert {path: after.get(path) for path in finished_runs} == finished_runs, "a finished run was run again"
        num_kills += code == KILLED or (is_killed_worker and "seconds" in where)
        if (code == 0 or (code == KILLED and not job.is_study)) and (out / job.ends).exists():
            break
        # A killed worker may leave a failed run, which is resumed.
        assert code in (0, KILLED) or job.is_study, f"exit code {code}: {launcher.said()[-2000:]}"
        assert "Traceback" not in launcher.said(), launcher.said()[-2000:]
    assert job.outcome(out) == reference.outcome, "the outcome differs"
    assert not list(out.parent.rglob("*.part")), "an incomplete file is left"
    if job.resume == ("train", "--resume"):
        modified = (out / job.ends).stat().st_mtime_ns
        assert launcher.run(*job.command(out)) == 2, "a finished run was run again"
        assert (out / job.ends).stat().st_mtime_ns == modified
    return num_kills


def finished_times(out: Path) -> dict[str, int]:
    """Return when the runs of a study have finished.

    Hidden directories, which hold files that are being written, are skipped. Workers of a killed command can still
    delete them.
    """
    times = {}
    for directory, names, files in os.walk(out):
        names[:] = [name for name in names if not name.startswith(".")]
        if "metrics.json" in files and Path(directory) != out:
            times[directory] = Path(directory, "metrics.json").stat().st_mtime_ns
    return times


def two_at_once(launcher: Launcher, data: Data, references: dict[int, Any], out: Path, seed: int) -> None:
    """Start two runs with different seeds in one directory at the same moment."""
    commands = [run_command(data, number, out, "--force") for number in references]
    codes = launcher.run_at_once(*commands)
    assert set(codes) <= {0, 2}, launcher.said()[-2000:]
    assert 0 in codes, launcher.said()[-2000:]
    said = launcher.said()
    assert "Traceback" not in said, said[-2000:]
    assert said.count(f"{out}: in use by process ") == codes.count(2)
    config = (out / "run.yaml").read_text().splitlines()
    number = int(next(line.removeprefix("seed: ") for line in config if line.startswith("seed: ")))
    assert read_run(out) == references[number], "the results are not those of the run's seed"


def run_command(data: Data, seed: int, out: Path, *options: Any) -> tuple[Any, ...]:
    return ("train", "--data", data.reviews, *SMALL, "--epochs", 2, "--seed", seed, *options, "--out", out)


def lose_database(launcher: Launcher, job: Job, reference: Reference, server: Any, out: Path, seed: int) -> None:
    """Stop the database server in the middle of a study, and start it again."""
    draw = random.Random(seed)

    def interrupt() -> None:
        time.sleep(draw.uniform(0.1, 0.8) * reference.seconds)
        server.stop()
        time.sleep(draw.uniform(0, 2))
        server.start()

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        code = launcher.run(*job.start, "--storage", server.url, "--out", out)
    finally:
        thread.join()
    assert code == 0, launcher.said()[-2000:]
    assert "Traceback" not in launcher.said(), launcher.said()[-2000:]
    assert launcher.said().count("cannot be reached") <= 1, "an outage is reported once"
    assert read_study(out) == reference.outcome, "the outcome differs"


def exhaust_memory(launcher: Launcher, job: Job, reference: Reference, out: Path, seed: int) -> None:
    """Run a job with little memory. It finishes, is killed, or stops with one line, and can be resumed."""
    num_bytes = int(10 ** random.Random(seed).uniform(5.5, 8.7))
    with memory_limit(num_bytes, out.parent.name) as limit:
        code = launcher.run(*job.command(out), limit=limit)
    said = launcher.said()
    if code == 2:
        lines = [line for line in said.splitlines() if "error: " in line]
        assert len(lines) == 1, said[-2000:]
    assert code in (0, 2) or code < 0, f"exit code {code}: {said[-2000:]}"
    assert code < 0 or "Traceback" not in said, said[-2000:]
    if code:
        assert launcher.run(*job.command(out)) == 0, launcher.said()[-2000:]
    assert job.outcome(out) == reference.outcome, "the outcome differs"


@contextlib.contextmanager
def memory_limit(num_bytes: int, name: str) -> Iterator[str]:
    """Yield a limit for `Launcher.run`: a new cgroup if one can be made, otherwise a number of bytes."""
    parent = find_cgroup()
    if parent is None:
        yield str(num_bytes)
        return
    group = parent / f"headwise-{name}-{random.getrandbits(32):08x}"
    group.mkdir()
    try:
        file = "memory.max" if (group / "memory.max").exists() else "memory.limit_in_bytes"
        (group / file).write_text(str(num_bytes))
        yield str(group)
    finally:
        for _ in range(100):  # the kernel needs a moment after the last process has ended
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.05)


def find_cgroup() -> Path | None:
    """Return a cgroup in which groups with a limit of their memory can be made."""
    for parent in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        group = parent / f"headwise-probe-{random.getrandbits(32):08x}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if any((group / name).exists() for name in ("memory.max", "memory.limit_in_bytes")):
                return parent
        finally:
            group.rmdir()
    return None


def jump_clock(launcher: Launcher, job: Job, reference: Reference, out: Path, seed: int) -> None:
    """Run a job, and kill and resume it, while its clock jumps by hours and years."""
    draw = random.Random(seed)
    code = launcher.run(*job.command(out), seconds=draw.uniform(0.2, 1) * reference.seconds, clock=seed)
    for attempt in range(10):
        if code == 0 and (out / job.ends).exists():
            break
        said = launcher.said()
        assert code in (0, KILLED) or job.is_study, f"exit code {code}: {said[-2000:]}"
        assert "Traceback" not in said, said[-2000:]
        if (out / job.ends).exists() and not job.is_study:
            break
        code = launcher.run(*job.command(out), clock=seed + attempt)
    assert job.outcome(out) == reference.outcome, "the outcome differs"


def many_workers(launcher: Launcher, data: Data, out: Path, num_workers: int, outcome: Any) -> None:
    """Run a study with many workers. Every run is trained once, and ends as with one worker."""
    command = many_runs_command(data, num_workers, num_workers)
    code = launcher.run(*command, "--out", out)
    said = launcher.said()
    assert code == 0, said[-2000:]
    assert "failed" not in said, said[-2000:]
    assert read_study(out) == outcome, "the outcome differs"
    for path in out.rglob("run.yaml"):
        assert json.loads((path.parent / "metrics.json").read_text())["primary_metric"]


def many_runs_command(data: Data, num_runs: int, num_workers: int) -> tuple[Any, ...]:
    runs = ("--methods", "plain", "rpr", "--seeds", max(2, num_runs // 2), "--epochs", 1)
    return ("compare", "--data", data.reviews, *SMALL, *runs, "--jobs", num_workers)


def remove(out: Path) -> None:
    shutil.rmtree(out.parent, ignore_errors=True)
