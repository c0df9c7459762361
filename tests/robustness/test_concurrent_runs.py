"""Two processes that are given one output directory: one works, the other is refused and changes nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headwise.locks import lock_output
from tests.training.conftest import Headwise

OPTIONS = ("--heads", "2", "--head-dim", "8", "--word-dim", "16", "--epochs", "2", "--batch-size", "16")


def start(*args: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "headwise", *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )


@pytest.mark.long
def test_two_trainings_started_at_once(reviews: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    processes = {
        seed: start("train", "--data", reviews, *OPTIONS, "--seed", seed, "--force", "--out", out) for seed in (0, 7)
    }
    outputs = {seed: process.communicate() for seed, process in processes.items()}
    codes = {seed: process.returncode for seed, process in processes.items()}
    finished = [seed for seed, code in codes.items() if code == 0]
    for seed, code in codes.items():
        if code:
            message = outputs[seed][1].strip().splitlines()[-1]
            assert message.startswith(f"headwise: error: {out}: in use by process ")
    assert finished  # both, one after the other, if one started after the other had finished
    seed_of_run = next(line for line in (out / "run.yaml").read_text().splitlines() if line.startswith("seed: "))
    metrics = json.loads((out / "metrics.json").read_text())
    alone = start("train", "--data", reviews, *OPTIONS, "--seed", seed_of_run[6:], "--out", tmp_path / "alone")
    assert alone.wait() == 0
    assert json.loads((tmp_path / "alone" / "metrics.json").read_text())["metrics"] == metrics["metrics"]


@pytest.mark.parametrize("option", ["--force", "--resume"])
def test_force_and_resume_respect_the_lock(option: str, reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    out = tmp_path / "run"
    assert headwise("train", "--data", reviews, *OPTIONS, "--out", out)[0] == 0
    if option == "--resume":
        (out / "metrics.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    with lock_output(out, is_directory=True):
        args = ("--data", reviews, *OPTIONS) if option == "--force" else ()
        code, _, err = headwise("train", *args, option, "--out", out)
    assert code == 2
    assert "in use by" in err
    assert err.count("\n") == 1
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == before


def test_other_outputs_are_locked(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    run = tmp_path / "run"
    assert headwise("train", "--data", reviews, *OPTIONS, "--out", run)[0] == 0
    commands = {
        tmp_path / "metrics.json": ("evaluate", run),
        tmp_path / "labelled.csv": ("predict", run, reviews),
        tmp_path / "page.html": ("inspect", run, "--text", "a good film"),
        tmp_path / "inspected": ("inspect", run, "--text", "a good film"),
        tmp_path / "study": ("compare", "--data", reviews, "--methods", "plain", *OPTIONS, "--seeds", "1"),
    }
    for out, command in commands.items():
        is_directory = out.suffix == ""
        with lock_output(out, is_directory=is_directory):
            code, _, err = headwise(*command, "--out", out)
        assert code == 2, command
        assert f"{out}: in use by" in err
        assert not out.exists()
