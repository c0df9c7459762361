"""News of a click log. Each news item is a row, whose index replaces its id in impressions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from datasets import Dataset

from headwise.errors import UserError
from headwise.files import LineReader
from headwise.tasks.arrow_cache import Field, Rows, Source, fingerprint, load_rows
from headwise.tasks.formats import Batch, NumberedRows, batch_rows

COLUMNS = ("id", "category", "subcategory", "title", "abstract", "url", "title_entities", "abstract_entities")
FIELDS = {name: Field(name, pa.string(), str) for name in ("id", "category", "subcategory", "title", "abstract")}


@dataclass(frozen=True)
class News:
    """All news of a log.

    Args:
        data: The columns id, category, subcategory, title and abstract, memory-mapped.
        indices: The row of each id.
        fingerprint: A hash that changes if a file changes.
    """

    data: Dataset
    indices: Mapping[str, int]
    fingerprint: str

    def __len__(self) -> int:
        return len(self.data)


def read_news(files: Sequence[Path], *, cache: Path | None = None) -> News:
    """Read the news of several files; equal news of different files are merged.

    Raises:
        UserError: A line is invalid, an id is repeated in a file, or it has different titles in two files.
    """
    source = Source(tuple(files), read_news_batches, "MIND's news")
    rows = load_rows(source, FIELDS, cache=cache)
    first_rows = find_first_rows(rows)
    data = rows.data.select(list(first_rows.values())) if len(first_rows) < len(rows.data) else rows.data
    indices = {news_id: index for index, news_id in enumerate(first_rows)}
    return News(data.select_columns(list(FIELDS)), indices, fingerprint(source, FIELDS))


def read_news_batches(path: Path, columns: Sequence[str] | None = None) -> Iterator[Batch]:
    """Read a news file."""
    return read_headerless_tsv(path, COLUMNS)


def find_first_rows(rows: Rows) -> dict[str, int]:
    """Return the first row of each id.

    Raises:
        UserError: An id is repeated in a file, or it has different titles in two files.
    """
    first_rows: dict[str, int] = {}
    last_seen: dict[str, tuple[int, int]] = {}  # the last file of each id, and the hash of its title
    columns = [rows.column(name).chunks for name in ("id", "title", "file")]
    index = 0
    for ids, titles, files in zip(*columns, strict=True):
        for news_id, title, file in zip(ids.to_pylist(), titles.to_pylist(), files.to_pylist(), strict=True):
            previous = last_seen.get(news_id)
            if previous is not None and (previous[0] == file or previous[1] != hash(title)):
                location = rows.location(first_rows[news_id])
                reason = f"is repeated, see {location}" if previous[0] == file else f"has another title in {location}"
                raise UserError(f"{rows.location(index)}: news {news_id!r} {reason}")
            first_rows.setdefault(news_id, index)
            last_seen[news_id] = (file, hash(title))
            index += 1
    return first_rows


def read_headerless_tsv(path: Path, columns: Sequence[str]) -> Iterator[Batch]:
    """Read a TSV file without a header.

    Raises:
        UserError: The number of fields is wrong.
    """
    return batch_rows(path, lambda lines: (columns, iterate_fields(lines, columns)))


def iterate_fields(lines: LineReader, columns: Sequence[str]) -> NumberedRows:
    """Iterate over the fields of each line."""
    for line in lines:
        fields = line.rstrip("\r\n").split("\t")
        if len(fields) != len(columns):
            expected = f"{len(columns)} fields ({', '.join(columns)})"
            raise UserError(f"{lines.path}, line {lines.number}: expected {expected}, got {len(fields)}")
        yield lines.number, fields
