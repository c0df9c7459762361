"""Sentence pairs in two languages, from files or the hub: train, dev and any number of test sets."""

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
from headwise.files import check_regular
from headwise.tasks import find_splits, formats, hub, splitting
from headwise.tasks.arrow_cache import Field, Read, Rows, Source, load_rows
from headwise.tasks.formats import Batch
from headwise.tasks.translation import aligned

MAX_DRAWN_PAIRS = 2000  # of dev or test, if they are drawn from train


@dataclass(frozen=True)
class Pairs:
    """Sentence pairs for training and evaluation.

    Args:
        splits: train, dev, and test sets by their names, with columns `source`, `target` and `row`, the index in the
            file.
        recipe: The origin of the pairs and how they were split.
        files: The files of each split; for line-aligned files, those of the source.
    """

    splits: Mapping[str, Dataset]
    recipe: str
    files: Mapping[str, tuple[Path, ...]]

    @property
    def tests(self) -> list[str]:
        """The names of the test sets."""
        return list_test_sets(self.splits)

    def location(self, split: str, index: int) -> str:
        """Return the file and line of a pair, for a message."""
        row = self.splits[split][index]
        return formats.format_location(self.files[split][row["file"]], row["line"])


def read_pairs(
    data: Path | str, source: str, target: str, *, seed: int = 0, cache: Path | None = None, test_only: bool = False
) -> Pairs:
    """Read sentence pairs.

    Pairs with an empty side are dropped from train, as the recipe states.

    Args:
        data: A directory with line-aligned files (`train.en` and `train.de`, dev or val, any number of tests; gzipped
            or not) or with CSV, TSV, JSONL or Parquet files of the same names; one such file, or the source of two
            line-aligned files; or `hub:NAME`. Tables have a column for each language, or a column `translation` with
            both.
        source, target: The languages: extensions of files, names of columns.
        seed: The seed of missing splits, which are drawn from train.
        cache: The cache directory.
        test_only: Use the data as test set, and draw nothing.

    Raises:
        UserError: The data does not exist, a language is missing, the numbers of lines differ, or a line of dev or test
            is empty.
    """
    sources = load_hub_sources(str(data), source, target) if is_hub(data) else find_sources(Path(data), source, target)
    fields = {name: Field(name, pa.string(), parse_text) for name in ("source", "target")}
    rows = {split: load_rows(split_source, fields, cache=cache) for split, split_source in sources.items()}
    if test_only:
        names = list_test_sets(rows) or list(rows)
        splits = {name: check_not_empty(rows[name]) for name in names}
        recipe = f"{source} → {target} from {Path(data).name}."
        return Pairs(splits, recipe, {name: sources[name].files for name in names})
    train_name = "train" if "train" in sources else "all"
    train, dropped = drop_empty(rows.pop(train_name))
    others = {split: check_not_empty(split_rows) for split, split_rows in rows.items()}
    splits, method = complete_splits({"train": train, **others}, seed)
    counts = ", ".join(f"{split} {len(pairs):,}" for split, pairs in splits.items())
    recipe = f"{source} → {target} from {Path(data).name}: {counts} pairs; {method}.{f' {dropped}.' if dropped else ''}"
    return Pairs(splits, recipe, {split: sources.get(split, sources[train_name]).files for split in splits})


def list_test_sets(splits: Mapping[str, Any]) -> list[str]:
    """Return the names of the test sets."""
    return [name for name in splits if name not in ("train", "dev")]


def is_hub(data: Path | str) -> bool:
    """Return whether the data is on the hub."""
    return str(data).startswith(hub.PREFIX)


def find_sources(data: Path, source: str, target: str) -> dict[str, Source]:
    """Find the source of each split on disk; a file without splits is "all"."""
    if data.exists() and not data.is_dir():
        check_regular(data)
        if find_splits.has_known_extension(data):
            return {"all": table_source((data,), source, target)}
        return {"all": aligned_source((data,), source, target)}
    if not data.is_dir():
        raise UserError(f"{data}: no such file or directory; to load from the Hugging Face hub, use hub:NAME")
    files = sorted(path for path in data.iterdir() if path.is_file())
    source_files = [path for path in files if aligned.language_of(path) == source]
    if source_files:
        groups = group_by_split(data, source_files)
        return {split: aligned_source(tuple(paths), source, target) for split, paths in groups.items()}
    tables = [path for path in files if find_splits.has_known_extension(path)]
    if tables:
        groups = group_by_split(data, tables)
        return {split: table_source(tuple(paths), source, target) for split, paths in groups.items()}
    names = ", ".join(path.name for path in files[:6]) or "no files"
    raise UserError(
        f"{data}: no files in {source} (train.{source}, train.{source}.gz, …) and no tables; the directory has {names}"
    )


def group_by_split(directory: Path, files: Sequence[Path]) -> dict[str, list[Path]]:
    """Group files by split: train, dev, and each test set by its own name; a single file is "all"."""
    groups: dict[str, list[Path]] = {}
    for path in files:
        split = find_splits.split_from_name(path.name)
        if split is not None:
            groups.setdefault(aligned.stem_of(path) if split == "test" else split, []).append(path)
    if not groups and len(files) == 1:
        return {"all": list(files)}
    if groups.keys() & {"train", "all"} or (groups and "dev" not in groups):
        return groups
    names = ", ".join(path.name for path in files)
    raise UserError(f"{directory}: no file for training; name files train, dev and test; the directory has {names}")


