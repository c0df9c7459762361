"""Runs on a storage path: any file system of fsspec, such as s3://, to which runs on other machines are copied.

A run is trained on the disk of its machine. Its files are uploaded after each checkpoint and at its end, and then
listed in a manifest. A file that the manifest does not list is not part of the run, so that an upload that was
interrupted leaves the previous state.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.errors import UserError, first_line
from headwise.locks import LOCK_FILE
from headwise.studies.plan import Run
from headwise.studies.study_dir import StudyDir
from headwise.training.core.run_dir import CHECKPOINTS, STAGING

if TYPE_CHECKING:
    from transformers import TrainerCallback

#: The list of a run's files on the storage path, and their sizes.
UPLOADED = "uploaded.json"
LOG = "log.txt"


@contextmanager
def working_dir(study_dir: StudyDir, run: Run) -> Iterator[tuple[Path, Path]]:
    """Yield a directory and a log for a run: those in the study's directory, or copies of those on its storage path.

    Args:
        study_dir: the study's directory.
        run: the run.
    """
    if study_dir.storage_path is None:
        yield study_dir.run_dir(run), study_dir.log_path(run)
        return
    from headwise.training.core.callbacks import extra_callbacks  # takes seconds to import

    stored = StoredRun(study_dir, run)
    with tempfile.TemporaryDirectory(prefix="headwise-run-") as scratch:
        run_dir, log_path = Path(scratch, "run"), Path(scratch, LOG)
        stored.download(run_dir, log_path)
        try:
            with extra_callbacks(upload_callback(lambda: stored.upload(run_dir, log_path))):
                yield run_dir, log_path
        finally:
            stored.upload(run_dir, log_path)


def fetch_results(study_dir: StudyDir, run: Run) -> None:
    """Copy the results and the log of a run from the storage path, if there is one, to the study's directory.

    Raises:
        UserError: the storage path cannot be read.
    """
    if study_dir.storage_path is None:
        return
    try:
        StoredRun(study_dir, run).download_results(study_dir.run_dir(run), study_dir.log_path(run))
    except UserError:
        raise
    except Exception as error:  # fsspec's file systems raise errors of their own
        raise UserError(
            f"--storage-path {study_dir.storage_path}: cannot be read ({first_line(error)}); finished runs are kept, "
            "--resume continues the study"
        ) from None


class StoredRun:
    """The files of a run on the study's storage path.

    Args:
        study_dir: the study's directory, which names the storage path.
        run: the run.

    Raises:
        UserError: the storage path cannot be used.
    """

    def __init__(self, study_dir: StudyDir, run: Run) -> None:
        assert study_dir.storage_path is not None
        self.files, root = open_storage_path(study_dir.storage_path)
        self.root = f"{root.rstrip('/')}/{study_dir.name}/{run.relative_dir.as_posix()}"

    def upload(self, run_dir: Path, log_path: Path) -> None:
        """Upload new and changed files, then the manifest. Then delete the files that are no longer in the run."""
        old = self.read_manifest()
        local = {LOG: log_path} if log_path.is_file() else {}
        local |= {f"run/{name}": run_dir / name for name in list_files(run_dir)}
        sizes = {name: path.stat().st_size for name, path in local.items()}
        for name, size in sizes.items():
            is_immutable = f"/{CHECKPOINTS}/" in name  # the files of a checkpoint never change
            if not (is_immutable and old.get(name) == size):
                self._write(name, local[name].read_bytes() if size < 2**16 else local[name])
        self._write(UPLOADED, json.dumps(sizes).encode())
        for name in old.keys() - sizes.keys():
            with suppress(FileNotFoundError):
                self.files.rm_file(f"{self.root}/{name}")

    def download(self, run_dir: Path, log_path: Path) -> None:
        """Download the files of the run."""
        self._download(self.read_manifest(), run_dir, log_path)

    def download_results(self, run_dir: Path, log_path: Path) -> None:
        """Download what a report needs: all files of the run except for weights and checkpoints."""
        names = [
            name
            for name in self.read_manifest()
            if not name.startswith(f"run/{CHECKPOINTS}/") and not name.endswith(".safetensors")
        ]
        self._download(names, run_dir, log_path)

    def read_manifest(self) -> dict[str, int]:
        """Return the names and sizes of the run's files; none if nothing was uploaded."""
        try:
            manifest: dict[str, int] = json.loads(self.files.cat_file(f"{self.root}/{UPLOADED}"))
        except FileNotFoundError:
            return {}
        return manifest

    def _download(self, names: Any, run_dir: Path, log_path: Path) -> None:
        for name in sorted(names, key=lambda name: name.endswith("/metrics.json")):  # last: the run is then complete
            target = log_path if name == LOG else run_dir / name.removeprefix("run/")
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".{target.name}.part")
            self.files.get_file(f"{self.root}/{name}", str(temporary))
            temporary.replace(target)

    def _write(self, name: str, content: bytes | Path) -> None:
        path = f"{self.root}/{name}"
        self.files.makedirs(path.rpartition("/")[0], exist_ok=True)
        if isinstance(content, Path):
            self.files.put_file(str(content), path)
        elif is_local(self.files):  # objects of a store appear at once, local files do not
            self.files.pipe_file(f"{path}.part", content)
            self.files.mv(f"{path}.part", path)
        else:
            self.files.pipe_file(path, content)


def list_files(run_dir: Path) -> list[str]:
    """Return the files of a run that are uploaded."""
    paths = [path for path in sorted(run_dir.rglob("*")) if path.is_file()] if run_dir.is_dir() else []
    names = [path.relative_to(run_dir).as_posix() for path in paths]
    return [x for x in names if not x.startswith(f"{STAGING}/") and Path(x).name != LOCK_FILE and "/." not in f"/{x}"]


def open_storage_path(url: str) -> tuple[Any, str]:
    """Return the file system of a path or URL, and the path on it.

    Raises:
        UserError: the URL has an unknown scheme, or its package is not installed.
    """
    from fsspec.core import url_to_fs

    try:
        files, path = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise UserError(f"--storage-path {url}: {first_line(error)}") from None
    return files, path


def check_storage_path(url: str) -> None:
    """Check that files can be written to a storage path.

    Raises:
        UserError: they cannot.
    """
    files, path = open_storage_path(url)
    try:
        files.makedirs(path, exist_ok=True)
        files.pipe_file(f"{path}/.headwise", b"")
        files.rm_file(f"{path}/.headwise")
    except Exception as error:  # fsspec's file systems raise errors of their own
        raise UserError(f"--storage-path {url}: cannot be written ({first_line(error)})") from None


def is_local(files: Any) -> bool:
    """Return whether a file system is the local one."""
    protocol = files.protocol
    return "file" in ((protocol,) if isinstance(protocol, str) else protocol)


def upload_callback(upload: Any) -> "TrainerCallback":
    """Return a callback that calls `upload` after each checkpoint."""
    from transformers import TrainerCallback  # takes seconds to import

    class UploadCallback(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.is_world_process_zero:
                upload()

    return UploadCallback()
