"""The short form of `make torture`: a case of each kind. Whatever happens to a command, its results do not differ."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.robustness.launcher import Launcher
from tests.robustness.torture import cases
from tests.robustness.torture.jobs import Job
from tests.robustness.torture.torture import KILLS, KINDS, Count, Torture, why_skipped
from tests.short_form import choose_size

#: Kinds that take long, or whose mechanism another kind covers.
SLOW = ("recommendation", "sweep", "evaluate", "inspect", "database", "cluster")
#: Kinds of the long form. The short form kills trainings; test_locks.py lets processes compete.
LONG = ("at-once", "adapt", "guided", "translation", "compare", "simulate", "predict", "clock", "workers", "memory")


@pytest.fixture(scope="module")
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def torture(tmp_path_factory: pytest.TempPathFactory) -> Torture:
    torture = Torture(tmp_path_factory.mktemp("torture"), KINDS, size=0.13, processes=1, seed=0)
    torture.prepare()
    return torture


@pytest.fixture(scope="module")
def launcher(torture: Torture, stack: ExitStack, request: pytest.FixtureRequest) -> Launcher:
    if choose_size(short=True, long=False):  # without a clock that jumps
        shared: Launcher = request.getfixturevalue("shared_launcher")
        return shared
    launcher = torture.start_launcher("launcher")
    stack.callback(launcher.close)
    return launcher


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.slow] * (kind in SLOW) + [pytest.mark.long] * (kind in LONG))
        for kind in KINDS
    ],
)
def test_case(kind: str, torture: Torture, launcher: Launcher, stack: ExitStack, tmp_path: Path) -> None:
    reason = why_skipped(kind)
    if reason:
        pytest.skip(reason)
    num_kills = choose_size(short=1, long=2)
    done = torture.dispatch(kind, launcher, stack, tmp_path / "case" / "out", seed=1, left=num_kills)
    assert done >= (kind not in KILLS)


@pytest.mark.long
def test_differences_are_noticed(torture: Torture, launcher: Launcher, tmp_path: Path) -> None:
    job: Job = replace(torture.jobs["text"], outcome=lambda out: str(out))  # differs between directories
    reference = cases.Reference(launcher, job, tmp_path / "reference")
    with pytest.raises(AssertionError, match="the outcome differs"):
        cases.kill_chain(launcher, job, reference, tmp_path / "case" / "out", seed=1, max_kills=1)


def test_torture_continues_in_its_directory(tmp_path: Path) -> None:
    first = Torture(tmp_path, ("text", "memory"), size=1, processes=1, seed=0)
    first.add_to_record("text", 3, done=4, failed=0)
    first.add_to_record("memory", 5, done=1, failed=1)
    second = Torture(tmp_path, ("text", "memory"), size=1, processes=1, seed=0)
    assert (second.counts["text"].done, second.counts["memory"].failed, second.number) == (4, 1, 5)
    assert second.take_kind() == "memory", "it is at 1 of 40, and text at 4 of 110"


def test_report_counts_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torture = Torture(tmp_path / "torture", ("text", "memory"), size=1, processes=1, seed=0)
    torture.counts = {"text": Count(10, done=10, failed=1), "memory": Count(5, skipped="no such package")}
    assert torture.report() == 1
    table = capsys.readouterr().out
    assert [line.split()[:3] for line in table.splitlines() if line.startswith("text")] == [["text", "10", "9"]]
    assert "skipped: no such package" in table
    assert "10 kills in all, 1 failures" in table
    torture.counts["text"].failed = 0
    assert torture.report() == 0
