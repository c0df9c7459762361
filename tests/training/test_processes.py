"""Several processes, and one that is killed: the figures are those of one process that ran through."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import headwise
from headwise.training import Settings, train
from headwise.training.folder import last_checkpoint
from tests.training.conftest import rows, write

SMALL = (
    "--heads",
    "2",
    "--head-dim",
    "8",
    "--word-dim",
    "16",
    "--batch-size",
    "16",
    "--dropout",
    "0",
    "--patience",
    "9",
)


def settings(data: Path, **others: Any) -> Settings:
    return Settings(
        data=(str(data),), heads=2, head_dim=8, word_dim=16, batch_size=16, dropout=0.0, patience=9, **others
    )


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    source = str(Path(headwise.__file__).parents[1])
    return os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1", "HF_DATASETS_CACHE": str(tmp_path / "cache")}


def test_two_processes_do_the_work_of_one(tmp_path: Path, environment: dict[str, str]) -> None:
    data = write(tmp_path / "reviews.csv", ("text", "label"), list(rows(171)))  # 137/17/17: no batch is even
    one, two = train(settings(data, epochs=2), tmp_path / "one"), tmp_path / "two"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "headwise"]
    arguments = ["train", "--data", str(data), "--out", str(two), "--epochs", "2", *SMALL]
    done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("train/dev/test 137/17/17") == 1, "one process speaks"
    kept, found = (pq.read_table(folder / "predictions.parquet").to_pydict() for folder in (one.folder, two))
    assert found["split"] == ["dev"] * 17 + ["test"] * 17
    assert found["row"] == kept["row"]
    np.testing.assert_allclose(found["scores"], kept["scores"], atol=1e-4)
    assert not (two / ".tokens").exists()


def test_a_killed_run_goes_on(tmp_path: Path, environment: dict[str, str]) -> None:
    """All in processes of their own: the number of threads, which tests may change, changes the last bits."""
    data = write(tmp_path / "reviews.csv", ("text", "label"), list(rows(120)))
    whole, out = tmp_path / "whole", tmp_path / "run"

    def start(*arguments: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "headwise", "train", *map(str, arguments)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def finished(process: subprocess.Popen[bytes]) -> None:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said

    finished(start("--data", data, "--out", whole, "--epochs", 15, *SMALL))
    process = start("--data", data, "--out", out, "--epochs", 15, *SMALL)
    deadline = time.monotonic() + 120
    while last_checkpoint(out) is None:
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (out / "metrics.json").exists()
    finished(start("--out", out, "--resume"))
    figures = [json.loads((folder / "metrics.json").read_text())["figures"] for folder in (whole, out)]
    assert figures[0] == figures[1]
    tables = [pq.read_table(folder / "predictions.parquet") for folder in (whole, out)]
    assert tables[0].equals(tables[1])
