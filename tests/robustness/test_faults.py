"""Faults in training: what broke, where and on which rows, in one line; and what fits where memory does not suffice."""

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


def refused(headwise: Headwise, *args: object) -> str:
    code, _, told = headwise("train", *args)
    assert code == 2, told
    assert "Traceback" not in told
    return told.strip().splitlines()[-1]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_loss_that_is_no_number_names_its_rows(
    tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    texts = list(rows(100))
    texts[7] = ("a strange film", "positive")
    data = write(tmp_path / "train.csv", ("text", "label"), texts)
    dev = write(tmp_path / "dev.csv", ("text", "label"), list(rows(20)))
    kept, steps = TextTrainer.compute_loss, []

    def broken(self: TextTrainer, model: Any, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        found = kept(self, model, inputs, *args, **kwargs)
        rarest = model.config.vocab_size - 1
        if not model.training or not (inputs["input_ids"] == rarest).any():
            return found
        steps.append(self.state.global_step + 1)
        return found * torch.nan

    monkeypatch.setattr(TextTrainer, "compute_loss", broken)
    files = ("--train", data, "--dev", dev, "--out", tmp_path / "run", "--seed", seed)
    line = refused(headwise, *files, *SMALL)
    assert line.startswith(f"headwise: step {steps[0]}: the task's loss is nan, on rows ")
    named = [int(row) for row in line.partition("on rows ")[2].partition(" (from 0)")[0].split(", ")]
    assert 7 in named
    assert 14 <= len(named) <= 16, "its batch, and no other"
    assert last_checkpoint(tmp_path / "run") is None, "no model that broke is kept"


def test_a_gradient_that_is_no_number(
    reviews: Path, tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = TextTrainer.compute_loss

    def steep(self: TextTrainer, model: Any, *args: Any, **kwargs: Any) -> Any:
        found = kept(self, model, *args, **kwargs)
        if not model.training or self.state.global_step != 2:
            return found
        return found + 0 * (0 * next(model.parameters()).sum()).sqrt()  # 0, with a slope of 0 · ∞

    monkeypatch.setattr(TextTrainer, "compute_loss", steep)
    line = refused(headwise, "--data", reviews, "--out", tmp_path / "run", *SMALL)
    assert line.startswith("headwise: step 3: the gradient is nan, on rows ")


def test_the_guide_that_broke_is_named(
    reviews: Path, bert: Path, tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, calls = MapDiscrimination.__call__, []

    def broken(self: MapDiscrimination, observed: Any) -> Tensor:
        calls.append(1)
        return kept(self, observed) * (torch.inf if len(calls) == 5 else 1.0)

    monkeypatch.setattr(MapDiscrimination, "__call__", broken)
    options = ("--model", bert, "--guides", "mdg=0.1", "first=0.1", "--batch-size", 16, "--epochs", 2)
    line = refused(headwise, "--data", reviews, "--out", tmp_path / "run", *options)
    assert ": the guide MapDiscrimination is " in line


def test_too_little_memory_says_what_fits(reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, tried = TextTrainer.forward_backward, []

    def small(self: TextTrainer, model: Any, inputs: dict[str, Tensor], *args: Any) -> Tensor:
        tried.append(tuple(inputs["input_ids"].shape))
        if tried[-1][0] > 5:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        return kept(self, model, inputs, *args)

    monkeypatch.setattr(TextTrainer, "forward_backward", small)
    settings = TextConfig(data=(str(reviews),), heads=2, head_dim=8, word_dim=16, batch_size=16, epochs=1)
    with pytest.raises(UserError, match=r"^step 1: out of memory with batches of 16 rows; --batch-size 4 fits"):
        train(settings, tmp_path / "run")
    assert [size for size, _ in tried] == [16, 8, 4]
    longest = max(len(text.split()) for text, _ in rows(160))
    assert tried[-1][1] == longest, "tried out with the longest texts"


def test_memory_that_suffices_for_nothing(reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: Any) -> Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")

    monkeypatch.setattr(TextTrainer, "forward_backward", none)
    settings = TextConfig(data=(str(reviews),), heads=2, head_dim=8, word_dim=16, batch_size=16, epochs=1)
    with pytest.raises(UserError, match=r"batches of 16 rows, and of 1: a smaller model or shorter texts"):
        train(settings, tmp_path / "run")


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A disk of its own, where mounting is allowed."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options: str) -> None:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, check=False)
        if done.returncode:
            pytest.skip("nothing can be mounted here")

    mount("size=120k")
    try:
        yield place, mount
    finally:
        subprocess.run(["umount", "--lazy", place], check=False)


def test_a_full_disk_and_a_read_only_one(reviews: Path, small_disk: Any, headwise: Headwise) -> None:
    place, mount = small_disk
    whole, out = place / "whole", place / "run"
    (place / "mine.txt").write_text("precious")
    line = refused(headwise, "--data", reviews, "--out", out, *SMALL)
    assert "no room to write" in line or "No space left" in line
    mount("remount,size=4m")
    assert headwise("train", "--resume", "--out", out)[0] == 0, "with more room it goes on"
    assert headwise("train", "--data", reviews, "--out", whole, *SMALL)[0] == 0
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    mount("remount,ro,size=4m")
    for args in (("--out", place / "new"), ("--out", whole, "--force")):
        line = refused(headwise, "--data", reviews, *args, *SMALL)
        assert "Read-only file system" in line
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
