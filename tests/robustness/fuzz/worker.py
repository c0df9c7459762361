"""One worker process: creates inputs, reads them under the guard and with limits, and judges what happened."""

import faulthandler
import functools
import gc
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

from tests.robustness.fuzz.guard import Guard
from tests.robustness.fuzz.kinds import Kind, choose_kind

#: Largest number of characters that reading one input may print.
MAX_OUTPUT = 4000
#: Largest number of characters of an error message.
MAX_MESSAGE = 1000


@dataclass(frozen=True)
class Limits:
    """Limits of one input.

    Args:
        memory: bytes of address space in addition to what the process has at the start.
        cpu_seconds: seconds of computing time, which do not depend on other processes of the machine.
        wall_seconds: seconds of real time, for inputs that wait for something.
    """

    memory: int = 2 * 2**30
    cpu_seconds: int = 20
    wall_seconds: int = 3600


@dataclass(frozen=True)
class Outcome:
    """The outcome of one input.

    Args:
        number: the number of the input.
        kind: its kind.
        status: accepted, refused or finding.
        summary: one line: the error message, or the problem.
        details: the stack trace of a finding.
        cause: the problem without details of the input. Findings with the same cause count as one.
        seconds: the computing time; 0 if the process died.
    """

    number: int
    kind: str
    status: str
    summary: str = ""
    details: str = ""
    cause: str = ""
    seconds: float = 0.0


def write_input(number: int, kind: Kind, seeds: Path, directory: Path) -> None:
    """Write an input: the valid files of its kind, some of them mutated."""
    write_valid(seeds / kind.name, directory)
    kind.mutate(Random(f"input {number}"), directory)


def write_valid(seed: Path, directory: Path) -> None:
    """Write the valid files of a kind to a new directory."""
    directories, files = read_seed(seed)
    directory.mkdir(parents=True)
    for name in directories:
        (directory / name).mkdir()
    for name, content in files:
        (directory / name).write_bytes(content)


@functools.cache
def read_seed(seed: Path) -> tuple[list[str], list[tuple[str, bytes]]]:
    """Return the directories of a seed, and its files with their contents. Each seed is read once."""
    paths = sorted(seed.rglob("*"))
    directories = [str(path.relative_to(seed)) for path in paths if path.is_dir()]
    return directories, [(str(path.relative_to(seed)), path.read_bytes()) for path in paths if path.is_file()]


