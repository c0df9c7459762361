"""The plan of `make torture`: how often each kind of case is done, by how many processes."""

import json
import shutil
import subprocess
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.robustness.commit import find_commit
from tests.robustness.launcher import Launcher
from tests.robustness.torture import cases
from tests.robustness.torture.cluster import survive_kills
from tests.robustness.torture.jobs import build_jobs, read_run, read_study

#: Kills of each kind of job in the full form: 500 in all.
KILLS = {
    "text": 90,
    "adapt": 20,
    "guided": 50,
    "recommendation": 50,
    "translation": 60,
    "compare": 50,
    "sweep": 40,
    "simulate": 40,
    "predict": 40,
    "evaluate": 30,
    "inspect": 30,
}
#: Other cases in the full form. `workers` is the number of workers of one study, `cluster` the number of its runs.
OTHERS = {"at-once": 100, "database": 20, "memory": 40, "clock": 40, "workers": 30, "cluster": 200}
KINDS = (*KILLS, *OTHERS)
STUDIES = ("compare", "sweep", "database", "workers", "cluster")
#: Kinds of which one case is done at a time: there is one server, and 30 workers are enough.
ONE_AT_A_TIME = ("database", "workers", "cluster")
#: Kinds of one case, and what its number counts.
ONE_CASE = {"workers": "workers", "cluster": "runs"}


@dataclass
class Count:
    """The cases of a kind: how many are planned, were done, failed and are in progress; or why there are none."""

    planned: int
    done: int = 0
    failed: int = 0
    busy: int = 0
    skipped: str = ""
    how: str = ""

    @property
    def share(self) -> float:
        """The share of the cases that are done or in progress."""
        return (self.done + self.busy) / self.planned


