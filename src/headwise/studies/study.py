"""A study: created or resumed, run by workers, and read back as results."""

import math
import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.errors import UserError
from headwise.locks import lock_output
from headwise.small_files import read_json
from headwise.studies.plan import Result, Run, plan_more_seeds
from headwise.studies.ray_tasks import run_tasks
from headwise.studies.run_storage import check_storage_path
from headwise.studies.scheduler import AddRuns
from headwise.studies.storage import connect, sqlite_url
from headwise.studies.study_dir import TOKENS, StudyDir, absolute_storage_path
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
        storage_path: str | None = None,
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
            storage_path: the path or URL to which runs are copied; by default all machines share the directory.
            keep_models: keep all trained models; otherwise only those of the first seed.
            maximize: whether a higher metric is better.
            metadata: more values to store with the study.

        Raises:
            UserError: the directory is not empty, or the database cannot be reached.
        """
        study_dir = StudyDir.create(out_dir, kind, storage, storage_path)  # an error before the lock creates it
        if study_dir.storage_path is not None:
            check_storage_path(study_dir.storage_path)
        with lock_output(out_dir, is_directory=True):
            return cls._create_locked(study_dir, runs, storage, keep_models, maximize, metadata)

    @classmethod
    def _create_locked(
        cls,
        study_dir: StudyDir,
        runs: Sequence[Run],
        storage: str | None,
        keep_models: bool,
        maximize: bool,
        metadata: dict[str, Any],
    ) -> "Study":
        StudyDir.create(study_dir.path, study_dir.kind)  # another process may have created a study
        url = storage or sqlite_url(study_dir.path)
        common_metadata = {
            "kind": study_dir.kind,
            "study_dir": str(study_dir.path.absolute()),
            "keep_models_of_seed": None if keep_models else min(run.seed for run in runs),
        }
        trials = Trials.create(connect(url), study_dir.name, common_metadata | metadata, maximize=maximize)
        trials.enqueue(runs)
        study_dir.write()  # last: the study is complete once study.yaml exists
        return cls(study_dir, study_dir.open_trials(url), url)

    @classmethod
    def open(cls, out_dir: Path, storage: str | None = None) -> "Study":
        """Open a study to read it.

        Args:
            out_dir: the study's directory.
            storage: the database's URL, if it needs a password or has changed.

        Raises:
            UserError: the directory contains no study, or its database cannot be opened.
        """
        study_dir = StudyDir.read(out_dir)
        url = study_dir.database_url(storage)
        return cls(study_dir, study_dir.open_trials(url), url)

    @classmethod
    def resume(
        cls,
        out_dir: Path,
        *,
        storage: str | None = None,
        storage_path: str | None = None,
        seeds: int | None = None,
        kinds: Collection[str] = (),
    ) -> "Study":
        """Open a study to finish interrupted runs or retry failed runs.

        Args:
            out_dir: the study's directory.
            storage: the database's URL, if it needs a password or has changed.
            storage_path: the path or URL to which runs are copied; it cannot change.
            seeds: the total number of seeds, to add seeds.
            kinds: the kinds of study that are accepted; by default all.

        Raises:
            UserError: the directory contains no study of these kinds, the study has more seeds, or a command runs it.
        """
        study_dir = StudyDir.read(out_dir)
        if kinds and study_dir.kind not in kinds:
            raise UserError(
                f"--resume: {out_dir} contains a study of the kind {study_dir.kind}, expected {' or '.join(kinds)}"
            )
        if storage_path is not None and absolute_storage_path(storage_path) != study_dir.storage_path:
            where = study_dir.storage_path or "its directory"
            raise UserError(f"--storage-path {storage_path}: the study in {out_dir} keeps its runs in {where}")
        url = study_dir.database_url(storage)
        with lock_output(out_dir, is_directory=True):
            return cls._resume_locked(study_dir, url, seeds)

    @classmethod
    def _resume_locked(cls, study_dir: StudyDir, url: str, seeds: int | None) -> "Study":
        study = cls(study_dir, study_dir.open_trials(url), url)
        runs = [status.run for status in study.trials.statuses()]
        if seeds is not None:
            old_seeds = sorted({run.seed for run in runs})
            if seeds < len(old_seeds):
                raise UserError(f"--seeds {seeds}: the study in {study_dir.path} already has {len(old_seeds)} seeds")
            runs += plan_more_seeds(runs, range(old_seeds[0], old_seeds[0] + seeds))
        study.trials.release_running()  # of a command that died
        study.trials.enqueue(runs, retry_failed=True)
        return study

    def run(self, resources: Resources, add_runs: AddRuns | None = None) -> None:
        """Run all waiting runs, on this machine or on a cluster.

        Args:
            resources: the resources that the study may use.
            add_runs: adds runs that depend on the results of others, see `headwise.studies.scheduler`.

        Raises:
            KeyboardInterrupt: the study was stopped; it can be resumed.
            UserError: another command runs the study, or the cluster cannot be used.
        """
        with lock_output(self.study_dir.path, is_directory=True):
            try:
                if resources.cluster is None:
                    run_workers(self.study_dir, self.trials, resources, self.url, add_runs=add_runs)
                else:
                    run_tasks(self.study_dir, self.trials, resources, self.url, add_runs)
            finally:
                shutil.rmtree(self.study_dir.path / TOKENS, ignore_errors=True)

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
            raise UserError(f"{path}: not found; all machines must share the study's directory, or use --storage-path")
        metrics = read_json(path)
        if not is_valid_metrics(metrics):
            raise UserError(f"{path}: not written by headwise, or damaged; repeat the run, or delete it from the study")
        return Result(run.task, run.method, run.seed, path.parent, metrics)


def is_valid_metrics(metrics: Any) -> bool:
    """Return whether the contents of a metrics.json have what reports use, with the right types."""
    try:
        values = [split[metrics["primary_metric"]] for split in metrics["metrics"].values()]
        names = [metrics["task"], metrics["label_type"], *metrics.get("labels", ())]
        baselines = [scores for split in metrics.get("baselines", {}).values() for scores in split.values()]
        numbers = [*values, metrics["train_seconds"], *metrics.get("standard_error", {}).values()]
        numbers += [x for scores in baselines for x in scores.values() if x is not None]
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
