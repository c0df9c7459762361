"""The compilation of kernels before their first use."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
from headwise.attention import warm_up
from headwise.attention.schemes import SCHEMES
from headwise.attention.triton_backend import native
from headwise.attention.warm_up import build_native, compile_cases, list_cases
from headwise.cli import main
from headwise.cli.warm_up import DEFAULT_LENGTHS, DEFAULT_SCHEMES
from headwise.errors import UserError
from tests.short_form import choose_size

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"


def test_cases_cover_all_combinations() -> None:
    cases = list_cases(DEFAULT_SCHEMES, DEFAULT_LENGTHS, 12, [64], [torch.bfloat16])
    assert len(set(cases)) == len(cases) == len(DEFAULT_SCHEMES) * len(DEFAULT_LENGTHS) * 3
    assert {(case.causal, case.padded) for case in cases} == {(False, False), (False, True), (True, False)}


@pytest.mark.parametrize(
    ("schemes", "lengths", "message"),
    [(["rpp"], [64], "rpp is no scheme; expected one of plain"), (["rpr"], [0], "--lengths must be at least 1, got 0")],
)
def test_wrong_arguments(schemes: list[str], lengths: list[int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        list_cases(schemes, lengths, 12, [64], [torch.bfloat16])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_cases_run(scheme: str) -> None:
    cases = list_cases([scheme], [choose_size(short=8, long=20)], 1, [8], [torch.float32])
    for case in choose_size(short=[case for case in cases if case.padded], long=cases):
        replace(case, device=DEVICE).run()


@pytest.mark.long
def test_errors_are_reported() -> None:
    case = replace(list_cases(["plain"], [4], 1, [8], [torch.float32])[0], device="nowhere")
    ((failed, error),) = compile_cases([case], processes=1)
    assert failed == case
    assert "nowhere" in error


def test_code_that_is_turned_off(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("HEADWISE_NATIVE", "0")
    native.load.cache_clear()
    with caplog.at_level("INFO", "headwise"):
        build_native()
    assert "not used (HEADWISE_NATIVE=0 turns it off); Python launches kernels" in caplog.text


def test_code_that_crashes_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HEADWISE_NATIVE", str(tmp_path))
    native.load.cache_clear()
    monkeypatch.setattr(native, "build", lambda: native.build_directory().mkdir(parents=True))
    monkeypatch.setattr(warm_up, "NATIVE_CHECK", "import os; os.abort()")
    with caplog.at_level("INFO", "headwise"):
        build_native()
    assert "C++ code of cached calls: not used" in caplog.text
    assert not native.build_directory().exists()


@pytest.mark.skipif(GPU, reason="for machines without a GPU")
def test_machines_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warm-up"]) == 2
    assert capsys.readouterr().err == (
        "headwise: error: torch finds no GPU; there is nothing to compile: on a CPU, attention runs without kernels\n"
    )