class Torture:
    """All cases, done by several processes.

    Args:
        directory: for the cases; the directories of failed ones are kept.
        kinds: the kinds of cases.
        size: the factor of all counts.
        processes: the number of cases at the same time.
        seed: the seed of all random choices.
    """

    def __init__(self, directory: Path, kinds: Sequence[str], size: float, processes: int, seed: int) -> None:
        self.directory, self.seed, self.processes = directory, seed, processes
        self.counts = {
            kind: Count(max(1, round(size * (KILLS | OTHERS)[kind])), skipped=why_skipped(kind)) for kind in kinds
        }
        self.mutex, self.number, self.start = threading.Lock(), 0, time.monotonic()
        self.record, self.commit = directory / "cases.jsonl", find_commit()
        self.read_record()
        self.is_stopped = False
        self.references: dict[Any, Any] = {}
        self.reference_mutex = {kind: threading.Lock() for kind in KINDS}

    def read_record(self) -> None:
        """Count the cases that an earlier torture did in the same directory."""
        if not self.record.exists():
            return
        for case in map(json.loads, self.record.read_text(encoding="utf-8").splitlines()):
            self.number = max(self.number, case["number"])
            if case["kind"] in self.counts:
                self.counts[case["kind"]].done += case["done"]
                self.counts[case["kind"]].failed += case["failed"]

    def table(self) -> str:
        """Return the cases as a table in Markdown, with the commits on which they were done."""
        lines = ["| kind | planned | done | failed |", "|---|---:|---:|---:|"]
        for kind, count in self.counts.items():
            unit = " kills" if kind in KILLS else " workers" if kind == "workers" else ""
            lines.append(f"| `{kind}` | {count.planned}{unit} | {count.done} | {count.failed} |")
        cases_done = [json.loads(line) for line in self.record.read_text(encoding="utf-8").splitlines()]
        commits = Counter(case["commit"] for case in cases_done)
        dates = sorted(case["date"][:10] for case in cases_done) or [""]
        commands = ", ".join(f"{commit} ({count} cases)" for commit, count in commits.items())
        return "\n".join([*lines, "", f"{dates[0]} to {dates[-1]}; commits {commands}."])

    def add_to_record(self, kind: str, number: int, *, done: int, failed: int) -> None:
        """Count a case, and add a line to the record."""
        self.counts[kind].done += done
        self.counts[kind].failed += failed
        date = datetime.now(UTC).isoformat(timespec="seconds")
        case = {"kind": kind, "number": number, "done": done, "failed": failed, "commit": self.commit, "date": date}
        with self.record.open("a", encoding="utf-8") as file:
            file.write(json.dumps(case) + "\n")

    def run(self) -> None:
        """Do all cases."""
        if all(count.skipped for count in self.counts.values()):
            return
        self.prepare()
        with ExitStack() as stack:
            threads = [threading.Thread(target=self.work, args=(number, stack)) for number in range(self.processes)]
            for thread in threads:
                thread.start()
            try:
                for thread in threads:
                    thread.join()
            except KeyboardInterrupt:
                self.print("interrupted; the cases in progress are finished")
                self.is_stopped = True
                for thread in threads:
                    thread.join()

    def prepare(self) -> None:
        """Write the data of all cases."""
        from tests.robustness.torture.data import write_data

        for name in ("data", "references"):  # of a torture that is continued
            shutil.rmtree(self.directory / name, ignore_errors=True)
        self.data = write_data(self.directory / "data")
        self.jobs = build_jobs(self.data)
        self.clock = compile_clock(self.directory) if "clock" in self.counts else ""

    def start_launcher(self, name: str) -> Launcher:
        """Start a process that forks commands."""
        return Launcher(self.directory / name, **({"LD_PRELOAD": self.clock} if self.clock else {}))

    def work(self, number: int, stack: ExitStack) -> None:
        """Do cases of the kinds in turn until all are done."""
        launcher = self.start_launcher(f"launcher-{number}")
        stack.callback(launcher.close)
        while not self.is_stopped:
            kind = self.take_kind()
            if kind is None:
                return
            try:
                self.do_case(kind, launcher, stack)
            finally:
                with self.mutex:
                    self.counts[kind].busy -= 1

    def take_kind(self) -> str | None:
        """Return the kind that is furthest behind, or None if nothing is left to start."""
        with self.mutex:
            is_open = {
                kind: count.share < 1 and not (count.busy and kind in ONE_AT_A_TIME)
                for kind, count in self.counts.items()
                if not count.skipped
            }
            kinds = [kind for kind, value in is_open.items() if value]
            if not kinds:
                return None
            kind = min(
                kinds, key=lambda kind: (self.counts[kind].done + self.counts[kind].busy) / self.counts[kind].planned
            )
            self.counts[kind].busy += 1
            return kind

    def do_case(self, kind: str, launcher: Launcher, stack: ExitStack) -> None:
        """Do a case, count it and report its progress."""
        with self.mutex:
            self.number += 1
            number = self.number
        count = self.counts[kind]
        seed = self.seed * 1_000_000 + number
        out = self.directory / f"{kind}-{number}" / "out"
        cases.remove(out)  # of a case that was interrupted
        out.parent.mkdir(parents=True)
        try:
            num_done = self.dispatch(kind, launcher, stack, out, seed, count.planned - count.done)
        except Exception as error:
            text = "".join(traceback.format_exception(error)) if not isinstance(error, AssertionError) else str(error)
            (out.parent / "failure.txt").write_text(f"seed {seed}\n{text}\n{launcher.said()}")
            with self.mutex:
                num_failed = count.planned if kind in ONE_CASE else 1
                self.add_to_record(kind, number, done=num_failed, failed=num_failed)
            self.print(f"{kind}: FAILED, see {out.parent}: {text.strip()[-300:]}")
            return
        cases.remove(out)
        with self.mutex:
            self.add_to_record(kind, number, done=num_done, failed=0)
        if number % 10 == 0 or kind in ONE_AT_A_TIME:
            self.print(", ".join(f"{kind} {x.done}/{x.planned}" for kind, x in self.counts.items() if not x.skipped))

    def dispatch(self, kind: str, launcher: Launcher, stack: ExitStack, out: Path, seed: int, left: int) -> int:
        """Do a case. Return how many it counts for."""
        if kind in KILLS:
            return cases.kill_chain(launcher, self.jobs[kind], self.reference(kind, launcher), out, seed, max(1, left))
        if kind == "at-once":
            cases.two_at_once(launcher, self.data, self.alone(launcher), out, seed)
        elif kind == "database":
            cases.lose_database(
                launcher, self.jobs["compare"], self.reference("compare", launcher), self.server(stack), out, seed
            )
        elif kind == "memory":
            self.counts[kind].how = "cgroup" if cases.find_cgroup() else "RLIMIT_AS"
            cases.exhaust_memory(launcher, self.jobs["text"], self.reference("text", launcher), out, seed)
        elif kind == "clock":
            self.counts[kind].how = "clock_gettime" if self.clock else "time.time"
            job = "compare" if seed % 4 == 0 and not why_skipped("compare") else "text"
            cases.jump_clock(launcher, self.jobs[job], self.reference(job, launcher), out, seed)
        elif kind == "workers":
            num_workers = self.counts[kind].planned
            few = out.with_name("few")
            assert launcher.run(*cases.many_runs_command(self.data, num_workers, 2), "--out", few) == 0, launcher.said()
            cases.many_workers(launcher, self.data, out, num_workers, read_study(few))
            return num_workers
        elif kind == "cluster":
            num_runs = self.counts[kind].planned
            self.counts[kind].how = survive_kills(self.data.reviews, self.server(stack), out, num_runs, seed)
            return num_runs
        return 1

    def reference(self, kind: str, launcher: Launcher) -> cases.Reference:
        """Return the outcome of a job that nothing happened to."""
        with self.reference_mutex[kind]:
            if kind not in self.references:
                out = self.directory / "references" / kind
                if self.jobs[kind].file:
                    out.mkdir(parents=True)
                self.references[kind] = cases.Reference(launcher, self.jobs[kind], out)
        reference: cases.Reference = self.references[kind]
        return reference

    def alone(self, launcher: Launcher) -> dict[int, Any]:
        """Return the outcomes of runs with two seeds, each alone in its directory."""
        with self.reference_mutex["at-once"]:
            if "at-once" not in self.references:
                outcomes = {}
                for seed in (0, 7):
                    out = self.directory / "references" / f"seed-{seed}"
                    assert launcher.run(*cases.run_command(self.data, seed, out)) == 0, launcher.said()
                    outcomes[seed] = read_run(out)
                self.references["at-once"] = outcomes
        outcome: dict[int, Any] = self.references["at-once"]
        return outcome

    def server(self, stack: ExitStack) -> Any:
        """Return a PostgreSQL server, which is started on the first call."""
        if "server" not in self.references:
            from tests.studies.postgresql import Server

            self.references["server"] = stack.enter_context(Server())
        return self.references["server"]

    def print(self, text: str) -> None:
        print(f"[{time.monotonic() - self.start:5.0f} s] {text}", flush=True)

    def report(self) -> int:
        """Print a table. Return the exit code: 1 if a case failed."""
        print(f"\n{'kind':<16}{'done':>6}{'held':>6}  remarks")
        for kind, count in self.counts.items():
            unit = "kills" if kind in KILLS else ONE_CASE.get(kind, "cases")
            remarks = f"skipped: {count.skipped}" if count.skipped else f"{unit}{count.how and f', {count.how}'}"
            print(f"{kind:<16}{count.done:>6}{count.done - count.failed:>6}  {remarks}")
        num_kills = sum(count.done for kind, count in self.counts.items() if kind in KILLS)
        num_failed = sum(count.failed for count in self.counts.values())
        print(f"{num_kills} kills in all, {num_failed} failures, {time.monotonic() - self.start:.0f} s")
        return min(1, num_failed)


def why_skipped(kind: str) -> str:
    """Return why cases of a kind cannot be done on this machine, or an empty text."""
    packages = ["datasets", "transformers", *(["optuna"] if kind in STUDIES else [])]
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        return f"{missing[0]} is not installed"
    reason = ""
    if kind in ("database", "cluster"):
        from tests.studies.postgresql import why_no_server

        reason = why_no_server()
    if kind == "cluster":
        from tests.studies.ray_cluster import why_no_cluster

        reason = reason or why_no_cluster()
    return reason


def compile_clock(directory: Path) -> str:
    """Return the path of the compiled clock.c, or an empty text if there is no compiler."""
    library = directory / "clock.so"
    source = Path(__file__).with_name("clock.c")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return ""
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return str(library)
