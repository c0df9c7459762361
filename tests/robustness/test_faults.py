"""Failures during training: losses that are not finite, exhausted memory and full disks."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.errors import UserError
from headwise.guides import MapDiscrimination
from headwise.training import TextConfig, train
from headwise.training.core.run_dir import last_checkpoint
from headwise.training.text.trainer import TextTrainer
from tests.training.conftest import Headwise, rows, write

SMALL = ("--heads", 2, "--head-dim", 8, "--word-dim", 16, "--batch-size", 16, "--epochs", 3)


def error_line(headwise: Headwise, *args: object) -> str:
    """Return the error message of `headwise train`."""
    code, _, stderr = headwise("train", *args)
    assert code == 2, stderr
    assert "Traceback" not in stderr
    return stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("seed", [0, 1])
def test_rows_of_a_nan_loss_are_named(
    tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    texts = list(rows(100))
    texts[7] = ("a strange film", "positive")
    data = write(tmp_path / "train.csv", ("text", "label"), texts)
    dev = write(tmp_path / "dev.csv", ("text", "label"), list(rows(20)))
    compute_loss, steps = TextTrainer.compute_loss, []

    def broken(self: TextTrainer, model: Any, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        loss = compute_loss(self, model, inputs, *args, **kwargs)
        rarest = model.config.vocab_size - 1
        if not model.training or not (inputs["input_ids"] == rarest).any():
            return loss
        steps.append(self.state.global_step + 1)
        return loss * torch.nan

    monkeypatch.setattr(TextTrainer, "compute_loss", broken)
    files = ("--train", data, "--dev", dev, "--out", tmp_path / "run", "--seed", seed)
    line = error_line(headwise, *files, *SMALL)
    assert f"step {steps[0]}: the task's loss is nan, on rows " in line
    named = [int(row) for row in line.partition("on rows ")[2].partition(" (from 0)")[0].split(", ")]
    assert 7 in named
    assert 14 <= len(named) <= 16, "the rows of one batch"
    assert last_checkpoint(tmp_path / "run") is None, "a broken model was saved"


def test_nan_gradient(reviews: Path, tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch) -> None:
    compute_loss = TextTrainer.compute_loss

    def steep(self: TextTrainer, model: Any, *args: Any, **kwargs: Any) -> Any:
        loss = compute_loss(self, model, *args, **kwargs)
        if not model.training or self.state.global_step != 2:
            return loss
        return loss + 0 * (0 * next(model.parameters()).sum()).sqrt()  # 0 with a gradient of 0 · ∞

    monkeypatch.setattr(TextTrainer, "compute_loss", steep)
    line = error_line(headwise, "--data", reviews, "--out", tmp_path / "run", *SMALL)
    assert "step 3: the gradient is nan, on rows " in line


def test_infinite_guide_is_named(
    reviews: Path, bert: Path, tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, calls = MapDiscrimination.__call__, []

    def broken(self: MapDiscrimination, observed: Any) -> Tensor:
        calls.append(1)
        return call(self, observed) * (torch.inf if len(calls) == 5 else 1.0)

    monkeypatch.setattr(MapDiscrimination, "__call__", broken)
    options = ("--model", bert, "--guides", "mdg=0.1", "first=0.1", "--batch-size", 16, "--epochs", 2)
    line = error_line(headwise, "--data", reviews, "--out", tmp_path / "run", *options)
    assert ": the guide MapDiscrimination is " in line


def test_out_of_memory_suggests_a_batch_size(reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward_backward, shapes = TextTrainer.forward_backward, []

    def small(self: TextTrainer, model: Any, inputs: dict[str, Tensor], *args: Any) -> Tensor:
        shapes.append(tuple(inputs["input_ids"].shape))
        if shapes[-1][0] > 5:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        return forward_backward(self, model, inputs, *args)

    monkeypatch.setattr(TextTrainer, "forward_backward", small)
    config = TextConfig(data=(str(reviews),), heads=2, head_dim=8, word_dim=16, batch_size=16, epochs=1)
    with pytest.raises(UserError, match=r"^step 1: out of memory with batches of 16 rows; --batch-size 4 fits"):
        train(config, tmp_path / "run")
    assert [size for size, _ in shapes] == [16, 8, 4]
    longest = max(len(text.split()) for text, _ in rows(160))
    assert shapes[-1][1] == longest, "the longest texts are tried"


def test_out_of_memory_with_a_batch_of_one(reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: Any) -> Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")

    monkeypatch.setattr(TextTrainer, "forward_backward", none)
    config = TextConfig(data=(str(reviews),), heads=2, head_dim=8, word_dim=16, batch_size=16, epochs=1)
    with pytest.raises(UserError, match=r"batches of 16 rows, and even with a batch of 1: use a smaller model"):
        train(config, tmp_path / "run")


def test_exhausted_memory_is_one_line(headwise: Headwise, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhaust(arguments: Any) -> int:
        raise MemoryError

    monkeypatch.setattr("headwise.cli.tasks.run", exhaust)
    code, _, stderr = headwise("tasks")
    assert code == 2
    assert stderr.startswith("headwise: error: out of memory; ")
    assert stderr.count("\n") == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A small file system, if mounting is allowed."""
    path = tmp_path / "disk"
    path.mkdir()

    def mount(options: str) -> None:
        process = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], capture_output=True, check=False
        )
        if process.returncode:
            pytest.skip("mounting is not allowed")

    mount("size=120k")
    try:
        yield path, mount
    finally:
        subprocess.run(["umount", "--lazy", path], check=False)


def test_full_and_read_only_disks(reviews: Path, small_disk: Any, headwise: Headwise) -> None:
    disk, mount = small_disk
    finished, out = disk / "finished", disk / "run"
    (disk / "mine.txt").write_text("precious")
    line = error_line(headwise, "--data", reviews, "--out", out, *SMALL)
    assert "no space left" in line.lower()
    mount("remount,size=4m")
    assert headwise("train", "--resume", "--out", out)[0] == 0, "it resumes once there is space"
    assert headwise("train", "--data", reviews, "--out", finished, *SMALL)[0] == 0
    before = {path: path.read_bytes() for path in disk.rglob("*") if path.is_file()}
    mount("remount,ro,size=4m")
    for args in (("--out", disk / "new"), ("--out", finished, "--force")):
        line = error_line(headwise, "--data", reviews, *args, *SMALL)
        assert "Read-only file system" in line
    assert {path: path.read_bytes() for path in disk.rglob("*") if path.is_file()} == before
