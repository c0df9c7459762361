"""A study's folder: what it is, its runs, their logs, and the answer."""

import os
import secrets
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from headwise.errors import UserError
from headwise.studies.plan import Run, file_name
from headwise.studies.search import Search
from headwise.studies.storage import connect, in_folder, shown
from headwise.studies.trials import Trials
from headwise.training.core.run_dir import atomic_write

ABOUT, LOGS = "study.yaml", "logs"

#: Where an address with a password may come from, so that it is in no file and no list of processes.
STORAGE = "HEADWISE_STORAGE"


@dataclass(frozen=True)
class Folder:
    """A study's place on disk, which all of its workers see.

    Args:
        path: the folder.
        name: the study's name in its database.
        kind: compare, sweep, or what is reproduced.
        storage: the database's address without password; None for the one in the folder.
    """

    path: Path
    name: str
    kind: str
    storage: str | None = None

    @classmethod
    def create(cls, path: Path, kind: str, storage: str | None = None) -> "Folder":
        """A new study's; nothing is written yet.

        Raises:
            UserError: there is something already.
        """
        if (path / ABOUT).is_file():
            raise UserError(f"--out {path}: holds a study; --resume goes on with it")
        left_over = "study.db"  # of a study that was stopped before it had begun
        if path.exists() and (not path.is_dir() or any(not x.name.startswith(left_over) for x in path.iterdir())):
            raise UserError(f"--out {path}: is not empty and holds no study; name a new folder")
        name = f"{path.absolute().name}-{secrets.token_hex(3)}"
        return cls(path, name, kind, None if storage is None else shown(storage))

    def write(self) -> None:
        """From now on the folder is a study's."""
        known = {name: x for name, x in asdict(self).items() if name != "path" and x is not None}
        atomic_write(self.path / ABOUT, yaml.safe_dump(known, sort_keys=False))

    @classmethod
    def read(cls, path: Path) -> "Folder":
        """
        Raises:
            UserError: there is no study.
        """
        try:
            known = yaml.safe_load((path / ABOUT).read_text(encoding="utf-8"))
            return cls(path, known["name"], known["kind"], known.get("storage"))
        except OSError:
            raise UserError(f"{path}: holds no study ({ABOUT} is missing)") from None
        except (yaml.YAMLError, TypeError, KeyError):
            raise UserError(f"{path / ABOUT}: is damaged; expected name and kind") from None

    def url(self, given: str | None = None) -> str:
        """The database's address: as given, from the environment, or as the folder knows it."""
        if self.storage is None:
            return given or in_folder(self.path)
        return given or os.environ.get(STORAGE) or self.storage

    def ledger(self, given: str | None = None) -> Trials:
        """The study's runs."""
        return (Search if self.kind == "search" else Trials)(connect(self.url(given)), self.name)

    def of(self, run: Run) -> Path:
        """A run's folder."""
        return self.path / run.place

    def log(self, run: Run) -> Path:
        """What a run said."""
        return self.path / LOGS / f"{file_name(run.task)}.{file_name(run.method)}.seed-{run.seed}.log"


def without_checkpoints(run: Path, *, keep_model: bool) -> None:
    """What a finished run of a study need not keep: a study has many runs, and disks are small."""
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    if not keep_model:
        for weights in run.glob("*.safetensors"):
            weights.unlink()
