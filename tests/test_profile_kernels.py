"""benchmarks/profile_kernels.py: the command measures each scheme and SDPA once, and continues."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_command_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    out = tmp_path / "profile.jsonl"

    def run(*options: str) -> list[dict[str, Any]]:
        common = ["--out", str(out), "--device", "cpu", "--tiny", "--repeats", "2"]
        monkeypatch.setattr(sys, "argv", ["profile_kernels.py", *common, *options])
        runpy.run_path(str(BENCHMARKS / "profile_kernels.py"), run_name="__main__")
        return [json.loads(line) for line in out.read_text().splitlines()]

    first = run("--schemes", "rpr")
    assert {(x["scheme"], x["pass"]) for x in first} == {
        (a, b) for a in ("sdpa", "rpr") for b in ("forward", "backward")
    }
    assert all(x["us"] > 0 and not x["note"] for x in first)
    more = run("--schemes", "rpr", "transformer-xl")
    assert more[: len(first)] == first
    assert {x["scheme"] for x in more[len(first) :]} == {"transformer-xl"}
    assert run("--schemes", "rpr", "transformer-xl") == more
    table = capsys.readouterr().out
    assert "| transformer-xl | backward |" in table
    assert "| sdpa | forward |" in table
