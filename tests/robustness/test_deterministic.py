"""The same command twice gives the same figures: on the CPU always, on a GPU with --deterministic."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from tests.training.conftest import Headwise

OURS = ("--heads", 4, "--head-dim", 8, "--word-dim", 32, "--layers", 2)


def outcome(run: Path) -> Any:
    metrics = json.loads((run / "metrics.json").read_text())
    losses = [log["loss"] for log in metrics["history"] if "loss" in log]
    weights = (run / "model.safetensors").read_bytes()
    return metrics["metrics"], losses, weights, pq.read_table(run / "predictions.parquet").to_pydict()


@pytest.mark.parametrize("model", [pytest.param("rpr", marks=pytest.mark.long), "retrofitted and guided"])
def test_the_same_command_twice(reviews: Path, bert: Path, tmp_path: Path, headwise: Headwise, model: str) -> None:
    label_type = ("--model", bert, "--retrofit", "distance-aware", "--guides", "mdg", "pdg")
    options = label_type if "guided" in model else ("--model", model, *OURS)
    common = ("--data", reviews, "--epochs", 2, "--batch-size", 16, "--deterministic")
    for name in ("first", "second"):
        code, _, said = headwise("train", *common, *options, "--out", tmp_path / name)
        assert code == 0, said
    assert outcome(tmp_path / "first") == outcome(tmp_path / "second")
    assert "deterministic: true" in (tmp_path / "first" / "run.yaml").read_text()
    assert not torch.are_deterministic_algorithms_enabled(), "it is over when the run is"
