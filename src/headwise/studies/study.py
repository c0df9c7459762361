"""A study: created or resumed, run by workers, and read back as results."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.errors import UserError
from headwise.locks import lock_output
from headwise.small_files import read_json
from headwise.studies.plan import Result, Run, plan_more_seeds
from headwise.studies.storage import connect, sqlite_url
from headwise.studies.study_dir import StudyDir
from headwise.studies.trials import Trials, TrialStatus
from headwise.studies.worker_pool import Resources, run_workers
from headwise.training.core.config import RunConfig
from headwise.training.core.run_dir import METRICS


@dataclass(frozen=True)
class Study:
    """A study on disk and in its database.

    Args:
        study_dir: the study's directory.
        trials: its runs and their states.
        url: the database's URL.
    """

    study_dir: StudyDir
    trials: Trials
    url: str

    @classmethod
    def create(
        cls,
        out_dir: Path,
        kind: str,
        runs: Sequence[Run],
        *,
        storage: str | None = None,
        keep_models: bool = False,
        maximize: bool = True,
        **metadata: Any,
    ) -> "Study":
        """Create a study and enqueue its runs.

        Args:
            out_dir: the study's directory, which must be new or empty.
            kind: compare, sweep, search, or the name of a reproduced table or figure.
            runs: the runs, in the order of their execution.
            storage: the database's URL; by default a file in the directory.
            keep_models: keep all trained models; otherwise only those of the first seed.
            maximize: whether a higher metric is better.
            metadata: more values to store with the study.

        Raises:
            UserError: the directory is not empty, or the database cannot be reached.
        """
        StudyDir.create(out_dir, kind, storage)  # an error before the lock creates the directory
        with lock_output(out_dir, is_directory=True):
            return cls._create_locked(out_dir, kind, runs, storage, keep_models, maximize, metadata)

    @classmethod
    def _create_locked(
        cls,
        out_dir: Path,
        kind: str,
        runs: Sequence[Run],
        storage: str | None,
        keep_models: bool,
        maximize: bool,
        metadata: dict[str, Any],
    ) -> "Study":
        study_dir = StudyDir.create(out_dir, kind, storage)
        url = storage or sqlite_url(out_dir)
        common_metadata = {
            "kind": kind,
            "study_dir": str(out_dir.absolute()),
            "keep_models_of_seed": None if keep_models else min(run.seed for run in runs),
        }
        trials = Trials.create(connect(url), study_dir.name, common_metadata | metadata, maximize=maximize)
        trials.enqueue(runs)
        study_dir.write()  # last: the study is complete once study.yaml exists
        return cls(study_dir, study_dir.open_trials(url), url)

    @classmethod
    def resume(
        cls, out_dir: Path, *, storage: str | None = None, seeds: int | None = None, kinds: Collection[str] = ()
    ) -> "Study":
        """Open a study to finish interrupted runs, retry failed runs, or help other machines.

        Args:
            out_dir: the study's directory, shared by all machines.
            storage: the database's URL, if it needs a password or has changed.
            seeds: the total number of seeds, to add seeds.
            kinds: the kinds of study that are accepted; by default all.

        Raises:
            UserError: the directory holds no study of these kinds, or the study has more seeds.
        """
        study_dir = StudyDir.read(out_dir)
        if kinds and study_dir.kind not in kinds:
            raise UserError(
                f"--resume: {out_dir} holds a study of the kind {study_dir.kind}, expected {' or '.join(kinds)}"
            )
        url = study_dir.database_url(storage)
        study = cls(study_dir, study_dir.open_trials(url), url)
        runs = [status.run for status in study.trials.statuses()]
        if seeds is not None:
            old_seeds = sorted({run.seed for run in runs})
            if seeds < len(old_seeds):
                raise UserError(f"--seeds {seeds}: the study in {out_dir} already has {len(old_seeds)} seeds")
            runs += plan_more_seeds(runs, range(old_seeds[0], old_seeds[0] + seeds))
        study.trials.enqueue(runs, retry_failed=True)
        return study

    def run(self, resources: Resources) -> None:
        """Run all waiting runs.

        Raises:
            KeyboardInterrupt: the study was stopped; it can be resumed.
        """
        run_workers(self.study_dir, self.trials, resources, self.url)

    @property
    def metadata(self) -> dict[str, Any]:
        """The values stored with the study."""
        return self.trials.metadata

    def results(self) -> list[Result]:
        """Return all finished runs."""
        return [self._read_result(status.run) for status in self.trials.statuses() if status.state == "finished"]

    def unfinished(self) -> list[TrialStatus]:
        """Return the runs that are neither finished nor pruned."""
        return [status for status in self.trials.statuses() if status.state not in ("finished", "pruned")]

    def _read_result(self, run: Run) -> Result:
        path = self.study_dir.run_dir(run) / METRICS
        if not path.is_file():
            raise UserError(f"{path}: not found; all machines of a study must share its directory")
        metrics = read_json(path)
        if not is_valid_metrics(metrics):
            raise UserError(f"{path}: not written by headwise, or damaged; repeat the run, or delete it from the study")
        return Result(run.task, run.method, run.seed, path.parent, metrics)


def is_valid_metrics(metrics: Any) -> bool:
    """Return whether the contents of a metrics.json have what reports use, with the right types."""
    try:
        values = [split[metrics["primary_metric"]] for split in metrics["metrics"].values()]
        names = [metrics["task"], metrics["label_type"], *metrics.get("labels", ())]
        numbers = [*values, metrics["train_seconds"]]
        is_complete = bool(values) and all(isinstance(name, str) for name in names)
        return is_complete and all(type(x) in (int, float) and math.isfinite(x) for x in numbers)
    except (AttributeError, KeyError, TypeError):
        return False


def higher_is_better(configs: Iterable[RunConfig]) -> bool:
    """Return whether a higher primary metric is better for at least one of the tasks.

    An Optuna study has one direction only, even if its tasks differ.
    """
    return any(_higher_is_better(config) for config in configs)


def _higher_is_better(config: RunConfig) -> bool:
    if config.task is None:
        return getattr(config, "label_type", None) != "regression"
    from headwise import tasks

    return tasks.get_task(config.task).higher_is_better
