"""The run directory: its files, atomic writes and checkpoints.

A run is complete once `metrics.json` exists. The files of a finished run are written to a staging directory, flushed
to disk and moved, `metrics.json` last. The Trainer writes checkpoints file by file; once all files of a checkpoint are
on disk, a manifest with their sizes is added. Checkpoints without a manifest, or with a file that differs from it, are
ignored.
"""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from safetensors import SafetensorError

from headwise.errors import UserError
from headwise.locks import LOCK_FILE
from headwise.small_files import read_json

CONFIG, METRICS, PREDICTIONS, CARD = "run.yaml", "metrics.json", "predictions.parquet", "README.md"
CHECKPOINTS, STAGING, MANIFEST = "checkpoints", ".unfinished", "manifest.json"


@dataclass(frozen=True)
class RunResult:
    """A finished run: its directory, the contents of `metrics.json`, and the address of its upload to the hub."""

    run_dir: Path
    metrics: dict[str, Any]
    hub_url: str | None = None


def check_out_dir(out_dir: Path, *, force: bool, resume: bool) -> None:
    """Check that a run can be written to a directory. Nothing is changed.

    Raises:
        UserError: the directory contains another run or other files, or no run to resume.
    """
    if out_dir.exists() and not out_dir.is_dir():
        raise UserError(f"--out {out_dir}: a file of that name exists")
    ignored = {LOCK_FILE, partial_path(out_dir / CONFIG).name}
    has_files = out_dir.is_dir() and any(path.name not in ignored for path in out_dir.iterdir())
    if resume:
        if not (out_dir / CONFIG).is_file():
            raise UserError(f"--resume: {out_dir} contains no run ({CONFIG} is missing)")
        if (out_dir / METRICS).exists():
            raise UserError(f"--resume: the run in {out_dir} is already finished")
        return
    if has_files and not (out_dir / CONFIG).is_file():
        raise UserError(f"--out {out_dir}: contains files that are not a headwise run; choose another directory")
    if has_files and not force:
        state = "a finished run" if (out_dir / METRICS).exists() else "an unfinished run (--resume continues it)"
        raise UserError(f"--out {out_dir}: contains {state}; --force replaces it")


def is_finished(run_dir: Path) -> bool:
    """Return whether a directory contains a finished run."""
    return all((run_dir / name).is_file() for name in (CONFIG, METRICS))


def check_finished(run_dir: Path) -> None:
    """Check that a directory contains a finished run.

    Raises:
        UserError: it does not.
    """
    for name in (CONFIG, METRICS):
        if not (run_dir / name).is_file():
            reason = "no such directory" if not run_dir.is_dir() else f"{name} is missing"
            hint = f"; to finish it: {resume_command(run_dir)}" if name == METRICS else ""
            raise UserError(f"{run_dir}: no finished run ({reason}){hint}")


def resume_command(run_dir: Path) -> str:
    """Return the command that resumes a run."""
    return f"headwise train --resume --out {quote(str(run_dir))}"


def read_metrics(run_dir: Path, *required: str) -> dict[str, Any]:
    """Read the `metrics.json` of a finished run.

    Args:
        run_dir: the run directory.
        required: keys that must be present.

    Raises:
        UserError: the directory contains no finished run, or the file is damaged.
    """
    check_finished(run_dir)
    metrics = read_json(run_dir / METRICS)
    missing = [name for name in required if not isinstance(metrics, dict) or name not in metrics]
    if missing or not isinstance(metrics, dict):
        reason = f" ({missing[0]!r} is missing)" if missing and metrics else ""
        raise UserError(f"{run_dir / METRICS}: not written by headwise, or damaged{reason}")
    return metrics


def begin(out_dir: Path, config_yaml: str, *, resume: bool) -> None:
    """Prepare the run directory and write `run.yaml`. An old run is deleted unless it is resumed.

    `metrics.json` is deleted first and `run.yaml` is replaced last, so that an interruption at any point leaves a run
    that can be resumed or replaced.
    """
    if not resume and out_dir.is_dir():
        (out_dir / METRICS).unlink(missing_ok=True)
        flush(out_dir)
        for path in out_dir.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name not in (CONFIG, LOCK_FILE):
                path.unlink()
    atomic_write(out_dir / CONFIG, config_yaml)


