"""From files to examples: what every benchmark and the user's own data go through."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset

from headwise.errors import UserError
from headwise.tasks import conll, formats, labels, splitting
from headwise.tasks.arrow_cache import Field, Rows, Source, store
from headwise.tasks.columns import Columns, choose_columns
from headwise.tasks.metrics.rows import column_array, label_values
from headwise.tasks.task import Examples, LabelType

MANY = pa.list_(pa.string())


def source_from_files(files: Sequence[Path], label_type: LabelType) -> Source:
    """Files as a source: for tokens, those without a known ending are CoNLL-style."""
    if label_type == "tokens" and formats.file_extension(files[0]) not in formats.EXTENSIONS:
        return Source(tuple(files), conll.batches, "conll")
    return Source(tuple(files), formats.read_batches, "")


def read_sources(
    sources: Mapping[str, Source],
    label_type: LabelType,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    separator: str = "|",
    called: Mapping[str, str] | None = None,
    cache: Path | None = None,
) -> dict[str, Rows]:
    """The rows of each split, labels as names.

    Args:
        sources: by split.
        label_type: what a label is.
        text, pair, label: the columns; found in the first split when not given.
        separator: between several labels of a text.
        called: what classes are called, where files have numbers or other words for them.
        cache: the folder for what was read.
    """
    first = next(iter(sources.values())).head()
    fields = fields_of(choose_columns(first, text=text, pair=pair, label=label), label_type, separator, called or {})
    return {split: store(source, fields, cache=cache) for split, source in sources.items()}


def fields_of(columns: Columns, label_type: LabelType, separator: str, called: Mapping[str, str]) -> dict[str, Field]:
    label = str(columns.label)
    if label_type == "tokens":
        return {"words": Field(columns.text, MANY, labels.words), "label": Field(label, MANY, labels.tags)}
    fields = {"text": Field(columns.text, pa.string(), labels.text)}
    if columns.pair is not None:
        fields["pair"] = Field(columns.pair, pa.string(), labels.text)
    if label_type == "multi-label":
        return {**fields, "label": Field(label, MANY, labels.names(separator), separator)}
    if label_type == "regression":
        return {**fields, "label": Field(label, pa.float64(), labels.rating)}
    return {**fields, "label": Field(label, pa.string(), labels.renamed(called), repr(sorted(called.items())))}


def examples(
    rows: Mapping[str, Rows],
    *,
    seed: int,
    origin: str,
    names: Sequence[str] | None = None,
    left_out: str = "",
    dev: float = splitting.DEV,
    drawn: Mapping[str, int] | None = None,
) -> Examples:
    """Rows as examples: labels as numbers, and the splits that are missing drawn.

    Args:
        rows: train, dev and test, as far as there are; or everything as "all".
        seed: of what is drawn.
        origin: where the rows come from, for the recipe.
        names: the classes in the order of their numbers; those of train when not given.
        left_out: which rows have the class "-" and are left out; none when not given.
        dev: the share that is drawn from train where there is no dev.
        drawn: how many rows of "all" each split gets, if there are so many; else they are split 80/10/10.
    """
    base = rows.get("train", rows.get("all"))
    if base is None:
        raise UserError(f"{next(iter(rows.values())).origin}: there is no train split among {', '.join(rows)}")
    rated = pa.types.is_floating(base.column("label").type)
    found = () if rated else tuple(names or labels.classes(base))
    whole = {
        split: part.data if rated else labels.encode_labels(split, part, found, leave_out=bool(left_out))
        for split, part in rows.items()
    }
    splits, how = divided(whole, seed, dev, drawn or {}, origin)
    kept = {split: part.remove_columns(["line", "file"]) for split, part in splits.items()}
    lost = sum(len(part.data) for part in rows.values()) - sum(map(len, whole.values()))
    told = [
        origin,
        how,
        f"{lost:,} rows left out: {left_out}" if lost else "",
        shared(kept),
    ]
    return Examples(kept, found, ". ".join(part for part in told if part) + ".")


def divided(
    splits: Mapping[str, Dataset], seed: int, dev: float, drawn: Mapping[str, int], origin: str
) -> tuple[dict[str, Dataset], str]:
    """Train, dev and test, and in words how they came about."""
    done, how = dict(splits), "split as given"
    if "all" in splits:
        count = len(splits["all"])
        if drawn and count >= sum(drawn.values()):
            done = draw(splits["all"], drawn, seed, origin)
            how = f"drawn from {count:,} rows, stratified, seed {seed}"
        else:
            sizes = {"dev": share(splitting.DEV, count), "test": share(splitting.TEST, count)}
            done = draw(splits["all"], sizes, seed, origin)
            how = f"split 80/10/10, stratified, seed {seed}"
    elif "dev" not in splits:
        size = share(dev, len(splits["train"]))
        done |= draw(splits["train"], {"dev": size}, seed, origin)
        how = f"dev is {100 * dev:g}% of train, stratified, seed {seed}"
    there = [split for split in ("train", "dev", "test") if split in done]
    counts = "/".join(f"{len(done[split]):,}" for split in there)
    if "test" not in there:
        how += ", no test split"
    return {split: done[split] for split in there}, f"{'/'.join(there)} {counts}: {how}"


def share(part: float, count: int) -> int:
    return max(1, round(part * count))


def draw(rows: Dataset, sizes: Mapping[str, int], seed: int, origin: str) -> dict[str, Dataset]:
    """Splits of these sizes; what is left is train, unless train has a size too."""
    strata, kept = strata_of(rows, seed)
    try:
        drawn = splitting.split(strata, sizes, seed, kept=kept)
    except ValueError:
        raise UserError(f"{origin}: {len(rows)} rows are too few to split; give train, dev and test files") from None
    rest = drawn.pop("rest")
    return {split: rows.select(indices, keep_in_memory=True) for split, indices in {"train": rest, **drawn}.items()}


def strata_of(rows: Dataset, seed: int) -> tuple[Any, Any]:
    """What is spread alike over splits, and the rows that train must keep, so that it knows every class."""
    if "words" in rows.column_names:
        tags = label_values(rows, "label")
        table = np.zeros((len(tags), 1 + max(max(row) for row in tags)), bool)
        table[np.repeat(np.arange(len(tags)), [len(row) for row in tags]), np.concatenate(tags)] = True
        return np.zeros(len(tags)), splitting.one_of_each(table, seed)
    found = column_array(rows, "label")
    if found.ndim == 2:
        return np.zeros(len(found)), splitting.one_of_each(found, seed)
    return found, None if found.dtype.kind == "f" else splitting.one_of_each(found, seed)


def shared(splits: Mapping[str, Dataset]) -> str:
    """How many texts of what judges in the end, test or else dev, are in train too."""
    judge = next((name for name in ("test", "dev") if name in splits), None)
    if judge is None:
        return ""
    count = int(np.isin(hashes(splits[judge]), hashes(splits["train"])).sum())
    return f"{count:,} of {judge}'s texts are in train too" if count else ""


def hashes(rows: Dataset) -> Any:
    """A number for each row's texts, a batch in memory at a time."""
    names = [name for name in ("text", "pair") if name in rows.column_names] or ["words"]
    read_as: Callable[[Any], Any] = tuple if names == ["words"] else str
    found = []
    for part in rows.select_columns(names).iter(formats.BATCH_ROWS):
        texts = zip(*(map(read_as, part[name]) for name in names), strict=True)
        found.append(np.fromiter(map(hash, texts), np.int64))
    return np.concatenate(found)
