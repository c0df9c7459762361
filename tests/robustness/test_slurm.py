"""The scripts of the page on clusters, on a Slurm cluster of two nodes."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import headwise
from tests.robustness.launcher import Launcher, free_port
from tests.robustness.slurm import slurm_cluster, why_unavailable
from tests.robustness.test_distributed import SMALL, predictions
from tests.training.conftest import rows, write

SCRIPTS = Path(__file__).parents[2] / "examples" / "slurm"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_unavailable()), reason=why_unavailable())]


def test_scripts_train_resume_and_predict(launcher: Launcher, tmp_path: Path) -> None:
    data = write(tmp_path / "reviews.csv", ("text", "label"), list(rows(80)))
    alone, out = tmp_path / "alone", tmp_path / "run"
    options = ("--data", data, "--epochs", 2, *SMALL)
    assert launcher.run("train", *options, "--out", alone) == 0, launcher.said()
    (tmp_path / "slurm").mkdir()
    variables = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(headwise.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(tmp_path / "cache"),
        "PORT": str(free_port()),
    }
    with slurm_cluster(tmp_path / "slurm", **variables) as slurm:
        code, said = slurm.sbatch(SCRIPTS / "train.sh", out, *options)
        assert code == 0, said
        assert said.count("train/dev/test") == 1, "one process reports"
        np.testing.assert_allclose(predictions(out)["scores"], predictions(alone)["scores"], atol=1e-4)
        (out / "metrics.json").unlink()  # as if the job had been stopped before its end
        code, said = slurm.sbatch(SCRIPTS / "train.sh", out, *options)
        assert code == 0, said
        assert (out / "metrics.json").is_file()
        arguments = (data, "--out", tmp_path / "labelled.csv", "--part-rows", 40)
        code, said = slurm.sbatch(SCRIPTS / "predict.sh", out, *arguments)
        assert code == 0, said
    assert len((tmp_path / "labelled.csv").read_text().splitlines()) == 81
