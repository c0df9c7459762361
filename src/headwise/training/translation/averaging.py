"""The mean of several checkpoints, which is often better than each (Vaswani et al. 2017, section 6.1)."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn


def average(model: nn.Module, checkpoints: Path, count: int) -> int:
    """Give a model the mean of the last checkpoints' weights.

    Args:
        model: what to load.
        checkpoints: the folder of `checkpoint-…` folders.
        count: how many, at most.

    Returns:
        How many there were.
    """
    found = sorted(checkpoints.glob("checkpoint-*/trainer_state.json"), key=steps_of)[-count:]
    mean: dict[str, Tensor] = {}
    for number, state in enumerate(found, 1):
        for name, tensor in load_file(state.parent / "model.safetensors").items():
            before = mean.get(name, torch.zeros_like(tensor, dtype=torch.float64))
            mean[name] = before + (tensor.double() - before) / number
    model.load_state_dict(mean)
    return len(found)


def steps_of(state: Path) -> int:
    return int(json.loads(state.read_text())["global_step"])
