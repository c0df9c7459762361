"""Pairs of sentences in two languages, from files or the hub: train, dev and any number of test sets."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from headwise.errors import UserError
from headwise.tasks import find_splits, formats, hub, splitting
from headwise.tasks.arrow_cache import Field, Rows, Source, store
from headwise.tasks.formats import Batch
from headwise.tasks.translation import aligned

#: The most pairs that are drawn for dev or test where there are none.
DRAWN = 2000


@dataclass(frozen=True)
class Pairs:
    """Pairs to learn from and to be judged by.

    Args:
        splits: train, dev, and test sets by their names; columns `source`, `target` and `row`, the number in the file.
        recipe: where they come from and how they were split.
        files: those of each split; of two line-aligned ones the source's.
    """

    splits: Mapping[str, Dataset]
    recipe: str
    files: Mapping[str, tuple[Path, ...]]

    @property
    def tests(self) -> list[str]:
        return [name for name in self.splits if name not in ("train", "dev")]

    def place(self, split: str, index: int) -> str:
        """File and line of a pair, for messages."""
        row = self.splits[split][index]
        return formats.place(self.files[split][row["file"]], row["line"])


def read_pairs(
    data: Path | str, source: str, target: str, *, seed: int = 0, cache: Path | None = None, test_only: bool = False
) -> Pairs:
    """Pairs in two languages.

    Args:
        data: a folder with line-aligned files (`train.en` and `train.de`, dev or val, any number of tests; gzipped or
            not) or with CSV, TSV, JSONL or Parquet files named so; one such file, or the source's of two line-aligned
            ones; or `hub:NAME`. Tables have a column for each language, or one, `translation`, that holds both.
        source, target: the languages: endings of files, names of columns.
        seed: of splits that are drawn where there are none.
        cache: the folder for what was read.
        test_only: take what is there as a test set, and draw nothing.

    Raises:
        UserError: the data is not there or not sound: other languages, different numbers of lines, an empty line in dev
            or test. In train, pairs with an empty side are left out, which the recipe tells.
    """
    found = from_hub(str(data), source, target) if is_hub(data) else from_disk(Path(data), source, target)
    texts = {name: Field(name, pa.string(), text) for name in ("source", "target")}
    rows = {split: store(one, texts, cache=cache) for split, one in found.items()}
    if test_only:
        kept = {name: full(part) for name, part in rows.items() if name not in ("train", "dev")} or {
            name: full(part) for name, part in rows.items()
        }
        return Pairs(kept, f"{source} → {target} from {Path(data).name}.", {name: found[name].files for name in kept})
    learnt = "train" if "train" in found else "all"
    train, empty = without_empty(rows.pop(learnt))
    others = {split: full(part) for split, part in rows.items()}
    splits, how = divided({"train": train, **others}, seed)
    counts = ", ".join(f"{split} {len(part):,}" for split, part in splits.items())
    left_out = f" {empty}." if empty else ""
    told = f"{source} → {target} from {Path(data).name}: {counts} pairs; {how}.{left_out}"
    return Pairs(splits, told, {split: found.get(split, found[learnt]).files for split in splits})


def is_hub(data: Path | str) -> bool:
    return str(data).startswith(hub.PREFIX)


def from_disk(data: Path, source: str, target: str) -> dict[str, Source]:
    if data.is_file():
        if formats.file_extension(data) in formats.EXTENSIONS:
            return {"all": table((data,), source, target)}
        return {"all": lines_of((data,), source, target)}
    if not data.is_dir():
        raise UserError(f"{data}: no such file or folder; a data set of the Hugging Face hub is given as hub:NAME")
    files = sorted(path for path in data.iterdir() if path.is_file())
    own = [path for path in files if aligned.language_of(path) == source]
    if own:
        return {split: lines_of(tuple(paths), source, target) for split, paths in by_split(data, own).items()}
    tables = [path for path in files if find_splits.known(path)]
    if tables:
        return {split: table(tuple(paths), source, target) for split, paths in by_split(data, tables).items()}
    there = ", ".join(path.name for path in files[:6]) or "nothing"
    raise UserError(
        f"{data}: no files in {source} (train.{source}, train.{source}.gz, …), and no tables; there: {there}"
    )


def by_split(folder: Path, files: Sequence[Path]) -> dict[str, list[Path]]:
    """Files by split: train, dev, and each test set by its own name; a single file as "all"."""
    found: dict[str, list[Path]] = {}
    for path in files:
        split = find_splits.split_in(path.name)
        name = aligned.stem_of(path)
        if split is not None:
            found.setdefault(name if split == "test" else split, []).append(path)
    if not found and len(files) == 1:
        return {"all": list(files)}
    if found.keys() & {"train", "all"} or (found and "dev" not in found):
        return found
    names = ", ".join(path.name for path in files)
    raise UserError(f"{folder}: which file is to be learnt from? Call files train, dev and test; there: {names}")


def lines_of(files: tuple[Path, ...], source: str, target: str) -> Source:
    """Line-aligned files."""
    for path in files:
        if aligned.language_of(path) != source:
            raise UserError(
                f"{path}: a file in {source} ends with .{source} (or .{source}.gz), beside it one in {target}"
            )
    others = [aligned.beside(path, target) for path in files]
    way = repr([(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in others])
    return Source(files, partial(aligned.batches, language=target), f"aligned {way}")


def table(files: tuple[Path, ...], source: str, target: str) -> Source:
    """Files with a column for each language."""
    return Source(files, partial(columns, formats.read_batches, source, target), f"pairs {source} {target}")


def columns(read: Any, source: str, target: str, path: Path, wanted: Sequence[str] | None = None) -> Iterator[Batch]:
    """Rows with the languages' columns as `source` and `target`."""
    for batch in read(path):
        yield Batch(batch.path, batch.rows, batch.lines, in_two(batch, source, target))


