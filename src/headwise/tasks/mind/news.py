"""The news of a click log: one row each, whose number stands for its id from then on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from datasets import Dataset

from headwise.errors import UserError
from headwise.tasks.arrow_cache import Field, Rows, Source, fingerprint, store
from headwise.tasks.formats import Batch
from headwise.tasks.mind.layout import NEWS, rows

FIELDS = {name: Field(name, pa.string(), str) for name in ("id", "category", "subcategory", "title", "abstract")}


@dataclass(frozen=True)
class News:
    """All news of a log.

    Args:
        data: id, category, subcategory, title and abstract, memory-mapped.
        numbers: the row of each id.
        fingerprint: changes when a file does.
    """

    data: Dataset
    numbers: Mapping[str, int]
    fingerprint: str

    def __len__(self) -> int:
        return len(self.data)


def read(files: Sequence[Path], *, cache: Path | None = None) -> News:
    """The news of several files; those that are in more than one of them are one news.

    Raises:
        UserError: a line with another number of fields; an id twice in a file, or with different titles in two.
    """
    source = Source(tuple(files), batches, "MIND's news")
    stored = store(source, FIELDS, cache=cache)
    first = firsts(stored)
    data = stored.data.select(list(first.values())) if len(first) < len(stored.data) else stored.data
    numbers = {name: number for number, name in enumerate(first)}
    return News(data.select_columns(list(FIELDS)), numbers, fingerprint(source, FIELDS))


def batches(path: Path, columns: Sequence[str] | None = None) -> Iterator[Batch]:
    return rows(path, NEWS)


def firsts(stored: Rows) -> dict[str, int]:
    """Where each id stands first."""
    first: dict[str, int] = {}
    seen: dict[str, tuple[int, int]] = {}  # of each id the last file that it is in, and the hash of its title
    columns = [stored.column(name).chunks for name in ("id", "title", "file")]
    index = 0
    for ids, titles, files in zip(*columns, strict=True):
        for name, title, file in zip(ids.to_pylist(), titles.to_pylist(), files.to_pylist(), strict=True):
            known = seen.get(name)
            if known is not None and (known[0] == file or known[1] != hash(title)):
                where = stored.place(first[name])
                fault = f"stands in {where} too" if known[0] == file else f"has another title in {where}"
                raise UserError(f"{stored.place(index)}: news {name!r} {fault}")
            first.setdefault(name, index)
            seen[name] = (file, hash(title))
            index += 1
    return first
