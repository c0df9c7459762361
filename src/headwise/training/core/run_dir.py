"""A run's folder. What is in it is whole or not taken for it.

A finished run is staged, flushed and renamed, `metrics.json` last. A checkpoint, which the Trainer writes file by file,
gets a list of its files and their sizes when all of them are on the disk; without it, or with a file that is not as
listed, it is passed over.
"""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

from safetensors import SafetensorError

from headwise.errors import UserError

SETTINGS, METRICS, PREDICTIONS, CHECKPOINTS = "run.yaml", "metrics.json", "predictions.parquet", "checkpoints"
STAGE, TOKENS, WHOLE = ".unfinished", ".tokens", "whole.json"


def check_out_dir(folder: Path, *, force: bool, resume: bool) -> None:
    """Make sure that a run may be written here; nothing is changed yet.

    Raises:
        UserError: there is a run already, or something else, or none to resume.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder}: a file of that name is in the way")
    there = folder.is_dir() and any(path.name != part_of(folder / SETTINGS).name for path in folder.iterdir())
    if resume:
        if not (folder / SETTINGS).is_file():
            raise UserError(f"--resume: {folder} holds no run ({SETTINGS} is missing)")
        if (folder / METRICS).exists():
            raise UserError(f"--resume: the run in {folder} is finished")
        return
    if there and not (folder / SETTINGS).is_file():
        raise UserError(f"--out {folder}: holds files that are no run of headwise; name a new folder")
    if there and not force:
        state = "a finished run" if (folder / METRICS).exists() else "an unfinished run (--resume goes on with it)"
        raise UserError(f"--out {folder}: holds {state}; --force replaces it")


def check_finished(run: Path) -> None:
    """Make sure that a folder holds a finished run.

    Raises:
        UserError: it does not.
    """
    for name in (SETTINGS, METRICS):
        if not (run / name).is_file():
            why = "no such folder" if not run.is_dir() else f"{name} is missing"
            again = f"headwise train --resume --out {quote(str(run))}"
            hint = f": the run did not finish; {again} goes on" if name == METRICS else ""
            raise UserError(f"{run}: holds no finished run ({why}){hint}")


def read_metrics(run: Path, *needed: str) -> dict[str, Any]:
    """What a finished run's `metrics.json` holds.

    Args:
        run: the folder.
        needed: what it must hold.

    Raises:
        UserError: the folder holds no finished run, or the file is not as it was written.
    """
    check_finished(run)
    try:
        found = json.loads((run / METRICS).read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        found = None
    missing = [name for name in needed if not isinstance(found, dict) or name not in found]
    if missing or not isinstance(found, dict):
        raise UserError(
            f"{run / METRICS}: not as headwise wrote it" + (f" ({missing[0]!r} is missing)" if found else "")
        )
    return found


def begin(folder: Path, settings: str, *, resume: bool) -> None:
    """Make the folder a run's, with these settings; an old run goes, unless it is resumed.

    First it is no longer finished, last it has other settings: whenever that is cut off, what is left is a run that can
    be resumed or replaced.
    """
    if not resume and folder.is_dir():
        (folder / METRICS).unlink(missing_ok=True)
        flush(folder)
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != SETTINGS:
                path.unlink()
    atomic_write(folder / SETTINGS, settings)


def complete(checkpoint: Path) -> None:
    """Say that a checkpoint is whole: all of its files are on the disk, and are listed with their sizes."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != WHOLE)
    for path in files:
        flush(path)
    atomic_write(
        checkpoint / WHOLE, to_json({str(path.relative_to(checkpoint)): path.stat().st_size for path in files})
    )


def is_whole(checkpoint: Path) -> bool:
    """Whether a checkpoint was completed, and nothing of it is missing or cut."""
    try:
        sizes = json.loads((checkpoint / WHOLE).read_text(encoding="utf-8"))
        return all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


def last_checkpoint(folder: Path) -> str | None:
    """The newest checkpoint that is whole."""
    found = [(int(number), path) for number, path in checkpoints(folder) if is_whole(path)]
    return str(max(found)[1]) if found else None


def remove_broken_checkpoints(folder: Path) -> None:
    """Those that are not whole go: the Trainer would count them among those that it keeps."""
    for _, path in checkpoints(folder):
        if not is_whole(path):
            shutil.rmtree(path)


def checkpoints(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted((folder / CHECKPOINTS).glob("checkpoint-*")):
        number = path.name.removeprefix("checkpoint-")
        if number.isdecimal() and path.is_dir():
            yield number, path


@contextmanager
def staging_dir(folder: Path) -> Iterator[Path]:
    """A folder to write to; in the end its files move to their place, `metrics.json` last, or nothing does."""
    stage = folder / STAGE
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    try:
        yield stage
        files = sorted((path for path in stage.rglob("*") if path.is_file()), key=lambda path: path.name == METRICS)
        for path in files:
            flush(path)
        for path in files:
            place = folder / path.relative_to(stage)
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)
        flush(folder)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A path to write to; in the end the file moves to its place, or is gone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(path)
    try:
        yield part
        flush(part)
        part.replace(path)
        flush(path.parent)
    finally:
        part.unlink(missing_ok=True)


def part_of(path: Path) -> Path:
    """What a file is called while it is being written."""
    return path.with_name(f".{path.name}.part")


def atomic_write(path: Path, text: str) -> None:
    """A file that is there with all of its text, or as it was before."""
    with atomic_path(path) as part:
        part.write_text(text, encoding="utf-8")


#: What libraries say when the disk is full, where it is no OSError.
FULL = (
    "No space left",
    "quota exceeded",
    "File too large",
    "PytorchStreamWriter failed",
    "iostream error",
    "unexpected pos",
)


@contextmanager
def enough_room(folder: Path) -> Iterator[None]:
    """A full disk is a mistake of the user's, who can make room and go on."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        known = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if not known and not any(words in str(error) for words in FULL):
            raise
        why = f"no room to write ({error.strerror})" if isinstance(error, OSError) else "no room to write"
        again = f"headwise train --resume --out {quote(str(folder))}"
        raise UserError(f"{folder}: {why}; make room, then {again} goes on") from None


def flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def to_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
