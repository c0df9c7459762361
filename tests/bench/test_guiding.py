"""`headwise bench guiding`: all rivals train the same model."""

from pathlib import Path

import pytest
import torch

from headwise.bench.guiding import BASELINE, RIVALS, Case, Settings, prepare, run
from headwise.cli import main

SMALL = Settings(shapes=("2x9",), layers=2, heads=2, device="cpu", repeats=1)


def test_guides_on_maps_and_ours_are_the_same_loss() -> None:
    losses = {}
    for rival in RIVALS:
        work = prepare(Case(SMALL, rival, 2, 9))
        torch.manual_seed(1)
        losses[rival] = float(work())
    assert losses[RIVALS[1]] != losses[BASELINE]
    assert losses[RIVALS[1]] == pytest.approx(losses[RIVALS[2]], abs=2e-2)  # dropout is drawn differently


def test_every_rival_is_measured() -> None:
    told: list[str] = []
    rows = list(run(SMALL, told.append))
    assert [row.rival for row in rows] == list(RIVALS)
    assert all(row.ratio is not None and row.ratio > 0 for row in rows)
    assert rows[0].ratio == 1.0
    assert len(told) == len(RIVALS) + 1


def test_the_report_is_written(tmp_path: Path) -> None:
    small = ["--shapes", "2x9", "--layers", "1", "--heads", "1", "--repeats", "1", "--device", "cpu"]
    assert main(["bench", "guiding", *small, "--out", str(tmp_path)]) == 0
    assert {file.name for file in tmp_path.iterdir()} == {"guiding.csv", "guiding.md", "guiding.png"}
