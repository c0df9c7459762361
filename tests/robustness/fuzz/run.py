"""A fuzzing run: prepares the valid files, reads the inputs, saves findings and prints a table."""

import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.robustness.fuzz.kinds import Kind, all_kinds, choose_kind, find_missing_package
from tests.robustness.fuzz.pool import Pool, read_valid, run_in_process
from tests.robustness.fuzz.worker import Limits, Outcome, redirect_output, write_input

#: Largest number of findings with the same cause whose inputs are saved.
MAX_SAVED = 3
#: Bytes that a file system in memory needs; files that were decompressed can be large.
MIN_FREE_MEMORY = 4 * 2**30
#: Seconds between two lines of progress.
PROGRESS_SECONDS = 10


@dataclass
class Result:
    """Counts of a fuzzing run.

    Args:
        counts: the number of inputs by kind and status.
        seconds: the computing time by kind.
        skipped: missing packages by kind.
        findings: findings by kind and cause, the first ones of each.
        num_findings: the number of findings by kind and cause.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    skipped: dict[str, str] = field(default_factory=dict)
    findings: dict[tuple[str, str], list[Outcome]] = field(default_factory=dict)
    num_findings: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> bool:
        """Count an outcome; return whether it is a finding that is to be saved."""
        self.counts[outcome.kind, outcome.status] += 1
        self.seconds[outcome.kind] += outcome.seconds
        if outcome.status != "finding":
            return False
        key = outcome.kind, outcome.cause
        self.num_findings[key] += 1
        examples = self.findings.setdefault(key, [])
        if len(examples) >= MAX_SAVED:
            return False
        examples.append(outcome)
        return True

    def table(self, kinds: Sequence[Kind]) -> str:
        """Return a table with one line for each kind."""
        lines = [f"{'kind':<42}{'inputs':>9}{'accepted':>10}{'refused':>9}{'findings':>10}{'ms/input':>10}"]
        for kind in kinds:
            if kind.name in self.skipped:
                lines.append(f"{kind.name:<42}skipped: {self.skipped[kind.name]} is not installed")
            else:
                lines.append(self.format_row(kind.name, [kind.name]))
        return "\n".join([*lines, self.format_row("total", [kind.name for kind in kinds])])

    def format_row(self, title: str, names: Sequence[str]) -> str:
        """Return a line of the table, with the sums over some kinds."""
        accepted, refused, findings = (
            sum(self.counts[name, status] for name in names) for status in ("accepted", "refused", "finding")
        )
        inputs = accepted + refused + findings
        milliseconds = 1000 * sum(self.seconds[name] for name in names) / max(1, inputs)
        return f"{title:<42}{inputs:>9,}{accepted:>10,}{refused:>9,}{findings:>10,}{milliseconds:>10.1f}"


@contextmanager
def working_directory() -> Iterator[Path]:
    """Create a directory for inputs, in memory where possible, because they are small and many."""
    memory = Path("/dev/shm")
    has_space = memory.is_dir() and shutil.disk_usage(memory).free > MIN_FREE_MEMORY
    root = Path(tempfile.mkdtemp(prefix="headwise-fuzz-", dir=memory if has_space else None)).resolve()
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def set_environment(root: Path) -> None:
    """Keep libraries from using several threads or writing to the user's caches. They are not told to be offline."""
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HOME": str(root / "hf-home"),
        "MPLCONFIGDIR": str(root / "matplotlib"),
        "CUDA_VISIBLE_DEVICES": "",
        "ARROW_NUM_THREADS": "1",
    }
    os.environ.pop("HF_HUB_OFFLINE", None)


def prepare(kinds: Sequence[Kind], root: Path) -> None:
    """Write the valid files of all kinds. Kinds with the same function share them."""
    from headwise.training.core.callbacks import quiet_libraries

    redirect_output(root / "prepare.log")
    done: dict[Callable[[Path], None], Path] = {}
    with quiet_libraries():
        for kind in kinds:
            seed = root / "seeds" / kind.name
            if kind.prepare in done:
                shutil.copytree(done[kind.prepare], seed)
                continue
            seed.mkdir(parents=True)
            kind.prepare(seed)
            done[kind.prepare] = seed