class Worker:
    """Reads inputs in one directory.

    Args:
        kinds: all kinds, which determine the kind of a number.
        seeds: the directory with the valid files of each kind.
        work_dir: the directory of the current input and its output. Its files are kept when the process dies.
        limits: the limits of one input.
    """

    def __init__(self, kinds: list[Kind], seeds: Path, work_dir: Path, limits: Limits) -> None:
        self.kinds, self.seeds, self.work_dir, self.limits = kinds, seeds, work_dir, limits
        self.log, self.start_seconds = work_dir / "log", 0.0
        work_dir.mkdir(parents=True, exist_ok=True)
        redirect_output(self.log)
        faulthandler.enable()
        for number in (signal.SIGALRM, signal.SIGXCPU):  # print the stack and die, even in a loop in C
            faulthandler.register(number, chain=True)
        sys.dont_write_bytecode = True
        os.environ["TMPDIR"] = tempfile.tempdir = str(work_dir / "output")
        if "datasets" in sys.modules:
            sys.modules["datasets"].config.HF_DATASETS_CACHE = work_dir / "output" / "cache"
        os.chdir(work_dir)
        self.guard = Guard(work_dir)
        gc.collect()
        gc.freeze()  # so that collections look only at what inputs leave behind, not at all imported libraries
        if limits.memory:
            limit_memory(limits.memory)

    def run(self, number: int) -> Outcome:
        """Create and read one input."""
        kind = choose_kind(number, self.kinds)
        self.clear()
        write_input(number, kind, self.seeds, self.work_dir / "input")
        return self.read(number, kind)

    def run_valid(self, kind: Kind) -> Outcome:
        """Read the valid files of a kind, which must be accepted."""
        self.clear()
        write_valid(self.seeds / kind.name, self.work_dir / "input")
        return self.read(-1, kind)

    def clear(self) -> None:
        """Delete the last input and its output."""
        for name in ("input", "output"):
            shutil.rmtree(self.work_dir / name, ignore_errors=True)
        (self.work_dir / "output").mkdir()
        os.truncate(self.log, 0)

    def read(self, number: int, kind: Kind) -> Outcome:
        """Read the current input, and judge the outcome."""
        from headwise.errors import UserError

        status, message, problem, cause = "accepted", "", "", ""
        self.start_clock()
        with self.guard.watch() as events:
            try:
                kind.read(self.work_dir / "input", self.work_dir / "output")
            except UserError as error:
                status, message = "refused", str(error)
                problem = cause = problem_of_message(message)
            except BaseException as error:  # panics of Rust libraries are no Exception
                cause = f"{type(error).__name__} {find_place(error)}"
                problem, message = f"{cause}: {first_line(error)}", traceback.format_exc(limit=-12)
        seconds = self.stop_clock()
        if events:
            problem, cause = f"forbidden: {events[0]}", f"forbidden: {events[0].split()[0]}"
        elif not problem:
            problem = cause = self.problem_of_output()
        if problem:
            details = message + self.read_log()
            return Outcome(number, kind.name, "finding", self.generalize(problem), details, cause, seconds)
        return Outcome(number, kind.name, status, self.generalize(message), seconds=seconds)

    def start_clock(self) -> None:
        """Start the limits of time. The operating system ends the process that exceeds them."""
        self.start_seconds = time.process_time()
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        cpu_limit = int(self.start_seconds) + 1 + self.limits.cpu_seconds
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_limit, hard))
        signal.alarm(self.limits.wall_seconds)

    def stop_clock(self) -> float:
        """Stop the limits of time, and return the computing time since they were started."""
        signal.alarm(0)
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))
        return time.process_time() - self.start_seconds

    def read_log(self) -> str:
        """Return what the current input printed."""
        sys.stdout.flush()
        sys.stderr.flush()
        return self.log.read_text(encoding="utf-8", errors="replace")[:20_000]

    def problem_of_output(self) -> str:
        """Return what is wrong with the printed output; empty if nothing is."""
        log = self.read_log()
        if "Traceback (most recent call last)" in log:
            return "prints a stack trace"
        return f"prints more than {MAX_OUTPUT} characters" if len(log) > MAX_OUTPUT else ""

    def generalize(self, text: str) -> str:
        """Return a text without the path of this worker."""
        return text.replace(str(self.work_dir), "DIR")


def problem_of_message(message: str) -> str:
    """Return what is wrong with an error message; empty if nothing is."""
    if not message.strip():
        return "the error message is empty"
    if not message.isprintable():
        return "the error message has several lines or control characters"
    return f"the error message has more than {MAX_MESSAGE} characters" if len(message) > MAX_MESSAGE else ""


def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")[:160]


def find_place(error: BaseException) -> str:
    """Return the innermost line of headwise in a stack trace, or of the test if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/headwise/" in frame.filename] or frames
    path = Path(own[-1].filename)
    return f"({'/'.join(path.parts[-2:])}:{own[-1].lineno})"


def redirect_output(log: Path) -> None:
    """Send everything that the process prints to a file, and give it no input."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115


def limit_memory(size: int) -> None:
    """Limit the address space to the current one and `size` bytes more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size, hard))


def work(connection: Connection, *args: Any) -> None:
    """Run inputs whose numbers arrive on a connection, and send their outcomes; None ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    worker = Worker(*args)
    while (numbers := connection.recv()) is not None:
        for number in numbers:
            connection.send(worker.run(number))
    os._exit(0)
