"""The command line as a user meets it: help, versions, and one line for a mistake."""

from pathlib import Path

import pytest

import headwise
from headwise.cli import main

FAST = [
    "--lengths",
    "8",
    "--schemes",
    "plain",
    "--implementations",
    "naive",
    "--repeats",
    "1",
    "--heads",
    "1",
    "--head-dim",
    "2",
]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--help"], ["bench", "--version"]),
        (["bench", "--help"], ["attention"]),
        (["bench", "attention", "--help"], ["--lengths", "--out", "$ headwise bench attention --out bench"]),
        (["bench", "guiding", "--help"], ["--shapes", "--out", "$ headwise bench guiding"]),
        (["simulate", "mind", "--help"], ["--titles", "--drift", "--out", "$ headwise simulate mind"]),
        (["inspect", "--help"], ["MODEL", "--data", "--rows", "--out", "$ headwise inspect runs/reviews"]),
    ],
    ids=["headwise", "bench", "attention", "guiding", "simulate", "inspect"],
)
def test_help_tells_what_there_is(args: list[str], told: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(args)
    assert not stop.value.code
    out = capsys.readouterr().out
    assert all(text in out for text in told)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"headwise {headwise.__version__}\n"


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ([], "bench"),
        (["bench"], "attention"),
        (["nonsense"], "nonsense"),
        (["bench", "attention", "--nonsense"], "--nonsense"),
        (["bench", "attention", "--schemes", "alibi"], "'alibi'"),
        (["bench", "attention", "--implementations", "xformers"], "got xformers"),
        (["bench", "attention", "--lengths", "-3"], "--lengths must be at least 1, got -3"),
        (["bench", "attention", "--lengths", "many"], "many"),
        (["bench", "guiding", "--shapes", "64"], "--shapes must be batch size x length, such as 64x256; got 64"),
        (["bench", "attention", "--lengths"], "--lengths needs at least one value"),
        (["bench", "attention", "--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["bench", "attention", "--head-dim", "3"], "--head-dim must be even and at least 2, got 3"),
        (["bench", "attention", "--dtype", "int8"], "'int8'"),
        (["bench", "attention", *FAST, "--out", f"{__file__}/results"], f"{__file__}/results: Not a directory"),
    ],
    ids=lambda value: " ".join(Path(x).name for x in value) if isinstance(value, list) else "",
)
def test_mistake_is_one_line(args: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("headwise: ")
    assert captured.err.count("\n") == 1
    assert told in captured.err
    assert "dummy" not in captured.err


def test_interruption_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("headwise.bench.attention.bench", interrupted)
    assert main(["bench", "attention"]) == 130
    assert "Traceback" not in capsys.readouterr().err
