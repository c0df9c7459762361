"""A fuzzing run: prepares the valid files, reads the inputs, saves findings and prints a table."""

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.robustness.fuzz.kinds import Kind, all_kinds, choose_kind, find_missing_package
from tests.robustness.fuzz.pool import Pool, read_valid, run_in_process
from tests.robustness.fuzz.record import Record
from tests.robustness.fuzz.result import Result
from tests.robustness.fuzz.worker import Limits, Outcome, redirect_output, write_input

#: Bytes that a file system in memory needs; files that were decompressed can be large.
MIN_FREE_MEMORY = 4 * 2**30
#: Seconds between two lines of progress.
PROGRESS_SECONDS = 10


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
        "MPLCONFIGDIR": str(Path(tempfile.gettempdir()) / "headwise-fuzz-matplotlib"),  # building it takes seconds
        "CUDA_VISIBLE_DEVICES": "",
        "ARROW_NUM_THREADS": "1",
    }
    os.environ.pop("HF_HUB_OFFLINE", None)


def prepare(kinds: Sequence[Kind], root: Path) -> None:
    """Write the valid files of all kinds. Kinds with the same function share them."""
    from headwise.training.core.callbacks import quiet_libraries
    from tests.robustness.fuzz.model_seeds import without_rendering

    redirect_output(root / "prepare.log")
    done: dict[Callable[[Path], None], Path] = {}
    with quiet_libraries(), without_rendering():
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
    numbers: range,
    processes: int,
    out: Path,
    limits: Limits,
    prefixes: Sequence[str] = (),
    record_file: Path | None = None,
) -> Result:
    """Read inputs and print a table. Findings are saved to `out`.

    Args:
        numbers: the numbers of the inputs. An input whose kind is not available or not asked for is left out.
        processes: the number of processes.
        out: the directory for findings.
        limits: the limits of one input.
        prefixes: the beginnings of the names of kinds; all by default.
        record_file: a record of finished parts, which are not read again; none by default.
    """
    record = Record(record_file)
    result = record.total()
    with working_directory() as root:
        set_environment(root)
        kinds = open_kinds(result, prefixes)
        prepare_in_process(kinds, root)
        for outcome in run_in_process(read_valid, kinds, root, limits):
            if outcome.status != "accepted":
                problem = f"{outcome.kind}: valid files are not accepted: {outcome.summary}"
                raise RuntimeError(f"{problem}\n{outcome.details}")
        pool = Pool(all_kinds(), root, processes, limits)
        names = {kind.name for kind in kinds}
        progress = Progress(len(numbers))
        for part in record.missing_parts(numbers):
            part_result = Result()
            for outcome, _ in pool.run(number for number in part if choose_kind(number, pool.kinds).name in names):
                if part_result.add(outcome):
                    save(outcome, root / "seeds", out)
                progress.report(outcome.number, len(result.findings | part_result.findings))
            record.add(part, part_result)
            result.merge(part_result)
        print(result.table([kind for kind in all_kinds() if not prefixes or kind.name in names]))
        print_findings(result, out)
    return result


class Progress:
    """Prints a line of progress every few seconds.

    Args:
        total: the number of all inputs.
    """

    def __init__(self, total: int) -> None:
        self.total, self.done, self.start = total, 0, time.monotonic()
        self.reported = self.start

    def report(self, number: int, num_findings: int) -> None:
        """Count an input, and print a line if it is time."""
        self.done += 1
        if time.monotonic() - self.reported > PROGRESS_SECONDS:
            self.reported = time.monotonic()
            rate = self.done / (self.reported - self.start)
            print(
                f"input {number:,} of {self.total:,}, {rate:.0f} per second, {num_findings} different findings",
                file=sys.stderr,
            )


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
