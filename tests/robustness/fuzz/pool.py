"""A pool of worker processes. A worker that an input kills is replaced, and its death is a finding."""

import multiprocessing
import shutil
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.robustness.fuzz.kinds import Kind, choose_kind
from tests.robustness.fuzz.worker import Limits, Outcome, Worker, work

#: Number of inputs that a worker gets at a time.
CHUNK_SIZE = 16
#: Processes are forked, so that libraries are imported only once.
FORK: Any = multiprocessing.get_context("fork")

#: Reasons of a worker's death, by the signal.
DEATHS = {
    signal.SIGXCPU: "exceeds the limit of computing time",
    signal.SIGALRM: "exceeds the limit of time",
    signal.SIGABRT: "aborts the process",
    signal.SIGSEGV: "crashes the process (segmentation fault)",
    signal.SIGKILL: "is killed, probably for its memory",
}


@dataclass
class Member:
    """A worker of the pool, and the numbers of the inputs whose outcomes it has not sent yet."""

    process: Any
    connection: Connection
    work_dir: Path
    pending: list[int]


class Pool:
    """Runs inputs in several processes.

    Args:
        kinds: all kinds.
        root: a directory for the valid files (`seeds`) and the inputs.
        processes: the number of processes.
        limits: the limits of one input.
    """

    def __init__(self, kinds: list[Kind], root: Path, processes: int, limits: Limits) -> None:
        self.kinds, self.root, self.processes, self.limits = kinds, root, processes, limits
        self.names = (f"worker-{number}" for number in count())

    def start(self) -> Member:
        """Start a worker."""
        work_dir = self.root / next(self.names)
        parent, child = FORK.Pipe()
        process = FORK.Process(target=work, args=(child, self.kinds, self.root / "seeds", work_dir, self.limits))
        process.start()
        child.close()
        return Member(process, parent, work_dir, [])

    def run(self, numbers: Iterable[int]) -> Iterator[tuple[Outcome, Path]]:
        """Yield the outcome of each input, and the directory of a worker that died, which holds the input."""
        remaining = iter(numbers)
        members = [self.start() for _ in range(self.processes)]
        try:
            for member in members:
                self.feed(member, islice(remaining, CHUNK_SIZE))
            while members:
                for connection in wait([member.connection for member in members]):
                    member = next(member for member in members if member.connection is connection)
                    try:
                        outcome = member.connection.recv()
                        member.pending.remove(outcome.number)
                    except (EOFError, ConnectionResetError):
                        outcome, replacement = self.replace(member)
                        members[members.index(member)] = member = replacement
                    yield outcome, member.work_dir
                    if not member.pending:
                        self.feed(member, islice(remaining, CHUNK_SIZE))
                        if not member.pending:
                            members.remove(member)
                            self.stop(member)
        finally:
            for member in members:
                member.process.kill()
                self.stop(member)

    def feed(self, member: Member, numbers: Iterable[int]) -> None:
        """Send numbers to a worker."""
        member.pending = list(numbers)
        if member.pending:
            member.connection.send(member.pending)

    def replace(self, member: Member) -> tuple[Outcome, Member]:
        """Return the finding about a dead worker's input, and a new worker for the remaining inputs."""
        member.process.join()
        number, *rest = member.pending
        outcome = death_outcome(number, choose_kind(number, self.kinds), member)
        self.stop(member)
        replacement = self.start()
        self.feed(replacement, rest)
        return outcome, replacement

    def stop(self, member: Member) -> None:
        """End a worker and delete its directory."""
        if member.process.is_alive():
            member.connection.send(None)
        member.process.join()
        member.connection.close()
        shutil.rmtree(member.work_dir, ignore_errors=True)


def death_outcome(number: int, kind: Kind, member: Member) -> Outcome:
    """Return the finding about an input that killed its worker."""
    code = member.process.exitcode
    reason = DEATHS.get(-code, f"ends the process with code {code}")
    log = (member.work_dir / "log").read_text(encoding="utf-8", errors="replace")[:20_000]
    place = next((line.strip() for line in log.splitlines() if "/headwise/" in line), "")
    problem = f"{reason} {place.rpartition('/src/')[2]}"
    return Outcome(number, kind.name, "finding", problem, log, problem)


def read_valid(kinds: list[Kind], root: Path, limits: Limits) -> list[Outcome]:
    """Read the valid files of kinds; return the outcomes, which must all be accepted.

    Kinds with the same files and the same function are read once.
    """
    worker = Worker(kinds, root / "seeds", root / "valid", limits)
    different = {(kind.prepare, kind.read): kind for kind in kinds}
    return [worker.run_valid(kind) for kind in different.values()]


def run_in_process(function: Any, *args: Any) -> Any:
    """Call a function in a forked process and return its result, so that it leaves nothing behind in this one."""
    parent, child = FORK.Pipe()
    process = FORK.Process(target=_send_result, args=(child, function, args))
    process.start()
    child.close()
    try:
        return parent.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"{function.__name__} ended with code {process.exitcode}") from None
    finally:
        process.join()


def _send_result(connection: Connection, function: Any, args: tuple[Any, ...]) -> None:
    connection.send(function(*args))