def write_manifest(checkpoint: Path) -> None:
    """Flush a checkpoint to disk and mark it as complete with a manifest of its files and their sizes."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != MANIFEST)
    for path in files:
        flush(path)
    sizes = {str(path.relative_to(checkpoint)): path.stat().st_size for path in files}
    atomic_write(checkpoint / MANIFEST, to_json(sizes))


def is_complete(checkpoint: Path) -> bool:
    """Return whether all files in a checkpoint's manifest exist with their recorded sizes."""
    try:
        sizes = read_json(checkpoint / MANIFEST)
        return all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError, TypeError):
        return False


def last_checkpoint(run_dir: Path) -> str | None:
    """Return the newest complete checkpoint, or None."""
    complete = [(step, path) for step, path in list_checkpoints(run_dir) if is_complete(path)]
    return str(max(complete)[1]) if complete else None


def remove_broken_checkpoints(run_dir: Path) -> None:
    """Delete incomplete checkpoints, which the Trainer would count towards `save_total_limit`."""
    for _, path in list_checkpoints(run_dir):
        if not is_complete(path):
            shutil.rmtree(path)


def list_checkpoints(run_dir: Path) -> Iterator[tuple[int, Path]]:
    """Yield the step and directory of each checkpoint."""
    for path in sorted((run_dir / CHECKPOINTS).glob("checkpoint-*")):
        step = path.name.removeprefix("checkpoint-")
        if step.isdecimal() and path.is_dir():
            yield int(step), path


@contextmanager
def scratch_dir(out_dir: Path, *, is_main_process: bool) -> Iterator[Path]:
    """Yield the path of a directory for temporary files next to the run directory. It is deleted at the end.

    Temporary files can so be written before the run directory is touched. The directory is created by its first user.
    """
    path = out_dir.resolve()
    path = path.with_name(f".{path.name}.tokens")
    try:
        yield path
    finally:
        if is_main_process:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def staging_dir(out_dir: Path) -> Iterator[Path]:
    """Yield a directory whose files are moved to `out_dir` at the end, `metrics.json` last, or deleted on an error."""
    stage = out_dir / STAGING
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    try:
        yield stage
        files = sorted((path for path in stage.rglob("*") if path.is_file()), key=lambda path: path.name == METRICS)
        for path in files:
            flush(path)
        for path in files:
            target = out_dir / path.relative_to(stage)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
        flush(out_dir)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path that is moved to `path` at the end, or deleted on an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = partial_path(path)
    try:
        yield temporary
        flush(temporary)
        temporary.replace(path)
        flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def partial_path(path: Path) -> Path:
    """Return the temporary name of a file that is being written."""
    return path.with_name(f".{path.name}.part")


def atomic_write(path: Path, text: str) -> None:
    """Write a text file atomically: afterwards it has all of the new text, or on an error the old one."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


#: Messages of libraries that raise something else than OSError when the disk is full.
DISK_FULL_MESSAGES = (
    "No space left",
    "quota exceeded",
    "File too large",
    "PytorchStreamWriter failed",
    "iostream error",
    "unexpected pos",
)


@contextmanager
def report_full_disk(out_dir: Path) -> Iterator[None]:
    """Turn the errors of a full disk into a UserError."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if not is_full and not any(message in str(error) for message in DISK_FULL_MESSAGES):
            raise
        reason = f" ({error.strerror})" if isinstance(error, OSError) else ""
        hint = "then start the run again"
        if (out_dir / CONFIG).is_file() and not (out_dir / METRICS).exists():
            hint = f"then resume: {resume_command(out_dir)}"
        raise UserError(f"{out_dir}: no space left on the disk{reason}; free some space, {hint}") from None


def flush(path: Path) -> None:
    """Flush a file or directory to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def to_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
