"""A job: a task that is run on parts of its data, and the results of the parts in order."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tqdm.auto import tqdm

from headwise.errors import UserError
from headwise.training.core.distributed import main_process_only, shows_progress_bars, state
from headwise.training.jobs.job_dir import JobDir

logger = logging.getLogger(__name__)

#: Rows of a part. A part is computed again if its process dies, so it should take seconds to minutes.
PART_ROWS = 10_000
#: How often a part is tried.
MAX_ATTEMPTS = 3

#: The result of a part: arrays by name.
Result = dict[str, Any]
#: Takes the number of rows that were done since its last call.
Progress = Callable[[int], Any]


class PartFailedError(UserError):
    """A part failed repeatedly. The job can be resumed."""


@dataclass(frozen=True)
class JobOptions:
    """Where the parts of a job run.

    Args:
        processes: the number of local processes; by default one per GPU, or this process alone.
        cluster: the address of a Ray cluster, or `auto`; by default no cluster is used.
        resume: continue the unfinished job, if there is one.
        force: discard the unfinished job, if there is one.
        part_rows: the number of rows of a part; the default depends on the data.
    """

    processes: int | None = None
    cluster: str | None = None
    resume: bool = False
    force: bool = False
    part_rows: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("--processes", self.processes), ("--part-rows", self.part_rows)):
            if value is not None and value < 1:
                raise UserError(f"{name} must be at least 1, got {value}")
        if self.cluster is not None and self.processes is not None:
            raise UserError("--processes and --cluster cannot be combined: the cluster determines the processes")

    def replaces(self, out: Path) -> bool:
        """Return whether existing outputs are replaced: with `force`, or by the unfinished job that wrote them."""
        return self.force or (self.resume and JobDir.next_to(out).has_finished_parts())


class Part(Protocol):
    """A part of the data. Its text names it in messages."""

    @property
    def num_rows(self) -> int: ...


@dataclass(frozen=True)
class RowRange:
    """Consecutive rows of a data set: `num_rows` from `start` on."""

    start: int
    num_rows: int

    @classmethod
    def divide(cls, num_rows: int, part_rows: int) -> "list[RowRange]":
        """Divide a data set into parts.

        >>> RowRange.divide(5, 2)
        [RowRange(start=0, num_rows=2), RowRange(start=2, num_rows=2), RowRange(start=4, num_rows=1)]
        """
        return [cls(start, min(part_rows, num_rows - start)) for start in range(0, num_rows, part_rows)]

    @property
    def stop(self) -> int:
        return self.start + self.num_rows

    def __str__(self) -> str:
        return f"rows {self.start + 1:,} to {self.stop:,}"


class PartTask(Protocol):
    """What is done with each part. Tasks are sent to other processes, so they hold options and paths, not models."""

    def load(self) -> Any:
        """Load the model, once in each process."""

    def run(self, model: Any, part: Any, out: Path | None, progress: Progress) -> Result:
        """Compute the result of a part.

        Args:
            model: the model.
            part: the part.
            out: where the part's output is written; None if the job has no directory.
            progress: takes the number of rows that were done since its last call.
        """


@dataclass(frozen=True)
class PartRunner:
    """Runs a task on parts and stores their results.

    Args:
        task: the task.
        directory: the job's directory; None if results are not stored.
    """

    task: PartTask
    directory: Path | None

    def __call__(self, model: Any, number: int, part: Any, progress: Progress = lambda _: None) -> Result:
        """Return the result of a part."""
        if self.directory is None:
            return self.task.run(model, part, None, progress)
        job_dir = JobDir(self.directory)
        output = job_dir.output_path(number)
        with job_dir.new_file(output) as path:
            path.touch()
            result = self.task.run(model, part, path, progress)
        job_dir.save(number, result)
        return result


@contextmanager
def open_job(out: Path | None, plan: Mapping[str, Any], options: JobOptions) -> Iterator[JobDir | None]:
    """Yield the directory of a job, which is deleted at the end; None without an output.

    It is kept if the job is interrupted or fails for another reason than the user's input.

    Args:
        out: the output of the job.
        plan: everything that determines its results, as JSON.
        options: the options of the job.

    Raises:
        UserError: there is an unfinished job that is neither resumed nor discarded, or it has another plan.
    """
    if out is None:
        yield None
        return
    job_dir = JobDir.next_to(out)
    main_process_only(lambda: job_dir.begin(plan, resume=options.resume, force=options.force))
    try:
        yield job_dir
    except UserError as error:
        if not isinstance(error, PartFailedError):
            main_process_only(job_dir.remove)
        raise
    state().wait_for_everyone()
    main_process_only(job_dir.remove)


def run_job(
    task: PartTask, parts: Sequence[Part], options: JobOptions, job_dir: JobDir | None = None, *, verb: str, unit: str
) -> Iterator[Result]:
    """Run a task on all parts and yield the results in the order of the parts.

    In a distributed program, all processes call this function, share the parts and get all results.

    Args:
        task: the task.
        parts: the parts.
        options: where they run.
        job_dir: the job's directory, in which finished parts are skipped; by default results are kept in memory.
        verb: what is done, for the progress bar.
        unit: what the rows are, for the progress bar.

    Raises:
        UserError: the data is invalid, or a part failed repeatedly.
    """
    from headwise.training.jobs.engines import choose_engine

    def list_pending() -> list[int]:
        return [number for number in range(len(parts)) if job_dir is None or not job_dir.is_finished(number)]

    pending = main_process_only(list_pending, share=True)
    if len(pending) < len(parts):
        logger.info("continuing: %s of %s parts are finished", f"{len(parts) - len(pending):,}", f"{len(parts):,}")
    engine = choose_engine(options, len(pending))
    runner = PartRunner(task, None if job_dir is None else job_dir.path)
    finished: dict[int, Result | None] = dict.fromkeys(range(len(parts)))
    for number in pending:
        del finished[number]
    next_number = 0
    num_rows = sum(part.num_rows for part in parts)
    hidden = not shows_progress_bars()
    with tqdm(total=num_rows, desc=verb, unit=f" {unit}", leave=False, delay=1, disable=hidden) as bar:
        bar.update(num_rows - sum(parts[number].num_rows for number in pending))
        for number, result in engine(runner, {number: parts[number] for number in pending}, bar.update):
            finished[number] = result if job_dir is None else None
            while next_number in finished:
                yield load_result(finished.pop(next_number), next_number, job_dir)
                next_number += 1
    while next_number in finished:
        yield load_result(finished.pop(next_number), next_number, job_dir)
        next_number += 1
    assert next_number == len(parts), "every part has a result"


def load_result(result: Result | None, number: int, job_dir: JobDir | None) -> Result:
    """Return a result that is in memory, or in the job's directory."""
    if job_dir is not None:
        return job_dir.load(number)
    assert result is not None
    return result
