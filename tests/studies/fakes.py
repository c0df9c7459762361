"""Runs that take no time. The module imports little, so that worker processes of tests start quickly."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwise.studies.scheduler import AddRuns, run_study
from headwise.studies.study import Study
from headwise.studies.trials import ClaimedTrial
from headwise.studies.worker import Outcome, TrainFunction, execute
from headwise.training.core.config import RunConfig
from headwise.training.core.run_dir import atomic_write


def fake_train(config: RunConfig, run_dir: Path, resume: bool = False) -> dict[str, Any]:
    """Write the files of a finished run whose test accuracy is seed / 10."""
    return write_run(run_dir, config, {"accuracy": config.seed / 10})


def write_run(run_dir: Path, config: RunConfig, test_metrics: dict[str, float]) -> dict[str, Any]:
    """Write the files of a finished run."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "run.yaml").write_text(config.to_yaml())
    splits = {"dev": {"accuracy": 0.5}, "test": test_metrics}
    metrics = {
        "task": "reviews",
        "label_type": "classification",
        "labels": ["negative", "positive"],
        "primary_metric": "accuracy",
        "metrics": splits,
        "train_seconds": 1.0,
    }
    atomic_write(run_dir / "metrics.json", json.dumps(metrics))
    return metrics


class ThisProcess:
    """An engine that executes one run after another in this process."""

    def __init__(self, study: Study, train: TrainFunction) -> None:
        self.study, self.train, self.outcomes = study, train, list[Outcome]()

    def __enter__(self) -> "ThisProcess":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def has_capacity(self, group: str, num_to_start: int) -> bool:
        return not self.outcomes

    def submit(self, claimed: ClaimedTrial) -> None:
        trials = self.study.trials if self.study.study_dir.kind == "search" else None
        self.outcomes.append(execute(claimed, self.study.study_dir, self.train, trials, self.study.metadata))

    def wait(self, seconds: float) -> list[Outcome]:
        outcomes, self.outcomes = self.outcomes, []
        return outcomes

    def places(self) -> Mapping[int, str]:
        return {}


def work(study: Study, train: TrainFunction, add_runs: AddRuns | None = None) -> None:
    """Execute all runs of a study in this process."""
    run_study(study.study_dir, study.trials, ThisProcess(study, train), add_runs)
