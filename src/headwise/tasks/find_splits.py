"""Which files hold which split."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headwise.errors import UserError
from headwise.tasks.formats import EXTENSIONS, file_extension

#: Words in a file's name that tell its split: `train.csv`, `reviews_dev.jsonl.gz`, `test-00000-of-00002.parquet`.
WORDS = {"train": ("train", "training"), "dev": ("dev", "valid", "validation", "val"), "test": ("test",)}

Files = Mapping[str, Sequence[Path]]  # by split; everything under "all" when nothing is split yet


def find(data: Path | str | Sequence[Path | str], readable: Callable[[Path], bool] | None = None) -> Files:
    """The files of each split.

    Args:
        data: a file, several files, or a folder. Files whose names hold the words train, dev (valid, validation, val)
            or test are those splits; a folder's other files are then left out. One file, or several without such words,
            are to be split: they come as "all".
        readable: which files of a folder count; by default those with a known ending.

    Raises:
        UserError: nothing is there, or a folder holds several files and none says what it is.
    """
    if isinstance(data, Path | str):
        path = Path(data)
        if path.is_dir():
            return in_folder(path, readable or known)
        if not path.is_file():
            hint = f"; a data set of the Hugging Face hub is given as hub:{data}" if is_hub_like(path) else ""
            raise UserError(f"{path}: no such file or folder{hint}")
        return {"all": [path]}
    paths = [Path(path) for path in data]
    for path in paths:
        if not path.is_file():
            raise UserError(f"{path}: no such file")
    return by_split(paths) or {"all": paths}


def in_folder(folder: Path, readable: Callable[[Path], bool]) -> Files:
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and readable(path)]
    if not files:
        raise UserError(f"{folder}: no data files there; expected {', '.join(EXTENSIONS)}, also .gz")
    found = by_split(files)
    if not found and len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise UserError(f"{folder}: which file is it? Name one, or call them train, dev and test; there: {names}")
    return found or {"all": files}


def by_split(files: Sequence[Path]) -> Files:
    split_of = {path: split_in(path.name) for path in files}
    return {split: named for split in WORDS if (named := [path for path in files if split_of[path] == split])}


def split_in(name: str) -> str | None:
    """The split that a file's name tells, if it tells one.

    >>> split_in("healthver_dev.csv.gz"), split_in("train-00000-of-00002.parquet"), split_in("testament.csv")
    ('dev', 'train', None)
    """
    words = set(re.split(r"[^a-z]+", name.lower()))
    told = [split for split, known_words in WORDS.items() if words & set(known_words)]
    return told[0] if len(told) == 1 else None


def known(path: Path) -> bool:
    return file_extension(path) in EXTENSIONS


def is_hub_like(path: Path) -> bool:
    return len(path.parts) == 2 and not path.suffix
