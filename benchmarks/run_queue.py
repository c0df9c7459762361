"""Run benchmarks one after another within a number of seconds, unattended.

    python benchmarks/run_queue.py 540 --dir measured                       # the commands of benchmarks/queue.txt
    python benchmarks/run_queue.py 540 --dir measured --queue mine.txt      # own commands
    python benchmarks/run_queue.py 540 --dir measured --only windows fusion # commands that contain one of these words
    python benchmarks/run_queue.py 540 --dir measured --warm-up 200         # first compile kernels, on all cores

A line of the queue has the largest number of seconds of a command and the command: a script in the directory of the
queue and its options, after variables of the environment if there are any. {seconds} becomes the number of seconds
after which a benchmark starts no row, and {processes} the number of cores but one. Scripts run in --dir, where their
results are. A module (-m headwise …, -m pytest …) runs in the repository, and {dir} becomes --dir. At its limit, a
command is interrupted; after ten more seconds it is killed.

Each command prints a line with its time and its exit code. Its output is appended to a log in --dir. The same call,
repeated, continues: benchmarks continue after the lines of results that exist, and commands that have finished are
skipped (they are listed in --dir/finished.txt). The exit code is 1 if a command failed.

Compiling kernels takes most of the time of a benchmark's first run, on one core. --warm-up first runs the commands of
benchmarks/warm_up.txt, which have no limits of their own, at the same time on all cores but two. Their results are
discarded; what they compile is kept in the caches of Triton and torch.compile.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent

#: What benchmarks print if they have stopped at --seconds.
UNFINISHED = "run the same command again"

#: Seconds of a limit in which no row is started; between interrupting and killing; below which nothing is started.
LAST_ROW, GRACE, MIN_SECONDS = 30.0, 10.0, 5.0


class Job(NamedTuple):
    """A line of the queue."""

    limit: float
    line: str  # without the limit

    def split(self, seconds: float, directory: Path) -> tuple[dict[str, str], list[str]]:
        """Return variables of the environment, and the script or -m with options, for this number of seconds."""
        values = {
            "{seconds}": f"{max(seconds - LAST_ROW, seconds / 2):.0f}",
            "{processes}": str(max((os.cpu_count() or 1) - 1, 1)),
            "{dir}": str(directory.resolve()),
        }
        words = shlex.split(self.line)
        for name, value in values.items():
            words = [word.replace(name, value) for word in words]
        num_variables = next(i for i, word in enumerate(words) if "=" not in word)
        return dict(word.split("=", 1) for word in words[:num_variables]), words[num_variables:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", type=float, help="for all commands together")
    parser.add_argument("--dir", type=Path, required=True, help="directory of results and logs")
    parser.add_argument("--queue", type=Path, default=HERE / "queue.txt", metavar="FILE")
    parser.add_argument(
        "--warm-up", type=float, default=0.0, metavar="SECONDS", help="first compile kernels for so long"
    )
    parser.add_argument("--warm-up-queue", type=Path, default=HERE / "warm_up.txt", metavar="FILE")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="WORD",
        help="only commands that contain one of these, also in the warm-up",
    )
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # interrupts the command that runs
    arguments.dir.mkdir(parents=True, exist_ok=True)
    if arguments.warm_up:
        lines = [line for line in read_lines(arguments.warm_up_queue) if is_selected(line, arguments.only)]
        scripts = arguments.warm_up_queue.resolve().parent
        print(warm_up(lines, arguments.warm_up, scripts, arguments.dir), flush=True)
    finished = arguments.dir / "finished.txt"
    num_failed = 0
    for number, job in enumerate(read_queue(arguments.queue), start=1):
        if not is_selected(job.line, arguments.only):
            continue
        remaining = end - time.monotonic()
        if finished.exists() and job.line in finished.read_text(encoding="utf-8").splitlines():
            report(number, "finished before", job)
        elif remaining < MIN_SECONDS:
            report(number, "not started", job)
        else:
            start = time.monotonic()
            log = arguments.dir / f"{number:02}.log"
            code, state = run(job, min(job.limit, remaining), arguments.queue.resolve().parent, arguments.dir, log)
            report(number, f"{time.monotonic() - start:.0f} s, exit code {code}, {state}", job)
            num_failed += state == "failed"
            if state == "finished":
                with finished.open("a", encoding="utf-8") as file:
                    file.write(job.line + "\n")
    return 1 if num_failed else 0


def is_selected(line: str, words: list[str]) -> bool:
    """Return whether a command contains one of these words. Without words, every command is selected."""
    return not words or any(word in line for word in words)


def read_queue(path: Path) -> list[Job]:
    """Return the jobs of a file."""
    parts = [line.split(maxsplit=1) for line in read_lines(path)]
    return [Job(float(limit), line) for limit, line in parts]


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file without empty ones and comments."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def warm_up(lines: list[str], seconds: float, scripts: Path, directory: Path) -> str:
    """Run commands at the same time for at most this number of seconds, and return how many ended."""
    end = time.monotonic() + seconds
    waiting = deque(Job(seconds, line) for line in lines)
    num_jobs, num_ended, num_failed = len(waiting), 0, 0
    running: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as results, (directory / "warm-up.log").open("ab") as output:
        try:
            while (waiting or running) and time.monotonic() < end:
                while waiting and len(running) < max((os.cpu_count() or 1) - 2, 1):
                    command, options = build_command(waiting.popleft(), seconds, scripts, Path(results))
                    options["env"] |= {"OMP_NUM_THREADS": "1"}
                    running.append(
                        subprocess.Popen(command, start_new_session=True, stdout=output, stderr=output, **options)
                    )
                time.sleep(0.1)
                ended = [process for process in running if process.poll() is not None]
                running = [process for process in running if process not in ended]
                num_ended += len(ended)
                num_failed += sum(process.returncode != 0 for process in ended)
        finally:
            for process in running:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return f"warm-up: {num_ended} of {num_jobs} commands ended, {num_failed} of them failed (warm-up.log)"


def build_command(job: Job, seconds: float, scripts: Path, directory: Path) -> tuple[list[str], dict[str, Any]]:
    """Return the command of a job, and the options of its process: directory and environment."""
    variables, (script, *options) = job.split(seconds, directory)
    repository = HERE.parent
    paths = [str(repository / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | variables
    is_module = script == "-m"
    command = [sys.executable, script if is_module else str(scripts / script), *options]
    return command, {"cwd": repository if is_module else directory, "env": environment}


def report(number: int, text: str, job: Job) -> None:
    print(f"{number:2}  {text}: {job.line}", flush=True)


def run(job: Job, seconds: float, scripts: Path, directory: Path, log: Path) -> tuple[int, str]:
    """Run a command for at most this number of seconds. Return its exit code and its state."""
    command, options = build_command(job, seconds, scripts, directory)
    with log.open("ab") as output:
        position = output.tell()
        with process_group(command, stdout=output, stderr=output, **options) as process:
            try:
                code = process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                return stop(process), "stopped at its limit"
    if code != 0:
        return code, "failed"
    return code, "unfinished" if UNFINISHED.encode() in log.read_bytes()[position:] else "finished"


@contextmanager
def process_group(command: list[str], **options: object) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a command in a process group of its own, and stop it on exit if it still runs.

    Signals that arrive while it starts are handled after that. Otherwise it would not be stopped.
    """
    signals = {signal.SIGINT, signal.SIGTERM}
    unblock = partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, signals)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        process: subprocess.Popen[bytes] = subprocess.Popen(  # type: ignore[call-overload]
            command, start_new_session=True, preexec_fn=unblock, **options
        )
        try:
            unblock()
            yield process
        finally:
            stop(process)
    finally:
        unblock()


def stop(process: "subprocess.Popen[bytes]") -> int:
    """Interrupt a command with its children, kill it if that does not help, and return its exit code."""
    for number, seconds in ((signal.SIGINT, GRACE), (signal.SIGKILL, None)):
        if process.poll() is None:
            os.killpg(process.pid, number)
            try:
                process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                continue
    return process.wait()


if __name__ == "__main__":
    sys.exit(main())
