"""From files to examples, for benchmarks and the user's own data."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset

from headwise.errors import UserError
from headwise.tasks import conll, formats, labels, splitting
from headwise.tasks.arrow_cache import Field, Rows, Source, load_rows
from headwise.tasks.columns import Columns, choose_columns
from headwise.tasks.metrics.labels import column_array, label_values
from headwise.tasks.task import Examples, LabelType

STRING_LIST = pa.list_(pa.string())


def source_from_files(files: Sequence[Path], label_type: LabelType, delimiter: str | None = None) -> Source:
    """Return files as a source. For tokens, files without a known extension are read as CoNLL files."""
    if label_type == "tokens" and formats.file_extension(files[0]) not in formats.EXTENSIONS:
        return Source(tuple(files), conll.read_conll, "conll")
    if delimiter is None:
        return Source(tuple(files), formats.read_batches, "")
    delimiter = formats.parse_delimiter(delimiter)
    return Source(tuple(files), partial(formats.read_batches, delimiter=delimiter), f"delimiter {delimiter}")


def read_sources(
    sources: Mapping[str, Source],
    label_type: LabelType,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    separator: str = "|",
    label_names: Mapping[str, str] | None = None,
    skip_bad_rows: bool | None = None,
    cache: Path | None = None,
) -> dict[str, Rows]:
    """Read the rows of each split, with labels as names.

    Args:
        sources: The source of each split.
        label_type: The type of the labels.
        text, pair, label: The columns; by default they are chosen from the first split.
        separator: Separates the labels of a multi-label row.
        label_names: Class names for labels that files write differently, such as numbers.
        skip_bad_rows: Whether rows without a valid text or label are skipped; None if there is no such option.
        cache: The cache directory.
    """
    head = next(iter(sources.values())).head()
    columns = choose_columns(head, text=text, pair=pair, label=label)
    fields = build_fields(columns, label_type, separator, label_names or {})
    return {
        split: load_rows(source, fields, cache=cache, skip_bad_rows=skip_bad_rows) for split, source in sources.items()
    }


def build_fields(
    columns: Columns, label_type: LabelType, separator: str, label_names: Mapping[str, str]
) -> dict[str, Field]:
    """Return the fields to read."""
    label = str(columns.label)
    if label_type == "tokens":
        return {
            "words": Field(columns.text, STRING_LIST, labels.parse_words),
            "label": Field(label, STRING_LIST, labels.parse_tags),
        }
    fields = {"text": Field(columns.text, pa.string(), labels.parse_text)}
    if columns.pair is not None:
        fields["pair"] = Field(columns.pair, pa.string(), labels.parse_text)
    if label_type == "multi-label":
        return {**fields, "label": Field(label, STRING_LIST, labels.label_list_parser(separator), separator)}
    if label_type == "regression":
        return {**fields, "label": Field(label, pa.float64(), labels.parse_rating)}
    cache_key = repr(sorted(label_names.items()))
    return {**fields, "label": Field(label, pa.string(), labels.label_parser(label_names), cache_key)}


def build_examples(
    rows: Mapping[str, Rows],
    *,
    seed: int,
    origin: str,
    class_names: Sequence[str] | None = None,
    exclusion_reason: str = "",
    dev_fraction: float = splitting.DEV_FRACTION,
    split_sizes: Mapping[str, int] | None = None,
) -> Examples:
    """Encode labels as class indices, and draw missing splits.

    Args:
        rows: The rows of train, dev and test, or of "all".
        seed: The seed of the splits.
        origin: The origin of the rows, for the recipe.
        class_names: The classes, in the order of their indices; by default those of train.
        exclusion_reason: Why rows with the label "-" are excluded; if empty, there is no such label.
        dev_fraction: The fraction of train that becomes dev if there is no dev split.
        split_sizes: The sizes of splits that are drawn from "all"; if it has fewer rows, it is split 80/10/10.
    """
    train_rows = rows.get("train", rows.get("all"))
    if train_rows is None:
        raise UserError(f"{next(iter(rows.values())).origin}: there is no train split among {', '.join(rows)}")
    is_regression = pa.types.is_floating(train_rows.column("label").type)
    classes = () if is_regression else tuple(class_names or labels.collect_classes(train_rows))
    encoded = {
        split: part.data
        if is_regression
        else labels.encode_labels(split, part, classes, drop_excluded=bool(exclusion_reason))
        for split, part in rows.items()
    }
    splits, description = complete_splits(encoded, seed, dev_fraction, split_sizes or {}, origin)
    splits = {split: part.remove_columns(["line", "file"]) for split, part in splits.items()}
    num_excluded = sum(len(part.data) for part in rows.values()) - sum(map(len, encoded.values()))
    duplicates = describe_overlap(splits)
    num_skipped = sum(part.skipped.count for part in rows.values())
    sentences = [
        origin,
        description,
        f"{num_excluded:,} rows left out: {exclusion_reason}" if num_excluded else "",
        f"{num_skipped:,} rows without a valid text or label skipped" if num_skipped else "",
        duplicates,
    ]
    recipe = ". ".join(sentence for sentence in sentences if sentence) + "."
    return Examples(splits, classes, recipe, duplicates=duplicates)


def complete_splits(
    splits: Mapping[str, Dataset], seed: int, dev_fraction: float, split_sizes: Mapping[str, int], origin: str
) -> tuple[dict[str, Dataset], str]:
    """Draw missing splits; return train, dev and test, and a description."""
    completed, method = dict(splits), "split as given"
    how = ", stratified" if is_stratified(next(iter(splits.values()))) else ""
    if "all" in splits:
        num_rows = len(splits["all"])
        if split_sizes and num_rows >= sum(split_sizes.values()):
            completed = draw_splits(splits["all"], split_sizes, seed, origin)
            method = f"drawn from {num_rows:,} rows{how}, seed {seed}"
        else:
            sizes = {
                "dev": fraction_size(splitting.DEV_FRACTION, num_rows),
                "test": fraction_size(splitting.TEST_FRACTION, num_rows),
            }
            completed = draw_splits(splits["all"], sizes, seed, origin)
            method = f"split 80/10/10{how}, seed {seed}"
    elif "dev" not in splits:
        size = fraction_size(dev_fraction, len(splits["train"]))
        completed |= draw_splits(splits["train"], {"dev": size}, seed, origin)
        method = f"dev is {100 * dev_fraction:g}% of train{how}, seed {seed}"
    names = [split for split in ("train", "dev", "test") if split in completed]
    counts = "/".join(f"{len(completed[split]):,}" for split in names)
    if "test" not in names:
        method += ", no test split"
    return {split: completed[split] for split in names}, f"{'/'.join(names)} {counts}: {method}"


def fraction_size(fraction: float, num_rows: int) -> int:
    """Return the size of a fraction, at least 1."""
    return max(1, round(fraction * num_rows))


def draw_splits(rows: Dataset, sizes: Mapping[str, int], seed: int, origin: str) -> dict[str, Dataset]:
    """Draw splits of these sizes. The remaining rows become train, unless train has a size."""
    strata, train_indices = stratify(rows, seed)
    try:
        indices = splitting.stratified_split(strata, sizes, seed, excluded=train_indices)
        indices = {"train": indices.pop("rest"), **indices}
        if not len(indices["train"]):
            raise ValueError("there are no rows for train")
    except ValueError:
        raise UserError(f"{origin}: {len(rows)} rows are too few to split; provide train, dev and test files") from None
    return {split: rows.select(chosen, keep_in_memory=True) for split, chosen in indices.items()}


def is_stratified(rows: Dataset) -> bool:
    """Return whether splits have the same shares of labels: those of rows with one class or rating."""
    return "words" not in rows.column_names and column_array(rows.select([0]), "label").ndim == 1


def stratify(rows: Dataset, seed: int) -> tuple[Any, Any]:
    """Return strata, and the indices of rows that must stay in train so that it contains every class."""
    if "words" in rows.column_names:
        tags = label_values(rows, "label")
        has_tag = np.zeros((len(tags), 1 + max(max(row) for row in tags)), bool)
        has_tag[np.repeat(np.arange(len(tags)), [len(row) for row in tags]), np.concatenate(tags)] = True
        return np.zeros(len(tags)), splitting.sample_each_class(has_tag, seed)
    label_array = column_array(rows, "label")
    if label_array.ndim == 2:
        return np.zeros(len(label_array)), splitting.sample_each_class(label_array, seed)
    return label_array, None if label_array.dtype.kind == "f" else splitting.sample_each_class(label_array, seed)


def describe_overlap(splits: Mapping[str, Dataset]) -> str:
    """Describe how many texts of test and dev are also in train, and of test in dev; empty if there are none."""
    hashes = {split: hash_texts(rows) for split, rows in splits.items()}
    parts = []
    for split, other in (("test", "train"), ("dev", "train"), ("test", "dev")):
        if split in hashes and other in hashes:
            count = int(np.isin(hashes[split], hashes[other]).sum())
            parts += [f"{count:,} of {split}'s texts are in {other} too"] if count else []
    return ", ".join(parts)


def count_overlap(rows: Dataset, others: Dataset) -> int:
    """Return the number of rows whose texts are also in other rows."""
    return int(np.isin(hash_texts(rows), hash_texts(others)).sum())


def hash_texts(rows: Dataset) -> Any:
    """Return a hash of each row's texts, reading one batch at a time."""
    names = [name for name in ("text", "pair") if name in rows.column_names] or ["words"]
    to_hashable: Callable[[Any], Any] = tuple if names == ["words"] else str
    hashes = []
    for batch in rows.select_columns(names).iter(formats.BATCH_ROWS):
        texts = zip(*(map(to_hashable, batch[name]) for name in names), strict=True)
        hashes.append(np.fromiter(map(hash, texts), np.int64))
    return np.concatenate(hashes)
