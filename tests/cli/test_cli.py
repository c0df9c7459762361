"""The command line: help, version, one line for an error, output streams."""

import logging
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from tqdm import tqdm

import headwise
from headwise.cli import level, logging_to_stderr, main, parse
from headwise.cli.train import build_config

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
    ("args", "expected"),
    [
        (["--help"], ["bench", "--version"]),
        (["bench", "--help"], ["attention", "headwise bench attention --out bench"]),
        (["train", "--help"], ["--hierarchy", "--quiet", "--task translation --help"]),
        (["train", "--task", "translation", "--help"], ["--smoothing"]),
        (["train", "--task", "translation=data", "--help"], ["--smoothing"]),
        (["compare", "--task", "mind=log", "--help"], ["--methods", "--negatives"]),
        (["bench", "attention", "--help"], ["--lengths", "--out", "(default: 256 512 1024 2048)"]),
        (["bench", "guiding", "--help"], ["--shapes", "--out"]),
        (["simulate", "mind", "--help"], ["mind [-h] --out DIR --titles FILE", "--drift"]),
        (["inspect", "--help"], ["MODEL", "--data", "--rows", "--out", "headwise inspect runs/reviews"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and value[-1] == "--help" else "",
)
def test_help(args: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert all(text in out for text in expected)


def test_list_of_tasks_has_the_names_that_the_option_accepts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert {"translation", "mind"} <= set(listed)
    main(["train", "--task", "?", "--out", "run"])
    assert capsys.readouterr().err.rstrip().endswith(f"the tasks are {', '.join(listed)}")


def test_task_names_its_data() -> None:
    _, arguments = parse(["train", "--task", "sst2=reviews", "--out", "run"])
    config = build_config(arguments)
    assert (config.task, config.data) == ("sst2", ("reviews",))


def test_overview_fits_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"headwise {headwise.__version__}\n"


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["bench"], "BENCHMARK is required"),
        (["bench", "atention"], "'atention'"),
        (["evalute"], "unknown command evalute; did you mean evaluate?"),
        (["--nonsense"], "unknown option --nonsense"),
        (["bench", "attention", "--lenghts", "8"], "unknown option --lenghts; did you mean --lengths?"),
        (["train", "--learning_rate", "1"], "unknown option --learning_rate; did you mean --learning-rate?"),
        (["train", "more.csv", "--out", "run"], "unexpected argument 'more.csv'"),
        (["train", "--data", "a.csv"], "--out is required"),
        (
            ["train", "--data", "a.csv", "--layers", "two", "--out", "run"],
            "--layers: expected a whole number, got 'two'",
        ),
        (
            ["train", "--task", "translation", "--hierarchy", "3", "4", "--out", "run"],
            "--hierarchy does not apply to --task",
        ),
        (["train", "--data", "a.csv", "--beams", "2", "--out", "run"], "--beams does not apply to labelled texts"),
        (["train", "--data", "a.csv", "--retrofit", "rrp", "--out", "run"], "did you mean rpr?"),
        (["compare", "--data", "a.csv", "--out", "study"], "--methods is required"),
        (["train", "--task", "transaltion", "--source", "en", "--out", "run"], "did you mean translation?"),
        (["compare", "--task", "sts2", "--methods", "plain", "--out", "study"], "no task 'sts2'; did you mean sst2?"),
        (["train", "--task", "sst2=a", "--data", "b", "--out", "run"], "--task sst2=a and --data both name the data"),
        (
            ["compare", "--task", "sst2=a", "--data", "b", "--methods", "plain", "--out", "study"],
            "--task sst2=a and --data both name the data",
        ),
        (["train", "--task", "sst2=missing", "--out", "run"], "missing"),
        (["reproduce", "--out", "study"], "name of a table or figure is required"),
        (["simulate", "mind", "--out", "log"], "--titles is required"),
        (["bench", "attention", "--schemes", "alibi"], "'alibi'"),
        (["bench", "attention", "--implementations", "xformers"], "got xformers"),
        (["bench", "attention", "--lengths", "-3"], "--lengths must be at least 1, got -3"),
        (["bench", "attention", "--lengths", "many"], "many"),
        (["bench", "guiding", "--shapes", "64"], "--shapes must be batch size x length, such as 64x256; got 64"),
        (["bench", "attention", "--lengths"], "--lengths: expected at least one argument"),
        (["bench", "attention", "--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["bench", "attention", "--head-dim", "3"], "--head-dim must be even and at least 2, got 3"),
        (["bench", "attention", "--dtype", "int8"], "'int8'"),
        (["bench", "attention", *FAST, "--out", f"{__file__}/results"], f"{__file__}/results: Not a directory"),
    ],
    ids=lambda value: " ".join(Path(x).name for x in value) if isinstance(value, list) else "",
)
def test_error_is_one_line(args: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("headwise: error: ")
    assert captured.err.count("\n") == 1
    assert expected in captured.err


def test_interruption_prints_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("headwise.bench.attention.bench", interrupted)
    assert main(["bench", "attention"]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("reports_missing_module", [False, True])
def test_interruption_that_an_import_catches(
    reports_missing_module: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def import_badly(_: str) -> SimpleNamespace:
        try:
            signal.raise_signal(signal.SIGINT)
            pytest.fail("the signal has no effect")
        except KeyboardInterrupt:
            if reports_missing_module:
                raise ModuleNotFoundError("Could not import module 'BloomPreTrainedModel'") from None
        return SimpleNamespace(train=lambda *_, **__: pytest.fail("the run goes on"))

    monkeypatch.setattr("headwise.training.import_module", import_badly)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # pytest has its own
    try:
        assert main(["train", "--data", "reviews.csv", "--out", str(tmp_path / "run")]) == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)
    assert caplog.messages == ["\nstopped before the run began; nothing was changed"]


@pytest.mark.parametrize(("options", "expected"), [([], True), (["--quiet"], False)])
def test_quiet_leaves_results_only(options: list[str], expected: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with logging_to_stderr(level(parse(["tasks", *options])[1])):
        logging.getLogger("headwise.training").info("epoch 1")
        logging.getLogger("headwise.training").warning("slow")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert ("epoch 1" in captured.err) == expected
    assert "slow" in captured.err


def test_messages_are_printed_above_progress_bars(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_to_stderr(logging.INFO), tqdm(total=2, desc="rows") as bar:
        bar.update()
        logging.getLogger("headwise").info("a node died")
    lines = [line.rpartition("\r")[2] for line in capsys.readouterr().err.split("\n")]
    assert lines[0] == "a node died", "the bar is erased first, and drawn again below"
    assert lines[1].startswith("rows:")


@pytest.mark.parametrize(("options", "expected"), [([], None), (["--quiet"], "1")])
def test_quiet_shows_no_progress_bars(
    options: list[str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    seen: list[str | None] = []

    def command(_: object) -> int:
        seen.append(os.environ.get("TQDM_DISABLE"))
        return 0

    monkeypatch.setattr("headwise.cli.tasks.run", command)
    assert main(["tasks", *options]) == 0
    assert seen == [expected]
    assert "TQDM_DISABLE" not in os.environ