def in_two(batch: Batch, source: str, target: str) -> dict[str, Sequence[Any]]:
    """Both languages of a batch: of their own columns, or of one, `translation`."""
    both = batch.columns.get("translation")
    if both is not None and source not in batch.columns:
        for index, pair in enumerate(both):
            if not isinstance(pair, dict) or not {source, target} <= pair.keys():
                there = ", ".join(pair) if isinstance(pair, dict) else repr(pair)
                raise UserError(
                    f"{batch.place(index)}: column 'translation' has no {source} and {target}; there: {there}"
                )
        return {"source": [pair[source] for pair in both], "target": [pair[target] for pair in both]}
    for name in (source, target):
        if name not in batch.columns:
            raise formats.missing_column(batch.path, name, batch.columns)
    return {"source": batch.columns[source], "target": batch.columns[target]}


def from_hub(data: str, source: str, target: str) -> dict[str, Source]:
    """A data set of the hub; `wmt14` and others like it have a configuration for each pair of languages."""
    found = hub.sources(data.removeprefix(hub.PREFIX))
    names = {"validation": "dev", "valid": "dev", "val": "dev"}
    return {
        names.get(split, split): Source(
            one.files, partial(columns, one.read, source, target), f"{one.way} {source} {target}"
        )
        for split, one in found.items()
    }


def text(value: Any) -> str:
    """A text, which may be empty."""
    if value is None:
        return ""
    if isinstance(value, bool | list | dict):
        raise ValueError(f"expected a text, got {str(value)[:40]!r}")
    return str(value)


def without_empty(rows: Rows) -> tuple[Dataset, str]:
    """The pairs with two texts, and in words how many have not."""
    real = texts_there(rows)
    lost = np.flatnonzero(~real)
    if len(lost) == len(real):
        raise UserError(f"{rows.origin}: all lines are empty")
    if not len(lost):
        return rows.data, ""
    told = f"{len(lost):,} pairs with an empty side were left out, the first at {rows.place(lost[0])}"
    return rows.data.select(np.flatnonzero(real)), told


def full(rows: Rows) -> Dataset:
    """The pairs, none of which may have an empty side: it would be judged by nothing.

    Raises:
        UserError: one has.
    """
    lost = np.flatnonzero(~texts_there(rows))
    if len(lost):
        row = rows.data[int(lost[0])]
        side = "source" if not row["source"].strip() else "target"
        raise UserError(f"{rows.place(lost[0])}: the {side} is empty")
    return rows.data


def texts_there(rows: Rows) -> Any:
    parts = [pc.greater(pc.utf8_length(pc.utf8_trim_whitespace(rows.column(name))), 0) for name in ("source", "target")]
    return pc.and_(*parts).to_numpy()


def divided(splits: Mapping[str, Dataset], seed: int) -> tuple[dict[str, Dataset], str]:
    """Train, dev and tests; what is missing is drawn from train."""
    tests = [name for name in splits if name not in ("train", "dev")]
    missing = [*([] if "dev" in splits else ["dev"]), *([] if tests else ["test"])]
    train = splits["train"]
    if not missing:
        return {name: splits[name] for name in ("train", "dev", *tests)}, "split as given"
    size = min(DRAWN, max(1, round(splitting.DEV * len(train))))
    if size * len(missing) >= len(train):
        raise UserError(f"{len(train)} pairs are too few to draw {' and '.join(missing)} from")
    drawn = splitting.split(np.zeros(len(train)), dict.fromkeys(missing, size), seed)
    together = dict(splits)
    together["train"] = train.select(drawn["rest"])
    for name in missing:
        together[name] = train.select(drawn[name])
    order = {name: together[name] for name in ("train", "dev", *(tests or ["test"]))}
    return order, f"{' and '.join(missing)} drawn from train by seed {seed}"
