"""Pretrained models whose weights are a `pytorch_model.bin`."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.training.conftest import Headwise


class Trap:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.fixture
def bin_bert(bert: Path, tmp_path: Path) -> Path:
    """The small BERT, saved as older models are."""
    directory = tmp_path / "old-bert"
    shutil.copytree(bert, directory)
    weights = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    torch.save(weights, directory / "pytorch_model.bin")
    return directory


@pytest.mark.parametrize("legacy", [False, pytest.param(True, marks=pytest.mark.long)])
def test_models_without_safetensors_are_loaded_after_a_warning(
    legacy: bool, bin_bert: Path, bert: Path, reviews: Path, tmp_path: Path, headwise: Headwise
) -> None:
    path = bin_bert / "pytorch_model.bin"
    torch.save(torch.load(path, weights_only=True), path, _use_new_zipfile_serialization=not legacy)
    states = []
    for model in (bert, bin_bert):
        args = ("--data", reviews, "--model", model, "--epochs", 0.1, "--learning-rate", 1e-12, "--batch-size", 64)
        code, _, error = headwise("train", *args, "--out", tmp_path / model.name / "run")
        assert code == 0, error
        assert ("has no safetensors file" in error) == (model == bin_bert)
        states.append(load_file(tmp_path / model.name / "run" / "model.safetensors"))
    for name, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][name])


def test_nothing_is_unpickled(bin_bert: Path, reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    torch.save({"weight": Trap(tmp_path / "sprung")}, bin_bert / "pytorch_model.bin")
    code, _, error = headwise("train", "--data", reviews, "--model", bin_bert, "--out", tmp_path / "run")
    assert (code, (tmp_path / "sprung").exists()) == (2, False)
    assert str(bin_bert) in error.splitlines()[-1]
    assert "contains objects that are not tensors" in error.splitlines()[-1]
    assert "set to `False`" not in error, "the advice of torch"


def test_a_configuration_that_is_larger_than_the_file_is_refused(
    bin_bert: Path, reviews: Path, tmp_path: Path, headwise: Headwise
) -> None:
    path = bin_bert / "config.json"
    path.write_text(path.read_text().replace('"hidden_size": 16', '"hidden_size": 16000'))
    code, _, error = headwise("train", "--data", reviews, "--model", bin_bert, "--out", tmp_path / "run")
    assert (code, "the file is damaged or belongs to another model" in error) == (2, True)
