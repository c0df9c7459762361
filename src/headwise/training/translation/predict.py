"""Translation of files and streams, line by line or row by row, in their order."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import TextIO

from tqdm.auto import tqdm

from headwise.errors import UserError
from headwise.files import LineReader, check_regular, max_line_bytes
from headwise.tasks.formats import EXTENSIONS, chunk_rows, file_extension, missing_column, read_batches
from headwise.tasks.translation.aligned import language_of, strip_newline
from headwise.training.core.table_writer import open_output, open_table, open_text
from headwise.training.translation.inference import TranslationModel

#: Maximum number of lines in memory.
MAX_CHUNK_LINES = 1000
#: Stands for standard input or output.
STREAM = Path("-")


def predict(
    run: Path, data: Path, out: Path, *, source: str | None = None, target: str | None = None, clip: bool = False
) -> int:
    """Translate a file or standard input line by line, or the source column of a table into a column `predicted`.

    Lines from standard input are translated as soon as they arrive. If translation fails, no output file is left.

    Args:
        run: the directory of a finished run.
        data: lines of text, optionally gzipped; CSV, TSV, JSONL or Parquet; `-` for standard input.
        out: the file to write, or `-` for standard output.
        source, target: the languages, which must be those of the run.
        clip: cut sentences that are too long instead of raising an error.

    Returns:
        The number of empty lines, whose translations are empty.

    Raises:
        UserError: there is no such run or file, the languages differ, or a sentence is too long.
    """
    translator = TranslationModel.load(run, source=source, target=target)
    config = translator.config
    if data != STREAM and language_of(data) == config.target:
        raise UserError(f"{data}: is in {config.target}; the run in {run} translates from {config.source}")
    if data != STREAM and file_extension(data) in EXTENSIONS:
        return translate_table(translator, data, out, clip=clip)
    return translate_lines(translator, data, out, clip=clip)


def translate_lines(translator: TranslationModel, data: Path, out: Path, *, clip: bool) -> int:
    """Translate a file or a stream line by line; return the number of empty lines."""
    name = "standard input" if data == STREAM else str(data)
    num_empty, line_number = 0, 1
    bar = tqdm(read_chunks(data), desc="translating", unit=" thousand", leave=False, delay=1, disable=data == STREAM)
    with open_lines(out, source=data) as file:
        for lines in bar:
            locations = [f"{name}, line {line_number + index}" for index in range(len(lines))]
            translations = translator.translate(lines, locations, clip=clip)
            file.writelines(f"{' '.join(text.splitlines())}\n" for text in translations)
            file.flush()
            num_empty += sum(not line.strip() for line in lines)
            line_number += len(lines)
    return num_empty


def translate_table(translator: TranslationModel, data: Path, out: Path, *, clip: bool) -> int:
    """Copy a table with the translations in a new column `predicted`; return the number of empty texts."""
    column, num_empty = str(translator.config.source), 0
    if out == STREAM:
        raise UserError(f"--out -: {data.name} is a table; name a file to write it to")
    with open_table(out, source=data) as write:
        for batch in read_batches(data):
            if column not in batch.columns:
                raise missing_column(data, column, batch.columns)
            if "predicted" in batch.columns:
                raise UserError(f"{data}: already has a column 'predicted', the name of the new column; rename it")
            texts = ["" if text is None else str(text) for text in batch.columns[column]]
            locations = [batch.location(index) for index in range(len(texts))]
            write(dict(batch.columns) | {"predicted": translator.translate(texts, locations, clip=clip)})
            num_empty += sum(not text.strip() for text in texts)
    return num_empty


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
