"""benchmarks/run_queue.py: commands run one after another, within their limits, and continue."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "run_queue.py"

#: A benchmark of three rows. One call measures as many as it is told to, then waits if it is told to.
BENCHMARK = """
import os, sys, time
rows, waits = int(sys.argv[1]), sys.argv[2] == "wait"
done = open("rows.txt").read().split() if os.path.exists("rows.txt") else []
for row in [str(x) for x in range(3) if str(x) not in done][:rows]:
    open("rows.txt", "a").write(row + os.environ.get("SUFFIX", "") + "\\n")
print("rows are written", flush=True)
if waits:
    time.sleep(600)
if len(done) + rows < 3:
    print("stopped; run the same command again to continue")
"""


def write_queue(directory: Path, *lines: str) -> Path:
    (directory / "benchmark.py").write_text(BENCHMARK)
    (directory / "fails.py").write_text("raise SystemExit(3)")
    queue = directory / "queue.txt"
    queue.write_text("# comment\n\n" + "\n".join(lines) + "\n")
    return queue


def command(queue: Path, seconds: float) -> list[str]:
    return [sys.executable, str(SCRIPT), str(seconds), "--dir", str(queue.parent / "out"), "--queue", str(queue)]


def run(queue: Path, seconds: float = 100) -> tuple[int, list[str]]:
    result = subprocess.run(command(queue, seconds), capture_output=True, text=True, check=False)
    return result.returncode, result.stdout.splitlines()


def test_commands_continue_until_they_have_finished(tmp_path: Path) -> None:
    queue = write_queue(tmp_path, "60 benchmark.py 2 end")
    states = []
    for _ in range(3):
        code, lines = run(queue)
        assert code == 0
        states.append(lines[0].removesuffix(": benchmark.py 2 end").split(", ")[-1])
    assert states == ["unfinished", "finished", " 1  finished before"]
    assert (tmp_path / "out" / "rows.txt").read_text().split() == ["0", "1", "2"]


def test_failures_and_limits_do_not_stop_the_queue(tmp_path: Path) -> None:
    queue = write_queue(tmp_path, "60 fails.py", "2 benchmark.py 1 wait", "60 SUFFIX=0 benchmark.py 1 end")
    code, lines = run(queue)
    assert code == 1
    assert "exit code 3, failed: fails.py" in lines[0]
    assert "stopped at its limit: benchmark.py 1 wait" in lines[1]
    assert "exit code 0, unfinished: SUFFIX=0 benchmark.py 1 end" in lines[2]
    assert (tmp_path / "out" / "rows.txt").read_text().split()[-1] in ("00", "10"), "the variable is set"
    assert "rows are written" in (tmp_path / "out" / "03.log").read_text()


def test_modules_run_in_the_repository(tmp_path: Path) -> None:
    code, _ = run(write_queue(tmp_path, "60 -m json.tool CITATION.cff {dir}/out", "60 -m site"))
    assert code == 1, "CITATION.cff is found, and is no JSON"
    log = (tmp_path / "out" / "01.log").read_text()
    assert "No such file" not in log
    assert "Expecting value" in log
    assert f"'{SCRIPT.parents[1]}'" in (tmp_path / "out" / "02.log").read_text()


def test_no_command_is_started_after_the_time(tmp_path: Path) -> None:
    code, lines = run(write_queue(tmp_path, "60 benchmark.py 3 end"), seconds=0)
    assert (code, lines) == (0, [" 1  not started: benchmark.py 3 end"])


def test_a_signal_that_arrives_while_a_command_starts_stops_it(tmp_path: Path) -> None:
    """The start of the command waits until it has begun, as on a busy machine, and sends the signal."""
    code = """
import os, signal, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
import run_queue
class SlowStart(subprocess.Popen):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        print(self.pid, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
subprocess.Popen = SlowStart
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
with run_queue.process_group([sys.executable, "-c", "import time; time.sleep(600)"], **quiet):
    time.sleep(600)
"""
    result = subprocess.run(
        [sys.executable, "-c", code, str(SCRIPT.parent)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 143, result.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(result.stdout), 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_queue_stops_its_command(number: signal.Signals, tmp_path: Path) -> None:
    queue = write_queue(tmp_path, "600 benchmark.py 1 wait")
    # A shell that runs the tests in the background lets its processes ignore SIGINT.
    heed_interrupts = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command(queue, 600), stderr=subprocess.DEVNULL, preexec_fn=heed_interrupts)
    log = tmp_path / "out" / "01.log"
    while not (log.exists() and "rows are written" in log.read_text()):
        assert process.poll() is None
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(number)
    assert process.wait() != 0
    assert len(children) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(int(children[0]), 0)
    assert (tmp_path / "out" / "rows.txt").read_text() == "0\n"


def run_with_warm_up(directory: Path, seconds: float, *lines: str) -> list[str]:
    """Run a warm-up with these commands for this number of seconds, then a queue of one benchmark."""
    queue, warm_up = write_queue(directory, "60 benchmark.py 3 end"), directory / "warm_up.txt"
    warm_up.write_text("# comment\n" + "\n".join(lines) + "\n")
    arguments = [*command(queue, 100), "--warm-up", str(seconds), "--warm-up-queue", str(warm_up)]
    return subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.splitlines()


def test_warm_up_runs_its_commands_and_discards_their_results(tmp_path: Path) -> None:
    lines = run_with_warm_up(tmp_path, 100, "fails.py", "benchmark.py 1 end", "SUFFIX=0 benchmark.py 1 end")
    assert lines[0] == "warm-up: 3 of 3 commands ended, 1 of them failed (warm-up.log)"
    assert "finished" in lines[1]
    assert (tmp_path / "out" / "rows.txt").read_text().split() == ["0", "1", "2"], "those of the queue alone"
    assert "rows are written" in (tmp_path / "out" / "warm-up.log").read_text()


def test_warm_up_ends_at_its_limit(tmp_path: Path) -> None:
    lines = run_with_warm_up(tmp_path, 1, "benchmark.py 1 wait")
    assert lines[0] == "warm-up: 0 of 1 commands ended, 0 of them failed (warm-up.log)"
