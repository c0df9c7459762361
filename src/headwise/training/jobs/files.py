"""Prediction for the rows of files: each input file becomes an output file with its rows in their order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headwise.errors import UserError
from headwise.tasks.formats import EXTENSIONS, Batch, FilePart, file_extension, read_batches
from headwise.tasks.formats.parts import plan_parts
from headwise.training.core.distributed import main_process_only
from headwise.training.core.run_dir import atomic_path
from headwise.training.core.table_writer import TableFormat, join_files
from headwise.training.jobs.job import PART_ROWS, JobOptions, PartTask, Progress, Result, run_job
from headwise.training.jobs.job_dir import JobDir, describe_inputs


@dataclass(frozen=True)
class InputPart:
    """Rows of an input file."""

    file_part: FilePart

    @property
    def num_rows(self) -> int:
        return self.file_part.num_rows

    def __str__(self) -> str:
        return str(self.file_part)


@dataclass(frozen=True)
class TablePart(InputPart):
    """Rows of a table, and the format of the output.

    Args:
        file_part: the rows.
        format: the format of the output.
        delimiter: the delimiter of a CSV or TSV file; detected by default.
        columns: the columns of the file that the model reads.
    """

    format: TableFormat
    delimiter: str | None
    columns: Any


@dataclass(frozen=True)
class TextPart(InputPart):
    """Lines of a text file, and the output that they belong to."""

    out: Path


class TablePredictor(Protocol):
    """A model that adds columns to the rows of tables."""

    def load(self) -> Any:
        """Load the model."""

    def predict(self, model: Any, batch: Batch, columns: Any) -> tuple[dict[str, Sequence[Any]], Result]:
        """Return the new columns of a batch, and arrays that are summed over all batches."""


@dataclass(frozen=True)
class TableTask:
    """Writes the rows of a part with new columns."""

    predictor: TablePredictor

    def load(self) -> Any:
        return self.predictor.load()

    def run(self, model: Any, part: TablePart, out: Path | None, progress: Progress) -> Result:
        assert out is not None
        total: Result = {}
        rows, num_rows = part.file_part, 0
        with part.format.open_part(out, is_first=rows.first_row == 0) as write:
            for batch in read_batches(rows.path, delimiter=part.delimiter, part=rows):
                columns, counts = self.predictor.predict(model, batch, part.columns)
                write(dict(batch.columns) | columns)
                add_counts(total, counts)
                num_rows += len(batch.rows)
                progress(len(batch.rows))
        return total | {"rows": np.array(num_rows)}


def add_counts(total: Result, counts: Mapping[str, Any]) -> None:
    """Add arrays to those of the same name."""
    for name, value in counts.items():
        total[name] = total.get(name, 0) + np.asarray(value)


def find_files(data: Path | Sequence[Path]) -> tuple[list[Path], bool]:
    """Return the input files, and whether there may be several: in a list, or in a directory.

    Raises:
        UserError: a directory has no files that can be read, or two files have the same name.
    """
    paths = [data] if isinstance(data, Path) else list(data)
    is_many = len(paths) > 1 or paths[0].is_dir()
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        found = sorted(
            file
            for file in path.iterdir()
            if file.is_file() and file_extension(file) in EXTENSIONS and not file.name.startswith(".")
        )
        if not found:
            raise UserError(f"{path}: the directory has no files that can be read ({', '.join(EXTENSIONS)})")
        files += found
    names = [file.name for file in files]
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise UserError(f"{twice}: two input files have this name, which is also the name of the output; rename one")
    return files, is_many


def output_paths(data: Path | Sequence[Path], out: Path, *, replace: bool) -> dict[Path, Path]:
    """Return the output of each input file: `out`, or for several files a file of the same name in the directory `out`.

    Args:
        data: the input files.
        out: the output file or directory.
        replace: whether existing outputs are replaced.

    Raises:
        UserError: an output exists, or `out` is not a directory.
    """
    files, is_many = find_files(data)
    if not is_many:
        return {files[0]: out}
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is a file; for several input files, name a directory")
    outputs = {file: out / file.name.replace(".xlsx", ".csv") for file in files}
    existing = [path for path in outputs.values() if path.exists()]
    if existing and not replace:
        raise UserError(f"--out {existing[0]}: the file exists; --force replaces it")
    return outputs


def plan_tables(
    outputs: Mapping[Path, Path],
    job_dir: JobDir,
    new_columns: Mapping[str, pa.DataType],
    choose_columns: Callable[[Batch], Any],
    options: JobOptions,
    *,
    delimiter: str | None = None,
) -> list[TablePart]:
    """Divide tables into parts.

    Args:
        outputs: the output of each input file.
        job_dir: the job's directory.
        new_columns: the names and types of the columns that are added.
        choose_columns: returns the columns that the model reads, given the first rows of a file.
        options: the size of the parts.
        delimiter: the delimiter of CSV and TSV files; detected by default.

    Raises:
        UserError: a file is invalid, or its output cannot be written.
    """
    parts = []
    for index, (file, out) in enumerate(outputs.items()):
        head = next(read_batches(file, delimiter=delimiter), None)
        if head is None:
            raise UserError(f"{file}: contains no rows")
        columns = choose_columns(head)
        table_format = TableFormat.from_head(out, head, new_columns)
        copy = job_dir.path / f"input-{index:06d}"
        file_parts = plan_parts(file, options.part_rows or PART_ROWS, copy=copy, delimiter=delimiter)
        parts += [TablePart(file_part, table_format, delimiter, columns) for file_part in file_parts]
    return parts


def prediction_plan(
    run: Path, outputs: Mapping[Path, Path], options: JobOptions, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return everything that determines the predictions for files, as JSON.

    Args:
        run: the directory of a finished run.
        outputs: the output of each input file.
        options: the options of the job.
        settings: the options that determine the predictions.
    """
    return {
        **describe_inputs(run, list(outputs)),
        "outputs": [path.name for path in outputs.values()],
        "part_rows": options.part_rows or PART_ROWS,
        **settings,
    }


def predict_parts(
    task: PartTask, parts: Sequence[InputPart], options: JobOptions, job_dir: JobDir, *, unit: str
) -> Result:
    """Run a task on all parts, write the outputs, and return the sums of the results.

    Raises:
        UserError: an input is invalid, or a part failed repeatedly.
    """
    total: Result = {}
    for part, result in zip(parts, run_job(task, parts, options, job_dir, verb="predicting", unit=unit), strict=True):
        num_rows = int(result.pop("rows"))
        if num_rows != part.num_rows:
            raise UserError(
                f"{part}: only {num_rows:,} rows were found; the file is damaged, or changed while it was read"
            )
        add_counts(total, result)
    main_process_only(lambda: join_outputs(parts, job_dir))
    return total


def join_outputs(parts: Sequence[InputPart], job_dir: JobDir) -> None:
    """Join the outputs of consecutive parts of the same file."""
    by_file: dict[Path, list[tuple[InputPart, Path]]] = {}
    for number, part in enumerate(parts):
        by_file.setdefault(part.file_part.path, []).append((part, job_dir.output_path(number)))
    for file_parts in by_file.values():
        first, paths = file_parts[0][0], [path for _, path in file_parts]
        if isinstance(first, TablePart):
            first.format.join(paths)
        else:
            assert isinstance(first, TextPart)
            with atomic_path(first.out) as path:
                join_files(paths, path)
