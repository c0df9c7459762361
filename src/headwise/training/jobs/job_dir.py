"""The directory of a job: its plan, and the output and result of each finished part.

It lies next to the output and is removed when the job has finished. A part is finished once its result exists, which is
written after its output. Both are written atomically under names that differ between processes, so that a part may run
twice.
"""

import hashlib
import json
import os
import shutil
import socket
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from headwise.errors import UserError
from headwise.files import check_regular
from headwise.small_files import read_json
from headwise.training.core.run_dir import METRICS, atomic_write, flush, to_json

PLAN = "plan.json"
RESULT_SUFFIX = ".npz"


class JobDir:
    """The directory of a job.

    Args:
        path: the directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def next_to(cls, out: Path) -> "JobDir":
        """Return the directory of the job that writes an output."""
        out = out.absolute()
        return cls(out.with_name(f".{out.name}.parts"))

    def begin(self, plan: Mapping[str, Any], *, resume: bool, force: bool) -> None:
        """Create the directory, or continue with its finished parts.

        Args:
            plan: everything that determines the results of the parts, as JSON.
            resume: continue an unfinished job, if there is one.
            force: discard an unfinished job.

        Raises:
            UserError: there is an unfinished job, and it is neither resumed nor discarded; or the job that is resumed
                has another plan.
        """
        key = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()
        if self.has_finished_parts():
            if resume and read_json(self.path / PLAN) != {"key": key}:
                raise UserError(
                    f"--resume: the model, the data or an option has changed since the unfinished parts in {self.path} "
                    "were computed; --force starts again"
                )
            if not resume and not force:
                raise UserError(f"{self.path}: contains an unfinished job; --resume continues it, --force starts again")
        if not resume or not self.has_finished_parts():
            self.remove()
        self.path.mkdir(parents=True, exist_ok=True)
        atomic_write(self.path / PLAN, to_json({"key": key}))

    def has_finished_parts(self) -> bool:
        """Return whether at least one part is finished."""
        return (self.path / PLAN).is_file() and any(self.path.glob(f"*{RESULT_SUFFIX}"))

    def is_finished(self, number: int) -> bool:
        """Return whether a part is finished."""
        return self.result_path(number).is_file()

    def result_path(self, number: int) -> Path:
        """Return the path of a part's result."""
        return self.path / f"{number:08d}{RESULT_SUFFIX}"

    def output_path(self, number: int) -> Path:
        """Return the path of a part's output."""
        return self.path / f"{number:08d}.output"

    @contextmanager
    def new_file(self, path: Path) -> Iterator[Path]:
        """Yield a temporary path that is moved to `path` at the end, or deleted on an error."""
        temporary = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}")
        try:
            yield temporary
            flush(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def save(self, number: int, result: Mapping[str, Any]) -> None:
        """Store the result of a part, which finishes it."""
        with self.new_file(self.result_path(number)) as temporary, temporary.open("wb") as file:
            np.savez(file, **result)

    def load(self, number: int) -> dict[str, Any]:
        """Return the result of a finished part.

        Raises:
            UserError: the file is damaged.
        """
        path = self.result_path(number)
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return dict(arrays)
        except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
            raise UserError(f"{path}: damaged ({error}); delete it to compute this part again") from None

    def remove(self) -> None:
        """Delete the directory."""
        shutil.rmtree(self.path, ignore_errors=True)


def describe_inputs(run: Path | None, files: Sequence[Path]) -> dict[str, Any]:
    """Return the part of a job's plan that identifies its model and its input files, by their sizes and times.

    Args:
        run: the directory of a finished run.
        files: the input files.
    """
    paths = [path.resolve() for path in (*([] if run is None else [run / METRICS]), *files)]
    for path in paths:
        check_regular(path)
    return {"files": [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in paths]}
