"""A study's directory: its description, runs, logs and reports."""

import os
import secrets
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from headwise.errors import UserError
from headwise.locks import LOCK_FILE
from headwise.small_files import read_yaml
from headwise.studies.plan import Run, safe_file_name
from headwise.studies.search import Search
from headwise.studies.storage import DATABASE_FILE, connect, hide_password, sqlite_url
from headwise.studies.trials import Trials
from headwise.training.core.run_dir import atomic_write

STUDY_FILE, LOGS, TOKENS = "study.yaml", "logs", ".tokens"

#: The environment variable for a database URL with a password, which then appears in no file and no process list.
STORAGE_VARIABLE = "HEADWISE_STORAGE"


@dataclass(frozen=True)
class StudyDir:
    """A study's directory, which all of its workers share.

    Args:
        path: the directory.
        name: the study's name in its database.
        kind: compare, sweep, search, or the name of a reproduced table or figure.
        storage: the database's URL without password; None for the database in the directory.
        storage_path: the path or URL to which runs are copied; None if all machines share the directory.
    """

    path: Path
    name: str
    kind: str
    storage: str | None = None
    storage_path: str | None = None

    @classmethod
    def create(cls, path: Path, kind: str, storage: str | None = None, storage_path: str | None = None) -> "StudyDir":
        """Return the directory of a new study; nothing is written yet.

        Raises:
            UserError: the directory is not empty.
        """
        if (path / STUDY_FILE).is_file():
            raise UserError(f"--out {path}: contains a study; --resume continues it")
        ignored = (DATABASE_FILE, LOCK_FILE)  # of a study that was stopped before study.yaml was written
        if path.exists() and (not path.is_dir() or any(not x.name.startswith(ignored) for x in path.iterdir())):
            raise UserError(f"--out {path}: is not empty and contains no study; name a new directory")
        name = f"{path.absolute().name}-{secrets.token_hex(3)}"
        where = None if storage_path is None else absolute_storage_path(storage_path)
        return cls(path, name, kind, None if storage is None else hide_password(storage), where)

    def write(self) -> None:
        """Write study.yaml. From then on the directory contains a study."""
        values = {name: value for name, value in asdict(self).items() if name != "path" and value is not None}
        atomic_write(self.path / STUDY_FILE, yaml.safe_dump(values, sort_keys=False))

    @classmethod
    def read(cls, path: Path) -> "StudyDir":
        """Read study.yaml.

        Raises:
            UserError: the directory contains no study, or the file is damaged.
        """
        if not (path / STUDY_FILE).is_file():
            raise UserError(f"{path}: contains no study ({STUDY_FILE} is missing)")
        values = read_yaml(path / STUDY_FILE)
        if not isinstance(values, dict) or not {"name", "kind"} <= values.keys():
            raise UserError(f"{path / STUDY_FILE}: is damaged; expected name and kind")
        texts = [values["name"], values["kind"], values.get("storage"), values.get("storage_path")]
        if not all(isinstance(text, str) for text in texts if text is not None):
            raise UserError(f"{path / STUDY_FILE}: is damaged; name, kind, storage and storage_path must be text")
        return cls(path, *texts)

    def database_url(self, url: str | None = None) -> str:
        """Return the database's URL: the argument, else the environment variable, else the URL in study.yaml."""
        if self.storage is None:
            return url or sqlite_url(self.path)
        return url or os.environ.get(STORAGE_VARIABLE) or self.storage

    def open_trials(self, url: str | None = None, *, wait: bool = False) -> Trials:
        """Connect to the study's database.

        Args:
            url: the database's URL; by default that of `database_url`.
            wait: whether to wait for a database that cannot be reached.
        """
        trials_class = Search if self.kind == "search" else Trials
        return trials_class(connect(self.database_url(url), wait=wait), self.name)

    def run_dir(self, run: Run) -> Path:
        """Return a run's directory."""
        return self.path / run.relative_dir

    @property
    def token_dir(self) -> Path | None:
        """The directory of tokenized splits, which are deleted with the last run; None if machines do not share it."""
        return self.path / TOKENS if self.storage_path is None else None

    def log_path(self, run: Run) -> Path:
        """Return the path of a run's log."""
        return self.path / LOGS / f"{safe_file_name(run.task)}.{safe_file_name(run.method)}.seed-{run.seed}.log"


def absolute_storage_path(path: str) -> str:
    """Return a URL as it is, and a path as an absolute one, because processes differ in their directory."""
    return path if "://" in path else str(Path(path).absolute())


def delete_checkpoints(run_dir: Path, *, keep_model: bool) -> None:
    """Delete a finished run's checkpoints, and its weights unless they are to be kept, to save disk space."""
    shutil.rmtree(run_dir / "checkpoints", ignore_errors=True)
    if not keep_model:
        for weights in run_dir.glob("*.safetensors"):
            weights.unlink()
