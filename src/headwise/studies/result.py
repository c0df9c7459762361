"""What a study hands on: its finished runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Result:
    """A finished run of a study."""

    task: str  # what was learnt: a task's name, or the name of the user's file
    method: str  # as the user named it: "plain", "bert+mdg", …
    seed: int
    folder: Path  # the run's folder: run.yaml, metrics.json, predictions.parquet
    metrics: dict[str, Any]  # metrics.json
