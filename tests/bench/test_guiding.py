"""`headwise bench guiding`: all implementations train the same model, and the report is complete."""

from pathlib import Path

import pytest
import torch

from headwise.bench.guiding import IMPLEMENTATIONS, Case, GuidingBenchConfig, build_step, run
from headwise.cli import main

SMALL = GuidingBenchConfig(shapes=("2x9",), layers=2, heads=2, device="cpu", repeats=1)


def test_implementations_give_the_same_loss() -> None:
    losses = {}
    for implementation in IMPLEMENTATIONS:
        step = build_step(Case(SMALL, implementation, 2, 9))
        torch.manual_seed(1)
        losses[implementation] = float(step())
    unguided, headwise, eager_maps, *retrofitted = (losses[implementation] for implementation in IMPLEMENTATIONS)
    assert headwise != unguided
    assert headwise == pytest.approx(eager_maps, abs=2e-2)  # dropout masks differ
    assert retrofitted == pytest.approx([unguided] * 2, abs=2e-2)  # schemes change nothing before they are trained


@pytest.mark.usefixtures("cheap_measurements")
def test_every_implementation_is_measured() -> None:
    steps: list[str] = []
    measurements = list(run(SMALL, steps.append))
    assert [x.implementation for x in measurements] == list(IMPLEMENTATIONS)
    assert all(x.ratio is not None and x.ratio > 0 for x in measurements)
    assert measurements[0].ratio == 1.0
    assert len(steps) == len(IMPLEMENTATIONS) + 1


@pytest.mark.usefixtures("cheap_measurements")
def test_report_is_written(tmp_path: Path) -> None:
    options = ["--shapes", "2x9", "--layers", "1", "--heads", "1", "--repeats", "1", "--device", "cpu"]
    assert main(["bench", "guiding", *options, "--out", str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"guiding.csv", "guiding.md", "guiding.png"}
