"""Fused models whose weights accelerate distributes or offloads. Its hooks replace the method `forward` of modules."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import headwise as hw
from tests.integrations.fusion.cases import CASES, build_model
from tests.integrations.fusion.test_families import TOLERANCE

accelerate = pytest.importorskip("accelerate")

#: One case of each kind of positions, and all in the long form.
SHORT_CASES = ("t5", "xlnet", "mpnet", "layoutlmv3", "deberta", "deberta-v3", "sew-d", "wav2vec2-bert", "parakeet")
each_case = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHORT_CASES else pytest.mark.long) for name in CASES]
)


def add_hooks(model: nn.Module, _: Path) -> None:
    """Add hooks that do nothing to all modules."""
    for module in list(model.modules()):
        accelerate.hooks.add_hook_to_module(module, accelerate.hooks.ModelHook())


def offload_to_cpu(model: nn.Module, _: Path) -> None:
    accelerate.cpu_offload(model, execution_device="cpu", offload_buffers=True)


def offload_to_disk(model: nn.Module, directory: Path) -> None:
    accelerate.disk_offload(model, str(directory), execution_device="cpu")


def dispatch(model: nn.Module, directory: Path) -> None:
    """Offload the largest part of a model and no other, as `from_pretrained(…, device_map=…)` does."""
    sizes = {name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children()}
    device_map = dict.fromkeys([*sizes, *(name for name, _ in model.named_parameters(recurse=False))], "cpu")
    device_map[max(sizes, key=lambda name: sizes[name])] = "disk"
    accelerate.dispatch_model(model, device_map, main_device="cpu", offload_dir=str(directory), force_hooks=True)


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """Return a list of the fused layers that have run, which grows."""
    calls: list[nn.Module] = []
    attention = sys.modules["headwise.integrations.fusion.attention"]
    run_call = attention.run_call

    def count(layer: nn.Module, *args: Any, **options: Any) -> Any:
        calls.append(layer)
        return run_call(layer, *args, **options)

    monkeypatch.setattr(attention, "run_call", count)
    return calls


@pytest.mark.short_form("pairs")
@each_case
@pytest.mark.parametrize("is_fused_first", [False, True], ids=["hooks-first", "fused-first"])
@pytest.mark.parametrize("add", [add_hooks, offload_to_cpu, offload_to_disk, dispatch])
def test_layers_with_hooks_of_accelerate_are_fused(
    name: str,
    add: Callable[[nn.Module, Path], None],
    is_fused_first: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = CASES[name]
    model = build_model(case).eval()
    real, batch = case.batch(model.config, 9, True)
    with torch.no_grad():
        expected = model(**batch)[0][real]
    if is_fused_first:
        hw.fuse_attention(model, verbose=False)
    add(model, tmp_path)
    hw.fuse_attention(model, verbose=False)
    (layers,) = hw.fusion_report(model).layers
    calls = count_calls(monkeypatch)
    with torch.no_grad():
        for _ in range(2):  # weights are loaded in every pass
            torch.testing.assert_close(model(**batch)[0][real], expected, **TOLERANCE)
    assert len(calls) == 2 * len(layers.names)


@pytest.mark.parametrize("name", SHORT_CASES)
def test_layers_with_hooks_are_restored(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    model = build_model(case).eval()
    real, batch = case.batch(model.config, 9, True)
    with torch.no_grad():
        expected = model(**batch)[0][real]
        add_hooks(model, tmp_path)
        hw.fuse_attention(model, verbose=False)
        calls = count_calls(monkeypatch)
        accelerate.hooks.remove_hook_from_submodules(model)
        hw.unfuse_attention(model)
        assert torch.equal(model(**batch)[0][real], expected)
    assert not calls
