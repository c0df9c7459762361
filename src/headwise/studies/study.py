"""A study from its beginning, or from where it was left, to its results."""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.errors import UserError
from headwise.studies.plan import Run, more_seeds
from headwise.studies.result import Result
from headwise.studies.storage import connect, in_folder
from headwise.studies.study_dir import Folder
from headwise.studies.trials import Trials, TrialStatus
from headwise.studies.worker_pool import Resources, conduct
from headwise.training.core.config import RunConfig
from headwise.training.core.run_dir import METRICS


@dataclass(frozen=True)
class Study:
    """A study on disk and in its database.

    Args:
        folder: where its runs are.
        ledger: how they stand.
        url: the database's address.
    """

    folder: Folder
    ledger: Trials
    url: str

    @classmethod
    def begin(
        cls,
        out: Path,
        kind: str,
        runs: Sequence[Run],
        *,
        storage: str | None = None,
        keep_models: bool = False,
        maximise: bool = True,
        **about: Any,
    ) -> "Study":
        """A new study, all of whose runs wait.

        Args:
            out: its folder, which is new, or empty.
            kind: compare, sweep, search, or what is reproduced.
            runs: what to do, in this order.
            storage: the database's address; by default a file in the folder.
            keep_models: keep all trained models; otherwise only those of the first seed.
            maximise: whether a higher figure is better.
            about: what else to keep with it.

        Raises:
            UserError: the folder is taken, or the database cannot be reached.
        """
        folder = Folder.create(out, kind, storage)
        url = storage or in_folder(out)
        if storage is None:
            out.mkdir(parents=True, exist_ok=True)
        kept: Any = "all" if keep_models else min(run.seed for run in runs)
        known = {"kind": kind, "folder": str(out.absolute()), "keep_models": kept, **about}
        Trials.create(connect(url), folder.name, known, maximise=maximise).enqueue(runs)
        folder.write()  # last: where it is, the study is whole
        return cls(folder, folder.ledger(url), url)

    @classmethod
    def resume(
        cls, out: Path, *, storage: str | None = None, seeds: int | None = None, kinds: Collection[str] = ()
    ) -> "Study":
        """A study that was interrupted, has failed runs, or is still run by other machines, which get help.

        Args:
            out: its folder, which must be the same for all machines.
            storage: the database's address, if it has a password, or moved.
            seeds: have so many seeds, if that is more than before.
            kinds: what the study may be; by default anything.

        Raises:
            UserError: there is no study, it is another kind of one, or it has more seeds already.
        """
        folder = Folder.read(out)
        if kinds and folder.kind not in kinds:
            raise UserError(f"--resume: {out} holds no {' or '.join(kinds)}, but a study of the kind {folder.kind}")
        url = folder.url(storage)
        study = cls(folder, folder.ledger(url), url)
        runs = [entry.run for entry in study.ledger.entries()]
        if seeds is not None:
            there = sorted({run.seed for run in runs})
            if seeds < len(there):
                raise UserError(f"--seeds {seeds}: the study in {out} has {len(there)} already; none is taken back")
            runs += more_seeds(runs, range(there[0], there[0] + seeds))
        study.ledger.enqueue(runs, again=True)
        return study

    def conduct(self, machine: Resources) -> None:
        """Do all that waits.

        Raises:
            KeyboardInterrupt: stopped; `resume` goes on.
        """
        conduct(self.folder, self.ledger, machine, self.url)

    @property
    def about(self) -> dict[str, Any]:
        return self.ledger.about

    def results(self) -> list[Result]:
        """What is finished."""
        return [self.result(entry) for entry in self.ledger.entries() if entry.state == "finished"]

    def result(self, entry: TrialStatus) -> Result:
        run = entry.run
        path = self.folder.of(run) / METRICS
        try:
            metrics = json.loads(path.read_text(encoding="utf-8"))
        except OSError:
            raise UserError(f"{path}: is not there; all machines of a study must see the same folder") from None
        return Result(run.task, run.method, run.seed, self.folder.of(run), metrics)

    def missing(self) -> list[TrialStatus]:
        """What should be finished and is not."""
        return [entry for entry in self.ledger.entries() if entry.state not in ("finished", "pruned")]


def higher_is_better(settings: Iterable[RunConfig]) -> bool:
    """Which way figures of tasks go. Of several tasks that differ, a database can only know one."""
    return any(_higher(one) for one in settings)


def _higher(settings: RunConfig) -> bool:
    if settings.task is None:
        return getattr(settings, "label_type", None) != "regression"
    from headwise import tasks

    try:
        return tasks.get_task(settings.task).higher_is_better
    except UserError:  # of a kind that has no such list: clicks, translation
        return True
