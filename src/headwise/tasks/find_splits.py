"""Assignment of files to splits by their names."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headwise.errors import UserError
from headwise.files import check_regular
from headwise.tasks.formats import EXTENSIONS, file_extension

#: Words in file names that name a split: `train.csv`, `reviews_dev.jsonl.gz`, `test-00000-of-00002.parquet`.
SPLIT_WORDS = {"train": ("train", "training"), "dev": ("dev", "valid", "validation", "val"), "test": ("test",)}

#: The files of each split, or of "all" if they are still to be split.
SplitFiles = Mapping[str, Sequence[Path]]


def find_splits(
    data: Path | str | Sequence[Path | str], is_readable: Callable[[Path], bool] | None = None
) -> SplitFiles:
    """Find the files of each split.

    Args:
        data: A file, several files, or a directory. Files are assigned to splits by the words train, dev (valid,
            validation, val) and test in their names; other files of a directory are ignored then. A single file, or
            several without such words, are returned as "all".
        is_readable: Selects the files of a directory; by default those with a known extension.

    Raises:
        UserError: There are no files, or a directory has several files and none is named after a split.
    """
    if isinstance(data, Path | str):
        path = Path(data)
        if path.is_dir():
            return find_in_directory(path, is_readable or has_known_extension)
        if not path.exists():
            hint = f"; to load it from the Hugging Face hub, use hub:{data}" if is_hub_like(path) else ""
            raise UserError(f"{path}: no such file or directory{hint}")
        check_regular(path)
        return {"all": [path]}
    paths = [Path(path) for path in data]
    for path in paths:
        check_regular(path)
    return group_by_split(paths) or {"all": paths}


def find_in_directory(directory: Path, is_readable: Callable[[Path], bool]) -> SplitFiles:
    """Find the files of each split in a directory."""
    files = [path for path in sorted(directory.iterdir()) if path.is_file() and is_readable(path)]
    if not files:
        raise UserError(f"{directory}: no data files; expected {', '.join(EXTENSIONS)}, or one of them with .gz")
    splits = group_by_split(files)
    if not splits and len(files) > 1:
        names = ", ".join(path.name for path in files)
        hint = "; for a ranking, use --label-type ranking" if "queries" in names else ""
        raise UserError(
            f"{directory}: several files: {names}; name one of them, or call them train, dev and test{hint}"
        )
    return splits or {"all": files}


def group_by_split(files: Sequence[Path]) -> SplitFiles:
    """Group files by the splits in their names; files without a split are ignored."""
    splits = {path: split_from_name(path.name) for path in files}
    return {split: group for split in SPLIT_WORDS if (group := [path for path in files if splits[path] == split])}


def split_from_name(name: str) -> str | None:
    """Return the split that a file name contains; None if there is none, or more than one.

    >>> split_from_name("healthver_dev.csv.gz"), split_from_name("train-00000-of-00002.parquet")
    ('dev', 'train')
    >>> split_from_name("testament.csv")
    """
    words = set(re.split(r"[^a-z]+", name.lower()))
    splits = [split for split, split_words in SPLIT_WORDS.items() if words & set(split_words)]
    return splits[0] if len(splits) == 1 else None


def has_known_extension(path: Path) -> bool:
    """Return whether the format of a file is known."""
    return file_extension(path) in EXTENSIONS


def is_hub_like(path: Path) -> bool:
    """Return whether a path could be the name of a data set on the hub."""
    return len(path.parts) == 2 and not path.suffix
