"""Loading of the user's own data."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from headwise.errors import UserError
from headwise.tasks import hub
from headwise.tasks.arrow_cache import Source
from headwise.tasks.build_examples import build_examples, read_sources, source_from_files
from headwise.tasks.find_splits import find_splits, split_from_name
from headwise.tasks.load_ranking import load_ranking, to_paths
from headwise.tasks.task import Examples, LabelType, Task

Data = Path | str | Sequence[Path | str]

#: The types of labels that files have.
LABEL_TYPES = ("classification", "multi-label", "regression", "tokens", "ranking")


def load_files(
    data: Data | None = None,
    *,
    train: Data | None = None,
    dev: Data | None = None,
    test: Data | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    label_type: LabelType = "classification",
    separator: str = "|",
    delimiter: str | None = None,
    skip_bad_rows: bool = False,
    seed: int = 0,
    cache: Path | None = None,
) -> tuple[Task, Examples]:
    """Load a task from CSV, TSV, JSON Lines, Parquet, Excel or, for tokens, CoNLL files, gzipped or not.

    Args:
        data: One file, which is split 80/10/10; several files; a directory with files named train, dev (valid,
            validation) and test; or `hub:owner/name`, a data set of the Hugging Face hub.
        train, dev, test: The files of each split, instead of `data`.
        text, pair, label: The columns; by default they are chosen by their names.
        label_type: The type of the labels. For "ranking", `data` is a directory that `load_ranking` loads.
        separator: Separates the labels of a multi-label row, unless they are a list.
        delimiter: Separates the columns of CSV and TSV files; by default it is recognized.
        skip_bad_rows: Skip rows without a valid text or label, with a warning; by default they are an error.
        seed: The seed of random splits.
        cache: The cache directory; by default a subdirectory of the cache of Hugging Face's datasets.

    Raises:
        UserError: The data does not exist or is invalid.
    """
    if label_type not in LABEL_TYPES:
        raise UserError(f"label_type={label_type!r}: expected one of {', '.join(LABEL_TYPES)}")
    if label_type == "ranking":
        if train is not None or dev is not None or test is not None or not isinstance(data, Path | str):
            raise UserError("a ranking needs one directory as data (--data), or headwise.tasks.load_ranking")
        return load_ranking(data, delimiter=delimiter, skip_bad_rows=skip_bad_rows, seed=seed)
    sources = find_sources(data, {"train": train, "dev": dev, "test": test}, label_type, delimiter)
    rows = read_sources(
        sources,
        label_type,
        text=text,
        pair=pair,
        label=label,
        separator=separator,
        skip_bad_rows=skip_bad_rows,
        cache=cache,
    )
    files = [file for source in sources.values() for file in source.files]
    origin = str(data) if is_hub(data) else ", ".join(file.name for file in files)
    examples = build_examples(rows, seed=seed, origin=origin)
    name = Path(data if isinstance(data, Path | str) else files[0]).name.split(".")[0]
    has_pair = "pair" in examples.splits["train"].column_names
    return Task(name=name, label_type=label_type, about="own data", source=origin, pair=has_pair), examples


def find_sources(
    data: Data | None, split_files: Mapping[str, Data | None], label_type: LabelType, delimiter: str | None = None
) -> dict[str, Source]:
    """Find the source of each split.

    Args:
        data: The data of all splits.
        split_files: The files of each split, instead of `data`.
        label_type: The type of the labels.
        delimiter: The delimiter of CSV and TSV files.
    """
    split_paths = {split: to_paths(files) for split, files in split_files.items() if files is not None}
    if (data is None) == (not split_paths):
        raise UserError("expected either data (--data) or the files of splits (--train, --dev, --test)")
    if data is None:
        if "train" not in split_paths:
            raise UserError(f"--train is required with {' and '.join(f'--{split}' for split in split_paths)}")
        return {split: source_from_files(paths, label_type, delimiter) for split, paths in split_paths.items()}
    if is_hub(data):
        return select_splits(hub.load_sources(str(data).removeprefix(hub.PREFIX)))
    is_readable = (lambda path: not path.name.startswith(".")) if label_type == "tokens" else None
    files = find_splits(data, is_readable)
    return {split: source_from_files(paths, label_type, delimiter) for split, paths in files.items()}


def is_hub(data: Data | None) -> bool:
    """Return whether the data is on the hub."""
    return isinstance(data, str) and data.startswith(hub.PREFIX)


def select_splits(sources: Mapping[str, Source]) -> dict[str, Source]:
    """Return the splits of a data set as train, dev and test; if it has none of them, its first split as "all"."""
    splits = {split: source for name, source in sources.items() if (split := split_from_name(name))}
    return splits or {"all": next(iter(sources.values()))}
