"""Measurements of fused models: what runs out of memory is recorded and does not end the others."""

from typing import Any

import pytest
import torch

from headwise.bench import measure
from headwise.bench.fusion import FUSED, ORIGINAL, measure_shape, random_texts
from tests.integrations.fusion.cases import CASES, build_model


def build_t5() -> Any:
    return build_model(CASES["t5-encoder"]).float()


def fail_if_fused(model: Any, batch_size: int, length: int) -> dict[str, Any]:
    if "Fused" in str(model):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB.")
    return random_texts(model, batch_size, length)


@pytest.mark.usefixtures("cheap_measurements")
def test_out_of_memory_is_recorded() -> None:
    original, fused = measure_shape(
        build_t5,
        fail_if_fused,
        batch_size=1,
        length=8,
        direction="forward",
        repeats=1,
        implementations=(ORIGINAL, FUSED),
    )
    assert (fused.ms, fused.peak_mib, fused.note) == (None, None, "out of memory")
    assert original.ms is not None
    assert original.note == ""


def test_out_of_memory_while_timing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def time_interleaved(*_: object) -> dict[str, list[float]]:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(measure, "time_interleaved", time_interleaved)
    monkeypatch.setattr(measure, "cpu_peak_mib", lambda *_: 1.0)
    (original,) = measure_shape(
        build_t5,
        random_texts,
        batch_size=1,
        length=8,
        direction="forward",
        repeats=1,
        implementations=(ORIGINAL,),
    )
    assert (original.ms, original.peak_mib, original.note) == (None, 1.0, "out of memory")


def test_speedups_have_quartiles(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = {ORIGINAL: [2.0, 3.0, 8.0], FUSED: [1.0, 1.0, 2.0]}
    monkeypatch.setattr(measure, "time_interleaved", lambda *_: samples)
    monkeypatch.setattr(measure, "cpu_peak_mib", lambda *_: 1.0)
    original, fused = measure_shape(
        build_t5,
        random_texts,
        batch_size=1,
        length=8,
        direction="forward",
        repeats=3,
        implementations=(ORIGINAL, FUSED),
    )
    assert (original.speedup_low, original.speedup, original.speedup_high) == (1.0, 1.0, 1.0)
    assert (fused.speedup_low, fused.speedup, fused.speedup_high) == (2.5, 3.0, 3.5)