def prepare_in_process(kinds: Sequence[Kind], root: Path) -> None:
    """Write the valid files in a process of its own, because training starts threads, which forks do not copy."""
    try:
        run_in_process(prepare, kinds, root)
    except RuntimeError:
        print((root / "prepare.log").read_text(encoding="utf-8", errors="replace")[-4000:], file=sys.stderr)
        raise


def open_kinds(result: Result, prefixes: Sequence[str] = ()) -> list[Kind]:
    """Return the kinds that can be read here; the others are noted in the result."""
    kinds = [kind for kind in all_kinds() if not prefixes or kind.name.startswith(tuple(prefixes))]
    for kind in kinds:
        if (package := find_missing_package(kind)) is not None:
            result.skipped[kind.name] = package
    return [kind for kind in kinds if kind.name not in result.skipped]


def fuzz(
    numbers: Iterable[int],
    processes: int,
    out: Path,
    limits: Limits,
    prefixes: Sequence[str] = (),
    *,
    quiet: bool = False,
) -> Result:
    """Read inputs and print a table. Findings are saved to `out`.

    Args:
        numbers: the numbers of the inputs. An input whose kind is not available or not asked for is left out.
        processes: the number of processes.
        out: the directory for findings.
        limits: the limits of one input.
        prefixes: the beginnings of the names of kinds; all by default.
        quiet: print no progress.
    """
    result = Result()
    with working_directory() as root:
        set_environment(root)
        kinds = open_kinds(result, prefixes)
        names = {kind.name for kind in kinds}
        prepare_in_process(kinds, root)
        pool = Pool(all_kinds(), root, processes, limits)
        chosen = [number for number in numbers if choose_kind(number, pool.kinds).name in names]
        for outcome in run_in_process(read_valid, kinds, root, limits):
            if outcome.status != "accepted":
                problem = f"{outcome.kind}: valid files are not accepted: {outcome.summary}"
                raise RuntimeError(f"{problem}\n{outcome.details}")
        start = reported = time.monotonic()
        for done, (outcome, _) in enumerate(pool.run(chosen), 1):
            if result.add(outcome):
                save(outcome, root / "seeds", out)
            if not quiet and (time.monotonic() - reported > PROGRESS_SECONDS or done == len(chosen)):
                reported = time.monotonic()
                rate = done / (reported - start)
                print(
                    f"{done:,} of {len(chosen):,} inputs, {rate:.0f} per second, "
                    f"{len(result.findings)} different findings",
                    file=sys.stderr,
                )
        if not quiet:
            print(result.table([kind for kind in all_kinds() if not prefixes or kind.name in names]))
            print_findings(result, out)
    return result


def save(outcome: Outcome, seeds: Path, out: Path) -> None:
    """Save the input of a finding and a description of it."""
    directory = out / str(outcome.number)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    text = f"{outcome.kind}\n{outcome.summary}\n\n{outcome.details}\n"
    (directory / "finding.txt").write_text(text, encoding="utf-8", errors="backslashreplace")
    kind = choose_kind(outcome.number, all_kinds())
    with suppress(Exception):  # of a mutation that fails; then this is the finding
        write_input(outcome.number, kind, seeds, directory / "input")


def print_findings(result: Result, out: Path) -> None:
    """Print one line for each different finding, the most frequent first."""
    for key, count in result.num_findings.most_common():
        outcomes = result.findings[key]
        numbers = ", ".join(str(outcome.number) for outcome in outcomes)
        summary = json.dumps(outcomes[0].summary)[1:-1]
        print(f"finding in {outcomes[0].kind}, {count} times (input {numbers}): {summary:.300}")
    if result.findings:
        print(f"The inputs are in {out}; to repeat one: python -m tests.robustness.fuzz --only NUMBER")


def repeat(number: int, out: Path, limits: Limits) -> int:
    """Read one input again and print what happens; return 1 if it is a finding."""
    result = Result()
    kind = choose_kind(number, all_kinds())
    with working_directory() as root:
        set_environment(root)
        if find_missing_package(kind) is not None:
            raise SystemExit(f"{kind.name}: a package is missing")
        prepare_in_process([kind], root)
        ((outcome, _),) = Pool(all_kinds(), root, 1, limits).run([number])
        if result.add(outcome):
            save(outcome, root / "seeds", out)
    print(f"{outcome.kind}: {outcome.status}: {outcome.summary}\n{outcome.details}")
    return 1 if outcome.status == "finding" else 0
