"""The fuzzer finds what it is meant to find, and headwise survives a short run of it. `make fuzz` is the long run."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwise.errors import UserError
from tests.robustness.fuzz.kinds import Kind, all_kinds, choose_kind, find_missing_package, write_file
from tests.robustness.fuzz.pool import Pool
from tests.robustness.fuzz.record import Record
from tests.robustness.fuzz.result import Result
from tests.robustness.fuzz.worker import Limits, Outcome, write_input

ROOT = Path(__file__).parents[2]
LIMITS = Limits(memory=2**30, cpu_seconds=2, wall_seconds=300)


def accept(directory: Path, out: Path) -> None:
    pass


def refuse(directory: Path, out: Path) -> None:
    raise UserError(f"{directory}: not valid")


def raise_exception(directory: Path, out: Path) -> None:
    raise KeyError("x")


def raise_base_exception(directory: Path, out: Path) -> None:
    raise BaseException("panic")  # as PyO3 does


def give_wrong_result(directory: Path, out: Path) -> None:
    raise AssertionError("rows were lost")


def connect(directory: Path, out: Path) -> None:
    socket.create_connection(("127.0.0.1", 9), timeout=1)


def connect_silently(directory: Path, out: Path) -> None:
    try:
        connect(directory, out)
    except BaseException:
        raise UserError("cannot be reached") from None


def start_process(directory: Path, out: Path) -> None:
    subprocess.run([sys.executable, "--version"], check=True)


def start_shell(directory: Path, out: Path) -> None:
    os.system("true")


def unpickle(directory: Path, out: Path) -> None:
    pickle.loads(b"cbuiltins\nprint\n(S'code'\ntR.")


def import_code(directory: Path, out: Path) -> None:
    (out / "foreign_code.py").write_text("x = 1\n")
    sys.path.insert(0, str(out))
    try:
        import foreign_code  # type: ignore[import-not-found]  # noqa: F401
    finally:
        sys.path.pop(0)


def write_elsewhere(directory: Path, out: Path) -> None:
    Path(__file__).with_name("written-by-fuzz").write_text("x")


def delete_elsewhere(directory: Path, out: Path) -> None:
    Path(__file__).with_name("written-by-fuzz").unlink()


def loop(directory: Path, out: Path) -> None:
    while True:
        sum(range(1000))


def take_memory(directory: Path, out: Path) -> None:
    bytearray(2**31)


def crash(directory: Path, out: Path) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def print_stack_trace(directory: Path, out: Path) -> None:
    print("Traceback (most recent call last)", file=sys.stderr)


def print_much(directory: Path, out: Path) -> None:
    for _ in range(1000):
        print("a warning", file=sys.stderr)


def run_reader(read: Callable[[Path, Path], None], root: Path, limits: Limits = LIMITS) -> Outcome:
    """Read one input with a function, in a worker process."""
    kind = Kind(name="test", share=1, requires=(), prepare=write_file("a", b"a"), mutate=lambda *_: None, read=read)
    kind.prepare(root / "seeds" / "test")
    ((outcome, _),) = Pool([kind], root, 1, limits).run([0])
    return outcome


@pytest.mark.parametrize(("read", "status"), [(accept, "accepted"), (refuse, "refused")])
def test_results_and_user_errors_are_no_findings(
    read: Callable[[Path, Path], None], status: str, tmp_path: Path
) -> None:
    assert run_reader(read, tmp_path).status == status


@pytest.mark.parametrize(
    ("read", "summary"),
    [
        (raise_exception, "KeyError"),
        pytest.param(raise_base_exception, "BaseException", marks=pytest.mark.long),
        pytest.param(give_wrong_result, "rows were lost", marks=pytest.mark.long),
        (connect, "socket."),
        pytest.param(connect_silently, "socket.", marks=pytest.mark.long),
        pytest.param(start_process, "subprocess.Popen", marks=pytest.mark.long),
        pytest.param(start_shell, "os.system", marks=pytest.mark.long),
        pytest.param(unpickle, "pickle.find_class", marks=pytest.mark.long),
        pytest.param(import_code, "foreign_code", marks=pytest.mark.long),
        (write_elsewhere, "written-by-fuzz"),
        pytest.param(delete_elsewhere, "written-by-fuzz", marks=pytest.mark.long),
        pytest.param(loop, "limit of computing time", marks=pytest.mark.long),
        (take_memory, "MemoryError"),
        (crash, "segmentation fault"),
        pytest.param(print_stack_trace, "stack trace", marks=pytest.mark.long),
        pytest.param(print_much, "characters", marks=pytest.mark.long),
    ],
)
def test_what_is_forbidden_is_a_finding(read: Callable[[Path, Path], None], summary: str, tmp_path: Path) -> None:
    outcome = run_reader(read, tmp_path)
    assert outcome.status == "finding"
    assert summary in outcome.summary


def test_an_input_that_waits_is_a_finding(tmp_path: Path) -> None:
    outcome = run_reader(lambda *_: time.sleep(600), tmp_path, Limits(memory=0, wall_seconds=1))
    assert "limit of time" in outcome.summary


def test_inputs_after_a_crash_are_read(tmp_path: Path) -> None:
    def crash_first(directory: Path, out: Path) -> None:
        if not (tmp_path / "crashed").exists():
            os.mknod(tmp_path / "crashed")  # not an event of the guard
            crash(directory, out)

    kind = Kind(
        name="test", share=1, requires=(), prepare=write_file("a", b"a"), mutate=lambda *_: None, read=crash_first
    )
    kind.prepare(tmp_path / "seeds" / "test")
    outcomes = [outcome for outcome, _ in Pool([kind], tmp_path, 2, LIMITS).run(range(40))]
    assert sorted(outcome.number for outcome in outcomes) == list(range(40))
    assert sum(outcome.status == "finding" for outcome in outcomes) >= 1


def test_a_number_determines_an_input(tmp_path: Path) -> None:
    kinds = [kind for kind in all_kinds() if kind.name in ("csv", "run.yaml", "jsonl", "inspection page")]
    for kind in kinds:
        (tmp_path / kind.name).mkdir()
        kind.prepare(tmp_path / kind.name)
    for number in range(50):
        kind = choose_kind(number, kinds)
        for copy in ("first", "second"):
            write_input(number, kind, tmp_path, tmp_path / copy / str(number))
    contents = [
        {file.relative_to(copy): file.read_bytes() for file in copy.rglob("*") if file.is_file()}
        for copy in (tmp_path / "first", tmp_path / "second")
    ]
    assert contents[0] == contents[1]
    assert len(set(contents[0].values())) > 40


def test_every_kind_has_a_share_of_all_inputs() -> None:
    """docs/robustness.md lists the shares, in thousands."""
    shares: defaultdict[str, float] = defaultdict(float)
    for kind in all_kinds():
        name = kind.name.partition(",")[0]
        shares["study" if name.startswith("study") else name] += kind.share
    assert sum(shares.values()) == pytest.approx(250)
    assert min(shares.values()) > 4.99
    assert shares["BERT"] + shares["retrofitted BERT"] == pytest.approx(24)


def test_a_run_continues_from_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.robustness.fuzz.record.PART_SIZE", 10)
    record = Record(tmp_path / "record.jsonl")
    result = Result()
    for number in range(10):
        result.add(Outcome(number, "csv", "finding" if number == 3 else "refused", "a problem", cause="a cause"))
    record.add(range(10, 20), result)
    copy = Record(tmp_path / "record.jsonl")
    assert list(copy.missing_parts(range(35))) == [range(10), range(20, 30), range(30, 35)]
    assert copy.total() == result
    assert copy.total().findings["csv", "a cause"][0].number == 3


def test_kinds_of_missing_packages_are_skipped() -> None:
    options: dict[str, Any] = {"share": 1, "prepare": lambda _: None, "mutate": lambda *_: None, "read": accept}
    assert find_missing_package(Kind(name="a", requires=("no_such_package.x",), **options)) == "no_such_package"
    assert find_missing_package(Kind(name="b", requires=("json",), **options)) is None


@pytest.mark.long
def test_a_short_run_has_no_findings(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Runs in a process of its own, because libraries must not be offline here."""
    inputs = 20_000 if request.config.getoption("--slow") else 300
    command = [sys.executable, "-m", "tests.robustness.fuzz", "--inputs", str(inputs), "--processes", "2"]
    command += ["--out", str(tmp_path / "findings")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "total" in result.stdout