def aligned_source(files: tuple[Path, ...], source: str, target: str) -> Source:
    """Return line-aligned files as a source."""
    for path in files:
        if aligned.language_of(path) != source:
            raise UserError(
                f"{path}: expected the extension .{source} (or .{source}.gz), and a file with .{target} in the same "
                "directory"
            )
    translations = [aligned.find_translation(path, target) for path in files]
    state = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in translations]
    return Source(files, partial(aligned.read_aligned, language=target), f"aligned {state!r}")


def table_source(files: tuple[Path, ...], source: str, target: str) -> Source:
    """Return files with a column for each language as a source."""
    return Source(files, partial(read_table, formats.read_batches, source, target), f"pairs {source} {target}")


def read_table(
    read: Read, source: str, target: str, path: Path, columns: Sequence[str] | None = None
) -> Iterator[Batch]:
    """Read rows, with the columns of the languages as `source` and `target`."""
    for batch in read(path, None):
        yield Batch(batch.path, batch.rows, batch.lines, select_languages(batch, source, target))


def select_languages(batch: Batch, source: str, target: str) -> dict[str, Sequence[Any]]:
    """Return both languages of a batch, from their own columns or from the column `translation`.

    Raises:
        UserError: A language is missing.
    """
    pairs = batch.columns.get("translation")
    if pairs is not None and source not in batch.columns:
        for index, pair in enumerate(pairs):
            if not isinstance(pair, dict) or not {source, target} <= pair.keys():
                content = ", ".join(pair) if isinstance(pair, dict) else repr(pair)
                raise UserError(
                    f"{batch.location(index)}: column 'translation' must have {source} and {target}, but has {content}"
                )
        return {"source": [pair[source] for pair in pairs], "target": [pair[target] for pair in pairs]}
    for name in (source, target):
        if name not in batch.columns:
            raise formats.missing_column(batch.path, name, batch.columns)
    return {"source": batch.columns[source], "target": batch.columns[target]}


def load_hub_sources(data: str, source: str, target: str) -> dict[str, Source]:
    """Load a data set of the hub. Some, such as `wmt14`, have a configuration for each language pair."""
    split_names = {"validation": "dev", "valid": "dev", "val": "dev"}
    return {
        split_names.get(split, split): Source(
            hub_source.files,
            partial(read_table, hub_source.read, source, target),
            f"{hub_source.cache_key} {source} {target}",
        )
        for split, hub_source in hub.load_sources(data.removeprefix(hub.PREFIX)).items()
    }


def parse_text(value: Any) -> str:
    """Return a text, which may be empty."""
    if value is None:
        return ""
    if isinstance(value, bool | list | dict):
        raise ValueError(f"expected a text, got {str(value)[:40]!r}")
    return str(value)


def drop_empty(rows: Rows) -> tuple[Dataset, str]:
    """Drop pairs with an empty side; return the others, and a description of the dropped ones."""
    has_texts = find_complete(rows)
    empty = np.flatnonzero(~has_texts)
    if len(empty) == len(has_texts):
        raise UserError(f"{rows.origin}: all lines are empty")
    if not len(empty):
        return rows.data, ""
    pairs = f"{len(empty):,} pairs" if len(empty) > 1 else "1 pair"
    verb = "were" if len(empty) > 1 else "was"
    description = f"{pairs} with an empty side {verb} left out, the first at {rows.location(empty[0])}"
    return rows.data.select(np.flatnonzero(has_texts)), description


def check_not_empty(rows: Rows) -> Dataset:
    """Return the pairs of dev or test.

    Raises:
        UserError: A pair has an empty side, so that it cannot be evaluated.
    """
    empty = np.flatnonzero(~find_complete(rows))
    if len(empty):
        row = rows.data[int(empty[0])]
        side = "source" if not row["source"].strip() else "target"
        others = f", and a side of {len(empty) - 1:,} other pairs" if len(empty) > 1 else ""
        raise UserError(f"{rows.location(empty[0])}: the {side} is empty{others}")
    return rows.data


def find_complete(rows: Rows) -> Any:
    """Return whether each pair has two texts."""
    sides = [pc.greater(pc.utf8_length(pc.utf8_trim_whitespace(rows.column(name))), 0) for name in ("source", "target")]
    return pc.and_(*sides).to_numpy()


def complete_splits(splits: Mapping[str, Dataset], seed: int) -> tuple[dict[str, Dataset], str]:
    """Draw missing splits from train; return train, dev and the test sets, and a description."""
    tests = list_test_sets(splits)
    missing = [*([] if "dev" in splits else ["dev"]), *([] if tests else ["test"])]
    train = splits["train"]
    if not missing:
        return {name: splits[name] for name in ("train", "dev", *tests)}, "split as given"
    size = min(MAX_DRAWN_PAIRS, max(1, round(splitting.DEV_FRACTION * len(train))))
    if size * len(missing) >= len(train):
        raise UserError(f"{len(train)} pairs are too few to draw {' and '.join(missing)} from")
    indices = splitting.stratified_split(np.zeros(len(train)), dict.fromkeys(missing, size), seed)
    completed = {**splits, "train": train.select(indices["rest"])}
    completed |= {name: train.select(indices[name]) for name in missing}
    ordered = {name: completed[name] for name in ("train", "dev", *(tests or ["test"]))}
    return ordered, f"{' and '.join(missing)} drawn from train by seed {seed}"
