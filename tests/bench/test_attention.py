"""The benchmark: rivals compute the same numbers, every row has a figure or a reason, and the report is complete."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headwise.bench import attention, measure
from headwise.bench.attention import BASELINE, NOTES, RIVALS, WRONG, Case, SchemeName, Settings, check, prepare
from headwise.bench.measure import NotMeasurable, reason
from headwise.bench.report import Row
from headwise.cli import main

SMALL = Settings(lengths=(16,), heads=2, head_dim=8, clip=3, dtype="float64", device="cpu", repeats=2)
SCHEMES: Sequence[SchemeName] = SMALL.schemes
EAGER = [rival for rival in RIVALS if rival not in ("naive-compiled", "flex")]


@pytest.mark.parametrize("causal", [False, True], ids=["both-ways", "causal"])
@pytest.mark.parametrize("received", [False, True], ids=["output", "received"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_naive_formulas_equal_the_operator_in_float64(scheme: SchemeName, received: bool, causal: bool) -> None:
    case = Case(replace(SMALL, received=received, causal=causal), scheme, "naive", 13)
    output_error, gradient_error = check(case, prepare(case)())
    assert output_error is not None
    assert gradient_error is not None
    assert output_error < 1e-12
    assert gradient_error < 1e-11


@pytest.mark.parametrize("causal", [False, True], ids=["both-ways", "causal"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_flex_formulas_equal_the_operator(scheme: SchemeName, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uncompiled, which any machine can run."""
    monkeypatch.setattr(attention, "compiled", lambda forward: forward)
    case = Case(replace(SMALL, forward_only=True, causal=causal, dtype="float32"), scheme, "flex", 16)
    output_error, gradient_error = check(case, prepare(case)())
    assert output_error is not None
    assert output_error < 1e-5
    assert gradient_error is None


def test_wrong_numbers_are_found_out() -> None:
    case = Case(SMALL, "distance-aware", "naive", 8)
    output, *gradients = prepare(case)()
    with pytest.raises(NotMeasurable, match="computes something else"):
        check(case, [output + 2 * WRONG["float64"] * output.abs().max(), *gradients])
    with pytest.raises(NotMeasurable, match="computes something else"):
        check(case, [output * torch.nan, *gradients])


def test_report_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rivals, schemes = [*EAGER, "flex"], ["plain", "rpr", "distance-aware"]
    args = ["bench", "attention", "--lengths", "16", "32", "--heads", "2", "--head-dim", "8", "--repeats", "2"]
    assert (
        main([*args, "--device", "cpu", "--rivals", *rivals, "--schemes", *schemes, "--out", str(tmp_path / "new")])
        == 0
    )

    with (tmp_path / "new" / "attention.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    expected = {(scheme, rival, length) for scheme in schemes for rival in rivals for length in ("16", "32")}
    assert {(row["scheme"], row["rival"], row["length"]) for row in rows} == expected
    for row in rows:
        if row["ratio"]:
            assert 0 < float(row["ratio_low"]) <= float(row["ratio"]) <= float(row["ratio_high"])
            assert float(row["output_error"]) < 1e-4
            assert float(row["gradient_error"]) < 1e-4
            assert row["ms"] == ""
        else:
            assert row["note"]
        assert row["rival"] != BASELINE or float(row["ratio"]) == 1.0
    notes = {(row["scheme"], row["rival"]): row["note"] for row in rows}
    assert notes["plain", "flex"] == "no backward on CPU"
    assert notes["rpr", "headwise-sdpa"] == "the scheme adds terms of its own to scores or values"
    assert all(notes[scheme, rival] == "" for scheme in schemes for rival in ("naive", "headwise-reference"))

    page = (tmp_path / "new" / "attention.md").read_text(encoding="utf-8")
    assert f"torch {torch.__version__}" in page
    assert "`headwise bench attention --lengths 16 32" in page
    assert all(f"## {scheme}" in page for scheme in schemes)
    assert (tmp_path / "new" / "attention.png").read_bytes().startswith(b"\x89PNG")
    out = capsys.readouterr().out
    assert all(name in out for name in [*schemes, *rivals])


def test_interrupted_run_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare = attention.compare

    def until_the_second(cases: Sequence[Case], *rest: object) -> list[Row]:
        if cases[0].scheme != SCHEMES[0]:
            raise KeyboardInterrupt
        return compare(cases, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(attention, "compare", until_the_second)
    args = ["bench", "attention", "--lengths", "8", "--rivals", "naive", "--repeats", "1", "--device", "cpu"]
    assert main([*args, "--out", str(tmp_path)]) == 130
    lines = (tmp_path / "attention.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[:2] for line in lines[1:]] == [[SCHEMES[0], BASELINE], [SCHEMES[0], "naive"]]
    assert "Interrupted" in (tmp_path / "attention.md").read_text(encoding="utf-8")


def test_progress_counts_every_step() -> None:
    settings = replace(SMALL, rivals=("naive",), schemes=("plain", "tener"), repeats=1)
    told: list[str] = []
    rows = list(attention.run(settings, told.append))
    assert len(told) == attention.steps(settings)
    assert len(rows) == 2 * 2


def allocate(mebibytes: int) -> measure.Work:
    return lambda: torch.ones(mebibytes * measure.MEBIBYTE // 4).sum()


def test_peak_memory_is_that_of_one_call() -> None:
    peak = measure.peak_on_cpu(allocate, 64)
    if peak is None:
        pytest.skip("this system does not tell a process's peak memory")
    assert 60 < peak < 72


def test_out_of_memory_is_a_reason_not_an_end() -> None:
    with pytest.raises(NotMeasurable, match="out of memory"):
        measure.peak_on_cpu(allocate, 2**24)


def test_samples_are_taken_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SAMPLE_SECONDS", 0.0)
    order: list[str] = []
    works: dict[str, measure.Work] = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    samples = measure.time_interleaved(works, 3, torch.device("cpu"))
    assert [len(times) for times in samples.values()] == [3, 3]
    assert "".join(order).endswith("ababab")


def test_ratios_are_taken_round_by_round() -> None:
    row = Row(scheme="plain", rival="naive", length=8)
    row.timed([2.0, 40.0, 6.0], [1.0, 10.0, 3.0], absolute=True)
    assert (row.ratio_low, row.ratio, row.ratio_high) == (2.0, 2.0, 3.0)
    assert row.ms == 6000.0


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), "out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "out of memory"),
        (MemoryError(), "out of memory"),
        (RuntimeError("InvalidCxxCompiler: No working C++ compiler found"), "no C++ compiler"),
        (ValueError("backend='triton' cannot do this: it needs a GPU; backend='auto' picks one"), "it needs a GPU"),
        (KeyError("surprise\nand its story"), "KeyError: 'surprise\\nand its story'"),
    ],
    ids=["cpu", "cuda", "python", "compiler", "backend", "unknown"],
)
def test_reasons_are_short(error: Exception, short: str) -> None:
    assert reason(error) == short


def test_what_a_rival_leaves_out_is_noted() -> None:
    assert all(scheme in SCHEMES and rival in RIVALS for scheme, rival in NOTES)
