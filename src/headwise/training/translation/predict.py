"""Translation of files and streams, line by line or row by row, in their order."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any, TextIO

import numpy as np
import pyarrow as pa

from headwise.csv_cells import is_safe_csv
from headwise.errors import UserError
from headwise.files import LineReader, check_regular, max_line_bytes
from headwise.tasks.formats import EXTENSIONS, Batch, FilePart, chunk_rows, file_extension, missing_column
from headwise.tasks.formats.parts import plan_lines
from headwise.tasks.translation.aligned import language_of, strip_newline
from headwise.training.core.distributed import main_process_only
from headwise.training.core.table_writer import open_output, open_text
from headwise.training.jobs import PART_ROWS, JobDir, JobOptions, PartTask, Progress, Result, open_job
from headwise.training.jobs.files import (
    InputPart,
    TableTask,
    TextPart,
    output_paths,
    plan_tables,
    predict_parts,
    prediction_plan,
)
from headwise.training.translation.inference import TranslationModel

#: Maximum number of lines in memory.
MAX_CHUNK_LINES = 1000
#: Stands for standard input or output.
STREAM = Path("-")
DEFAULT_OPTIONS = JobOptions()


def predict(
    run: Path,
    data: Path | Sequence[Path],
    out: Path,
    *,
    source: str | None = None,
    target: str | None = None,
    clip: bool = False,
    options: JobOptions = DEFAULT_OPTIONS,
) -> int:
    """Translate files or standard input line by line, or the source column of tables into a column `predicted`.

    Lines from standard input are translated as soon as they arrive. If translation fails, no output file is left.

    Args:
        run: the directory of a finished run.
        data: files with lines of text, optionally gzipped; CSV, TSV, JSONL or Parquet; `-` for standard input.
        out: the file to write, or `-` for standard output; for several files a directory.
        source, target: the languages, which must be those of the run.
        clip: cut sentences that are too long instead of raising an error.
        options: the processes or the cluster, and whether an unfinished job is resumed.

    Returns:
        The number of empty lines, whose translations are empty.

    Raises:
        UserError: there is no such run or file, the languages differ, or a sentence is too long.
    """
    languages = {"source": source, "target": target}
    config = TranslationModel.read_config(run, **languages)
    if STREAM in (data, out):
        if not isinstance(data, Path):
            raise UserError("--out -: name one file, or - for standard input")
        return translate_stream(TranslationModel.load(run, **languages), data, out, clip=clip)
    outputs = output_paths(data, out, replace=options.replaces(out))
    for file in outputs:
        if language_of(file) == config.target:
            raise UserError(f"{file}: is in {config.target}; the run in {run} translates from {config.source}")
    is_table = {file_extension(file) in EXTENSIONS for file in outputs}
    if len(is_table) > 1:
        raise UserError("tables and files of text lines cannot be translated by one command; start one for each")
    settings = {"clip": clip, "safe_csv": is_safe_csv()}
    with open_job(out, prediction_plan(run, outputs, options, settings), options) as job_dir:
        assert job_dir is not None
        plan: Callable[[], Sequence[InputPart]]
        if is_table == {False}:
            plan = partial(plan_text, outputs, job_dir, options.part_rows or PART_ROWS)
            task: PartTask = TranslatedLines(run, clip)
        else:
            column = str(config.source)
            columns = {"predicted": pa.string()}
            plan = partial(plan_tables, outputs, job_dir, columns, partial(check_column, column), options)
            task = TableTask(Translator(run, clip))
        total = predict_parts(task, main_process_only(plan, share=True), options, job_dir, unit="sentences")
    return int(total.get("empty", 0))


def check_column(column: str, head: Batch) -> str:
    """Return the column of sentences.

    Raises:
        UserError: the file does not have it.
    """
    if column not in head.columns:
        raise missing_column(head.path, column, head.columns)
    return column


@dataclass(frozen=True)
class Translator:
    """Translates a column of tables with the model of a run."""

    run: Path
    clip: bool

    def load(self) -> TranslationModel:
        return TranslationModel.load(self.run)

    def predict(self, model: TranslationModel, batch: Batch, column: str) -> tuple[dict[str, Sequence[Any]], Result]:
        texts = ["" if text is None else str(text) for text in batch.columns.get(column, [None] * len(batch.rows))]
        locations = [batch.location(index) for index in range(len(texts))]
        translations = model.translate(texts, locations, clip=self.clip)
        return {"predicted": translations}, {"empty": np.array(sum(not text.strip() for text in texts))}


def plan_text(outputs: Mapping[Path, Path], job_dir: JobDir, part_rows: int) -> list[TextPart]:
    """Divide files with one sentence per line into parts.

    Raises:
        UserError: a file does not exist, or is its own output.
    """
    parts = []
    for index, (file, out) in enumerate(outputs.items()):
        if out.exists() and file.exists() and out.samefile(file):
            raise UserError(f"--out {out}: the output is the input file")
        file_parts = plan_lines(file, part_rows, copy=job_dir.path / f"input-{index:06d}")
        parts += [TextPart(part, out) for part in file_parts or [FilePart(file, 0, 0)]]
    return parts


@dataclass(frozen=True)
class TranslatedLines:
    """Translates a part of a file line by line."""

    run_dir: Path
    clip: bool

    def load(self) -> TranslationModel:
        return TranslationModel.load(self.run_dir)

    def run(self, model: TranslationModel, part: TextPart, out: Path | None, progress: Progress) -> Result:
        assert out is not None
        rows = part.file_part
        lines = LineReader(rows.path, copy=rows.copy)
        if rows.offset:
            lines.seek(rows.offset, rows.line)
        chunks = chunk_rows(islice(map(strip_newline, lines), rows.num_rows), lambda: lines.num_bytes)
        with open_text(out, gzipped=part.out.suffix == ".gz") as file:
            num_empty, num_rows = translate_chunks(
                model, chunks, file, str(rows.path), rows.line + 1, clip=self.clip, progress=progress
            )
        return {"rows": np.array(num_rows), "empty": np.array(num_empty)}


def translate_chunks(
    model: TranslationModel,
    chunks: Iterable[list[str]],
    file: TextIO,
    name: str,
    first_line: int = 1,
    *,
    clip: bool,
    progress: Progress = lambda _: None,
) -> tuple[int, int]:
    """Translate chunks of lines; return the number of empty lines and of all lines."""
    num_empty, line_number = 0, first_line
    for lines in chunks:
        locations = [f"{name}, line {line_number + index}" for index in range(len(lines))]
        translations = model.translate(lines, locations, clip=clip)
        file.writelines(f"{' '.join(text.splitlines())}\n" for text in translations)
        file.flush()
        num_empty += sum(not line.strip() for line in lines)
        line_number += len(lines)
        progress(len(lines))
    return num_empty, line_number - first_line


def translate_stream(model: TranslationModel, data: Path, out: Path, *, clip: bool) -> int:
    """Translate line by line from standard input, to standard output or both; return the number of empty lines.

    Raises:
        UserError: a table is translated to standard output.
    """
    if data != STREAM and file_extension(data) in EXTENSIONS:
        raise UserError(f"--out -: {data.name} is a table; name a file to write it to")
    name = "standard input" if data == STREAM else str(data)
    with open_lines(out, source=data) as file:
        return translate_chunks(model, read_chunks(data), file, name, clip=clip)[0]


@contextmanager
def open_lines(out: Path, *, source: Path) -> Iterator[TextIO]:
    """Open standard output, or a file that exists only once it is complete."""
    if out == STREAM:
        yield sys.stdout
        return
    with open_output(out, source=source) as path, open_text(path, gzipped=out.suffix == ".gz") as file:
        yield file


def read_chunks(data: Path) -> Iterator[list[str]]:
    """Yield the lines of a file or of standard input in chunks."""
    if data == STREAM:
        yield from read_stream(sys.stdin)
        return
    check_regular(data)
    lines = LineReader(data)
    yield from chunk_rows(map(strip_newline, lines), lambda: lines.num_bytes)


def read_stream(stream: TextIO) -> Iterator[list[str]]:
    """Yield the lines that have arrived since the last chunk: at least one, at most MAX_CHUNK_LINES."""
    queue: Queue[str | UserError | None] = Queue(MAX_CHUNK_LINES)  # the end of the stream is None or an error

    def read_into_queue() -> None:
        end = None
        try:
            for line in limit_lines(stream):
                queue.put(line)
        except UserError as error:
            end = error
        queue.put(end)

    Thread(target=read_into_queue, daemon=True).start()
    line = queue.get()
    while isinstance(line, str):
        chunk = [line]
        try:
            while len(chunk) < MAX_CHUNK_LINES and isinstance(line := queue.get_nowait(), str):
                chunk.append(line)
        except Empty:
            line = ""
        yield chunk
        if isinstance(line, str):
            line = queue.get()
    if line is not None:
        raise line


def limit_lines(stream: TextIO) -> Iterator[str]:
    """Yield the lines of a stream.

    Raises:
        UserError: a line is too long or not UTF-8.
    """
    limit, number = max_line_bytes(), 1
    try:
        while line := stream.readline(limit + 1):
            if len(line) > limit:
                raise UserError(f"standard input, line {number}: more than {limit:,} characters")
            yield strip_newline(line)
            number += 1
    except UnicodeDecodeError as error:
        raise UserError(f"standard input, line {number} or later: not {error.encoding}; convert it to UTF-8") from None
