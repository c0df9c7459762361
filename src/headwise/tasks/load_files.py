"""The user's own data as a task."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from headwise.errors import UserError
from headwise.tasks import find_splits, hub
from headwise.tasks.arrow_cache import Source
from headwise.tasks.build_examples import examples, read_sources, source_from_files
from headwise.tasks.task import Examples, LabelType, Task

Data = Path | str | Sequence[Path | str]


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
    seed: int = 0,
    cache: Path | None = None,
) -> tuple[Task, Examples]:
    """A task made of the user's files: CSV, TSV, JSON Lines or Parquet, each gzipped or not; CoNLL-style for tokens.

    Args:
        data: one file, which is split 80/10/10; several; a folder with files named train, dev (valid, validation) and
            test; or `hub:owner/name`, a data set of the Hugging Face hub.
        train, dev, test: the files of each split, instead of `data`.
        text, pair, label: the columns; found by their names when not given.
        label_type: what a label is.
        separator: between several labels of a text, in files where they are not a list.
        seed: of the splits that are drawn.
        cache: the folder for what was read; by default one beside Hugging Face's data sets.

    Raises:
        UserError: anything wrong with the files, with file, line or column and what was expected.
    """
    sources = found(data, {"train": train, "dev": dev, "test": test}, label_type)
    if label_type == "ranking":
        raise UserError("label_type ranking is for the named tasks; candidates of your own are pairs with label 0 or 1")
    rows = read_sources(sources, label_type, text=text, pair=pair, label=label, separator=separator, cache=cache)
    files = [file for source in sources.values() for file in source.files]
    origin = str(data) if is_hub(data) else ", ".join(file.name for file in files)
    made = examples(rows, seed=seed, origin=origin)
    name = Path(data if isinstance(data, Path | str) else files[0]).name.split(".")[0]
    has_pair = "pair" in made.splits["train"].column_names
    return Task(name=name, label_type=label_type, about="own data", source=origin, pair=has_pair), made


def found(data: Data | None, given: Mapping[str, Data | None], label_type: LabelType) -> dict[str, Source]:
    """The sources of each split."""
    named = {split: files for split, files in given.items() if files is not None}
    if (data is None) == (not named):
        raise UserError("say either data (--data), or the files of splits (--train, --dev, --test)")
    if data is None:
        if "train" not in named:
            raise UserError(f"{', '.join(named)} alone cannot be learnt from; give --train too")
        return {split: source_from_files(paths(files), label_type) for split, files in named.items()}
    if is_hub(data):
        return by_split(hub.sources(str(data).removeprefix(hub.PREFIX)))
    readable = (lambda path: not path.name.startswith(".")) if label_type == "tokens" else None
    return {split: source_from_files(files, label_type) for split, files in find_splits.find(data, readable).items()}


def is_hub(data: Data | None) -> bool:
    return isinstance(data, str) and data.startswith(hub.PREFIX)


def by_split(sources: Mapping[str, Source]) -> dict[str, Source]:
    told = {split: source for name, source in sources.items() if (split := find_splits.split_in(name))}
    return told or {"all": next(iter(sources.values()))}


def paths(files: Data) -> list[Path]:
    return [Path(file) for file in ([files] if isinstance(files, Path | str) else files)]
