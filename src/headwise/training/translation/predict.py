"""Files and streams translated, line by line or row by row, in their order."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TextIO

from tqdm.auto import tqdm

from headwise.errors import UserError
from headwise.tasks.formats import EXTENSIONS, file_extension, missing_column, read_batches, read_lines
from headwise.tasks.translation.aligned import language_of, strip_newline
from headwise.training.core.table_writer import new_file, open_text, writer_for
from headwise.training.translation.inference import TranslationModel

#: Lines in memory at a time.
LINES = 1000
STREAM = Path("-")


def predict(
    run: Path, data: Path, out: Path, *, source: str | None = None, target: str | None = None, clip: bool = False
) -> int:
    """Translate a file, or standard input, line by line; of a table, its source's column, into a column `predicted`.

    A thousand lines are in memory at a time; lines that come from a stream are translated as soon as they are there.
    Nothing is left of an output file that could not be finished.

    Args:
        run: a finished run's folder.
        data: lines of text, gzipped or not; CSV, TSV, JSONL or Parquet; `-` is standard input.
        out: what to write, `-` for standard output.
        source, target: the languages, which must be the run's.
        clip: cut sentences that are too long, instead of stopping there.

    Returns:
        How many lines are empty, and stayed so.

    Raises:
        UserError: no such run or file, other languages, or a sentence that is too long, with its line.
    """
    trained = TranslationModel.load(run, source=source, target=target)
    translate = partial(trained.translate, clip=clip)
    if data != STREAM and language_of(data) == trained.settings.target:
        raise UserError(
            f"{data}: is in {trained.settings.target}; the run in {run} translates from {trained.settings.source}"
        )
    if data != STREAM and file_extension(data) in EXTENSIONS:
        return rows(trained, data, out, clip=clip)
    empty = 0
    first = 1
    with output(out, like=data) as file:
        for chunk in tqdm(
            chunks(data), desc="translating", unit=" thousand", leave=False, delay=1, disable=data == STREAM
        ):
            places = [f"{'standard input' if data == STREAM else data}, line {first + i}" for i in range(len(chunk))]
            file.writelines(f"{' '.join(text.splitlines())}\n" for text in translate(chunk, places))
            file.flush()
            empty += sum(not line.strip() for line in chunk)
            first += len(chunk)
    return empty


def rows(trained: TranslationModel, data: Path, out: Path, *, clip: bool) -> int:
    """A table written again, with the translations in a column of its own."""
    name, empty = str(trained.settings.source), 0
    if out == STREAM:
        raise UserError(f"--out -: {data.name} is a table; name a file to write it to")
    with writer_for(out, like=data) as write:
        for batch in read_batches(data):
            if name not in batch.columns:
                raise missing_column(data, name, batch.columns)
            if "predicted" in batch.columns:
                raise UserError(f"{data}: has a column 'predicted' already; rename it, as translations are called that")
            texts = ["" if text is None else str(text) for text in batch.columns[name]]
            places = [batch.location(index) for index in range(len(texts))]
            write(dict(batch.columns) | {"predicted": trained.translate(texts, places, clip=clip)})
            empty += sum(not text.strip() for text in texts)
    return empty


@contextmanager
def output(out: Path, *, like: Path) -> Iterator[TextIO]:
    """Standard output, or a file that is there when all is written, or not at all."""
    if out == STREAM:
        yield sys.stdout
        return
    with new_file(out, like=like) as part, open_text(part, packed=out.suffix == ".gz") as file:
        yield file


def chunks(data: Path) -> Iterator[list[str]]:
    """The lines of a file, many at a time; of standard input, those that are there."""
    if data == STREAM:
        yield from arrived(sys.stdin)
        return
    if not data.is_file():
        raise UserError(f"{data}: {'a folder, not a file' if data.is_dir() else 'no such file'}")
    read = map(strip_newline, read_lines(data))
    while chunk := list(islice(read, LINES)):
        yield chunk


def arrived(stream: TextIO) -> Iterator[list[str]]:
    """The lines of a stream that have come since the last were taken: at least one, at most a thousand."""
    queue: SimpleQueue[str | None] = SimpleQueue()

    def listen() -> None:
        for line in stream:
            queue.put(strip_newline(line))
        queue.put(None)

    Thread(target=listen, daemon=True).start()
    line = queue.get()
    while line is not None:
        chunk = [line]
        try:
            while len(chunk) < LINES and (line := queue.get_nowait()) is not None:
                chunk.append(line)
        except Empty:
            line = ""
        yield chunk
        if line is not None:
            line = queue.get()
