"""`headwise bench attention`: implementations compute the same, and reports are complete."""

import csv
import gc
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headwise.bench import attention, measure
from headwise.bench.attention import (
    BASELINE,
    IMPLEMENTATIONS,
    LIMITATIONS,
    MAX_ERRORS,
    AttentionBenchConfig,
    BenchSchemeName,
    Case,
    build_workload,
    compute_errors,
    make_tensors,
)
from headwise.bench.measure import NotMeasurable, shorten_error
from headwise.bench.report import Measurement, plot
from headwise.cli import main
from headwise.errors import UserError
from tests.short_form import choose_size

SMALL = AttentionBenchConfig(lengths=(16,), heads=2, head_dim=8, clip=3, dtype="float64", device="cpu", repeats=2)
SCHEMES: Sequence[BenchSchemeName] = SMALL.schemes
EAGER = [name for name in IMPLEMENTATIONS if name not in ("naive-compiled", "headwise-compiled", "flex")]


@pytest.mark.parametrize("causal", [False, True], ids=["both-ways", "causal"])
@pytest.mark.parametrize("received", [False, True], ids=["output", "received"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_naive_formulas_equal_the_operator_in_float64(scheme: BenchSchemeName, received: bool, causal: bool) -> None:
    case = Case(replace(SMALL, received=received, causal=causal), scheme, "naive", 13)
    output_error, gradient_error = compute_errors(case, build_workload(case)())
    assert output_error is not None
    assert gradient_error is not None
    assert output_error < 1e-12
    assert gradient_error < 1e-11


@pytest.mark.short_form("values")
@pytest.mark.parametrize("causal", [False, True], ids=["both-ways", "causal"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_flex_formulas_equal_the_operator(
    scheme: BenchSchemeName, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without compilation, so that no compiler is needed."""
    monkeypatch.setattr(attention, "compile_attention", lambda forward: forward)
    case = Case(replace(SMALL, forward_only=True, causal=causal, dtype="float32"), scheme, "flex", 16)
    output_error, gradient_error = compute_errors(case, build_workload(case)())
    assert output_error is not None
    assert output_error < 1e-5
    assert gradient_error is None


@pytest.mark.parametrize("options", [{"key_heads": 1}, {"queries": 3}, {"initial_w": 0.0}], ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_all_implementations_equal_the_operator(scheme: BenchSchemeName, options: dict[str, Any]) -> None:
    names = ["headwise-blockwise"] if "queries" in options else ["headwise-blockwise", "naive"]
    for implementation in names:
        case = Case(replace(SMALL, **options), scheme, implementation, 13)
        output_error, gradient_error = compute_errors(case, build_workload(case)())
        assert output_error is not None
        assert output_error < 1e-12
        assert gradient_error is not None
        assert gradient_error < 1e-11


def test_sdpa_is_measured_with_the_same_shapes() -> None:
    case = Case(replace(SMALL, key_heads=1, queries=3), "plain", BASELINE, 13)
    output, *gradients = build_workload(case)()
    assert [x.shape for x in (output, *gradients)] == [(1, 2, 3, 8), (1, 2, 3, 8), (1, 1, 13, 8), (1, 1, 13, 8)]
    compute_errors(case, [output, *gradients])


def test_tensors_have_the_layout_of_a_models_projections() -> None:
    case = Case(SMALL, "plain", BASELINE, 13)
    models_case = replace(case, config=replace(SMALL, layout="bnhd"))
    for x, y in zip(make_tensors(case)[:4], make_tensors(models_case)[:4], strict=True):
        assert torch.equal(x, y), "the same values"
        assert x.is_contiguous()
        assert y.transpose(1, 2).is_contiguous()
    compute_errors(models_case, build_workload(models_case)())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key_heads": 3}, "--key-heads must divide --heads 2"),
        ({"queries": 17}, "--queries must be between 1 and"),
        ({"queries": 1, "causal": True}, "--queries cannot be combined"),
    ],
)
def test_impossible_shapes_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(SMALL, **options)


def test_wrong_results_are_rejected() -> None:
    case = Case(SMALL, "distance-aware", "naive", 8)
    output, *gradients = build_workload(case)()
    with pytest.raises(NotMeasurable, match="computes something else"):
        compute_errors(case, [output + 2 * MAX_ERRORS["float64"] * output.abs().max(), *gradients])
    with pytest.raises(NotMeasurable, match="computes something else"):
        compute_errors(case, [output * torch.nan, *gradients])


@pytest.mark.usefixtures("cheap_measurements")
def test_report_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    implementations, schemes = [*EAGER, "flex"], ["plain", "rpr", "distance-aware"]
    lengths = choose_size(short=("16",), long=("16", "32"))
    args = ["bench", "attention", "--lengths", *lengths, "--heads", "2", "--head-dim", "8", "--repeats", "2"]
    args += ["--device", "cpu", "--implementations", *implementations, "--schemes", *schemes]
    assert main([*args, "--out", str(tmp_path / "new")]) == 0

    with (tmp_path / "new" / "attention.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    expected = {(scheme, name, length) for scheme in schemes for name in implementations for length in lengths}
    assert {(row["scheme"], row["implementation"], row["length"]) for row in rows} == expected
    for row in rows:
        if row["ratio"]:
            assert 0 < float(row["ratio_low"]) <= float(row["ratio"]) <= float(row["ratio_high"])
            assert float(row["output_error"]) < 1e-4
            assert float(row["gradient_error"]) < 1e-4
            assert row["ms"] == ""
        else:
            assert row["note"]
        assert row["implementation"] != BASELINE or float(row["ratio"]) == 1.0
    notes = {(row["scheme"], row["implementation"]): row["note"] for row in rows}
    assert notes["plain", "flex"] == "no backward on CPU"
    assert notes["rpr", "headwise-sdpa"] == "SDPA cannot add the scheme's position terms"
    assert all(notes[scheme, name] == "" for scheme in schemes for name in ("naive", "headwise-reference"))

    page = (tmp_path / "new" / "attention.md").read_text(encoding="utf-8")
    assert f"torch {torch.__version__}" in page
    assert f"`headwise bench attention --lengths {' '.join(lengths)}" in page
    assert all(f"## {scheme}" in page for scheme in schemes)
    assert (tmp_path / "new" / "attention.png").read_bytes().startswith(b"\x89PNG")
    out = capsys.readouterr().out
    assert all(name in out for name in [*schemes, *implementations])


@pytest.mark.usefixtures("cheap_measurements")
def test_interrupted_run_writes_its_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare = attention.compare

    def interrupt_second_scheme(cases: Sequence[Case], *rest: object) -> list[Measurement]:
        if cases[0].scheme != SCHEMES[0]:
            raise KeyboardInterrupt
        return compare(cases, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(attention, "compare", interrupt_second_scheme)
    args = ["bench", "attention", "--lengths", "8", "--implementations", "naive", "--repeats", "1", "--device", "cpu"]
    assert main([*args, "--out", str(tmp_path)]) == 130
    lines = (tmp_path / "attention.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[:2] for line in lines[1:]] == [[SCHEMES[0], BASELINE], [SCHEMES[0], "naive"]]
    assert "Interrupted" in (tmp_path / "attention.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("cheap_measurements")
def test_progress_counts_every_step() -> None:
    config = replace(SMALL, implementations=("naive",), schemes=("plain", "tener"), repeats=1)
    steps: list[str] = []
    measurements = list(attention.run(config, steps.append))
    assert len(steps) == attention.count_steps(config)
    assert len(measurements) == 2 * 2


def allocate(mebibytes: int) -> measure.Workload:
    return lambda: torch.ones(mebibytes * measure.MEBIBYTE // 4).sum()


@pytest.mark.long  # the first of both starts a process that imports torch
def test_peak_memory_is_that_of_one_call() -> None:
    """In a Python of its own: other tests may have started the server of fresh processes with another allocator."""
    code = "from tests.bench import test_attention as test; print(test.measure.cpu_peak_mib(test.allocate, 64))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    if output == "None":
        pytest.skip("this system does not report the peak memory of processes")
    assert 60 < float(output) < 72


@pytest.mark.long
def test_out_of_memory_is_reported() -> None:
    with pytest.raises(NotMeasurable, match="out of memory"):
        measure.cpu_peak_mib(allocate, 2**24)


def test_samples_are_interleaved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SAMPLE_SECONDS", 0.0)
    order: list[str] = []
    collects: list[bool] = []

    def run_b() -> None:
        order.append("b")
        collects.append(gc.isenabled())

    workloads: dict[str, measure.Workload] = {"a": lambda: order.append("a"), "b": run_b}
    samples = measure.time_interleaved(workloads, 3, torch.device("cpu"))
    assert [len(times) for times in samples.values()] == [3, 3]
    assert "".join(order).endswith("abbaab")
    assert not any(collects[-3:])
    assert gc.isenabled()


def test_ratios_are_computed_round_by_round() -> None:
    measurement = Measurement(scheme="plain", implementation="naive", length=8)
    measurement.set_times([2.0, 40.0, 6.0], [1.0, 10.0, 3.0], absolute=True)
    assert (measurement.ratio_low, measurement.ratio, measurement.ratio_high) == (2.0, 2.0, 3.0)
    assert measurement.ms == 6000.0


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), "out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "out of memory"),
        (MemoryError(), "out of memory"),
        (RuntimeError("InvalidCxxCompiler: No working C++ compiler found"), "no C++ compiler"),
        (ValueError("backend='triton' cannot compute this: it needs a GPU; use backend='auto'"), "it needs a GPU"),
        (KeyError("unexpected\nsecond line"), "KeyError: 'unexpected\\nsecond line'"),
    ],
    ids=["cpu", "cuda", "python", "compiler", "backend", "unknown"],
)
def test_errors_are_shortened(error: Exception, reason: str) -> None:
    assert shorten_error(error) == reason


def test_limitations_refer_to_existing_implementations() -> None:
    assert all(scheme in SCHEMES and name in IMPLEMENTATIONS for scheme, name in LIMITATIONS)


@pytest.mark.parametrize("ratio", [1.3, 1.9, 4.0, 30.0])
def test_times_can_be_read_from_the_plot(ratio: float) -> None:
    measurements = [
        Measurement("plain", name, length, ratio=value, peak_mib=10.0 * length)
        for name, value in (("sdpa", 1.0), ("naive", ratio))
        for length in (512, 1024)
    ]
    for axes in plot(measurements).axes:
        low, high = axes.get_ylim()
        assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 2
