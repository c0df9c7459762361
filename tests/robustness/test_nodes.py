"""One run on two nodes: training, a node that dies, evaluation and prediction."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from headwise.training.core.run_dir import last_checkpoint
from tests.robustness.launcher import Launcher
from tests.robustness.nodes import TIMEOUT, Nodes
from tests.robustness.test_distributed import SMALL, predictions
from tests.training.conftest import rows, write

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data") / "reviews.csv", ("text", "label"), list(rows(171)))


def run_on_nodes(directory: Path, *arguments: object) -> None:
    nodes = Nodes(arguments, directory)
    assert nodes.wait() == [0, 0], nodes.said()


def test_node_that_dies_loses_no_work(launcher: Launcher, data: Path, tmp_path: Path) -> None:
    """A run whose second node died is resumed on two nodes and ends like a run of one process that never stopped."""
    alone, out = tmp_path / "alone", tmp_path / "run"
    arguments = ("train", "--data", data, "--epochs", 20, "--early-stopping-patience", 20, *SMALL)
    assert launcher.run(*arguments, "--out", alone) == 0, launcher.said()
    nodes = Nodes((*arguments, "--out", out), tmp_path)
    end = time.monotonic() + TIMEOUT
    while last_checkpoint(out) is None:
        assert all(agent.poll() is None for agent in nodes.agents), nodes.said()
        assert time.monotonic() < end
        time.sleep(0.05)
    nodes.kill_second()
    assert nodes.wait()[0] != 0, "the first node reports that the second one is gone"
    assert not (out / "metrics.json").exists()
    run_on_nodes(tmp_path, "train", "--resume", "--out", out)
    np.testing.assert_allclose(predictions(out)["scores"], predictions(alone)["scores"], atol=1e-3)

    run_on_nodes(tmp_path, "evaluate", out, "--out", tmp_path / "metrics.json", "--part-rows", 5)
    evaluated = json.loads((tmp_path / "metrics.json").read_text())["metrics"]
    assert evaluated == pytest.approx(json.loads((out / "metrics.json").read_text())["metrics"]["test"], abs=1e-6)
    run_on_nodes(tmp_path, "predict", out, data, "--out", tmp_path / "two.csv", "--part-rows", 40)
    code = launcher.run("predict", out, data, "--out", tmp_path / "one.csv", "--part-rows", 40)
    assert code == 0, launcher.said()
    assert (tmp_path / "two.csv").read_text() == (tmp_path / "one.csv").read_text()
