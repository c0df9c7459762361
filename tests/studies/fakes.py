"""Runs that take no time. The module imports little, so that worker processes of tests start quickly."""

import json
from pathlib import Path
from typing import Any

from headwise.training.core.config import RunConfig


def fake_train(config: RunConfig, run_dir: Path, resume: bool = False) -> dict[str, Any]:
    """Write the files of a finished run whose test accuracy is seed / 10."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "run.yaml").write_text(config.to_yaml())
    splits = {"dev": {"accuracy": 0.5}, "test": {"accuracy": config.seed / 10}}
    metrics = {
        "task": "reviews",
        "label_type": "classification",
        "labels": ["negative", "positive"],
        "primary_metric": "accuracy",
        "metrics": splits,
        "train_seconds": 1.0,
    }
    (run_dir / "metrics.json").write_text(json.dumps(metrics))
    return metrics
