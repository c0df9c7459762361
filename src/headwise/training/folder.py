"""A run's folder. A finished run is written whole or not at all: staged, flushed, renamed, `metrics.json` last."""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from headwise.mistakes import Mistake

SETTINGS, METRICS, PREDICTIONS, CHECKPOINTS = "run.yaml", "metrics.json", "predictions.parquet", "checkpoints"
STAGE, TOKENS = ".unfinished", ".tokens"


def check(folder: Path, *, force: bool, resume: bool) -> None:
    """Make sure that a run may be written here; nothing is changed yet.

    Raises:
        Mistake: there is a run already, or something else, or none to resume.
    """
    if folder.exists() and not folder.is_dir():
        raise Mistake(f"--out {folder}: a file of that name is in the way")
    there = folder.is_dir() and any(folder.iterdir())
    if resume:
        if not (folder / SETTINGS).is_file():
            raise Mistake(f"--resume: {folder} holds no run ({SETTINGS} is missing)")
        if (folder / METRICS).exists():
            raise Mistake(f"--resume: the run in {folder} is finished")
        return
    if there and not (folder / SETTINGS).is_file():
        raise Mistake(f"--out {folder}: holds files that are no run of headwise; name a new folder")
    if there and not force:
        state = "a finished run" if (folder / METRICS).exists() else "an unfinished run (--resume goes on with it)"
        raise Mistake(f"--out {folder}: holds {state}; --force replaces it")


def check_finished(run: Path) -> None:
    """Make sure that a folder holds a finished run.

    Raises:
        Mistake: it does not.
    """
    for name in (SETTINGS, METRICS):
        if not (run / name).is_file():
            why = "no such folder" if not run.is_dir() else f"{name} is missing"
            hint = ": the run did not finish; headwise train --resume goes on" if name == METRICS else ""
            raise Mistake(f"{run}: holds no finished run ({why}){hint}")


def begin(folder: Path, settings: str, *, resume: bool) -> None:
    """Make the folder a run's, with these settings; an old run goes, unless it is resumed."""
    if not resume and folder.is_dir():
        shutil.rmtree(folder)
    write_whole(folder / SETTINGS, settings)


def last_checkpoint(folder: Path) -> str | None:
    """The newest checkpoint that was written whole."""
    found = []
    for path in (folder / CHECKPOINTS).glob("checkpoint-*"):
        try:
            found.append((json.loads((path / "trainer_state.json").read_text())["global_step"], path))
        except (OSError, ValueError, KeyError):
            continue  # cut off in the middle
    return str(max(found)[1]) if found else None


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
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
def whole(path: Path) -> Iterator[Path]:
    """A path to write to; in the end the file moves to its place, or is gone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        flush(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """A file that is there with all of its text, or as it was before."""
    with whole(path) as part:
        part.write_text(text, encoding="utf-8")


#: What libraries say when the disk is full, where it is no OSError.
FULL = ("No space left", "quota exceeded", "File too large", "PytorchStreamWriter failed", "iostream error")


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
        raise Mistake(f"{folder}: {why}; make room, then headwise train --resume --out {folder} goes on") from None


def flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def as_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
