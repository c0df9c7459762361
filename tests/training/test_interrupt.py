"""Ctrl-C during `headwise train`, and what a resumed run prints."""

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from headwise.training.core.callbacks import extra_callbacks
from tests.short_form import keep_short
from tests.training.conftest import Headwise

TINY = ("--heads", 2, "--head-dim", 8, "--word-dim", 16, "--batch-size", 64)


class Interrupt(TrainerCallback):
    """Raises KeyboardInterrupt at an event of the second epoch."""

    def __init__(self, event: str) -> None:
        setattr(self, event, self.interrupt)

    def interrupt(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.epoch >= 2:
            raise KeyboardInterrupt


def printed_epochs(stderr: str) -> list[int]:
    return [int(number) for number in re.findall(r"epoch (\d+): dev", stderr)]


@pytest.mark.parametrize("event", keep_short(("on_evaluate", "on_save", "on_epoch_begin"), "on_save"))
def test_no_epoch_is_printed_twice(reviews: Path, tmp_path: Path, headwise: Headwise, event: str) -> None:
    out = tmp_path / "a run"
    with extra_callbacks(Interrupt(event)):
        code, _, before = headwise("train", "--data", reviews, "--out", out, "--epochs", 3, *TINY)
    assert code == 130
    assert f"stopped; --resume continues: headwise train --resume --out '{out}'" in before
    code, _, after = headwise("train", "--resume", "--out", out)
    assert code == 0
    assert printed_epochs(before) + printed_epochs(after) == [1, 2, 3]
    start = len(printed_epochs(before))
    assert f"resumed after epoch {start}, step {2 * start} of 6" in after


def test_a_terminated_run_says_how_to_continue(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    """Schedulers such as Slurm send SIGTERM before they end a job."""

    class Terminate(TrainerCallback):
        def on_save(self, *args: Any, **kwargs: Any) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    out = tmp_path / "run"
    with extra_callbacks(Terminate()):
        code, _, stderr = headwise("train", "--data", reviews, "--out", out, "--epochs", 2, *TINY)
    assert code == 143
    assert f"stopped; --resume continues: headwise train --resume --out {out}" in stderr
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    code, _, stderr = headwise("train", "--resume", "--out", out)
    assert code == 0
    assert "resumed after epoch 1" in stderr


def test_a_run_without_a_checkpoint_starts_again(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    class AtOnce(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            raise KeyboardInterrupt

    options = ("--out", tmp_path / "run", "--epochs", 1, *TINY)
    with extra_callbacks(AtOnce()):
        assert headwise("train", "--data", reviews, *options)[0] == 130
    code, _, stderr = headwise("train", "--resume", "--out", tmp_path / "run")
    assert code == 0
    assert "no complete checkpoint yet: training starts at the first epoch" in stderr


@pytest.mark.parametrize("command", ["train", "predict", "evaluate", "inspect", "adapt"])
def test_commands_can_be_interrupted_while_libraries_are_imported(
    command: str, tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    class InterruptedImports:
        def find_spec(self, name: str, *args: object) -> None:
            if name.startswith("headwise.training"):
                raise KeyboardInterrupt

    arguments = {
        "train": ("--data", "new.csv", "--out", "run"),
        "predict": ("run", "new.csv", "--out", "out.csv"),
        "evaluate": ("run",),
        "inspect": ("run", "--text", "good", "--out", "page.html"),
        "adapt": ("bert", "--data", "new.csv", "--out", "run"),
    }
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.startswith("headwise.training")]:
        if name.rpartition(".")[2] in ("config", "model_names", "core", "text", "training", "adaptation"):
            continue
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [InterruptedImports(), *sys.meta_path])
    code, _, stderr = headwise(command, *arguments[command])
    assert code == 130
    assert stderr.splitlines()[-1].startswith("stopped")


@pytest.mark.parametrize(
    ("module", "arguments", "hint"),
    [
        ("headwise.training.predict", ("predict", "run", "new.csv", "--out", "out.csv"), True),
        ("headwise.training.evaluate", ("evaluate", "run", "--out", "metrics.json"), True),
        ("headwise.training.evaluate", ("evaluate", "run"), False),
        ("headwise.training.inspect.inspect", ("inspect", "run", "--data", "new.csv", "--out", "inspected"), True),
        ("headwise.training.inspect.inspect", ("inspect", "run", "--text", "good", "--out", "inspected"), False),
    ],
)
def test_interrupted_jobs_say_whether_they_can_be_resumed(
    module: str,
    arguments: tuple[str, ...],
    hint: bool,
    tmp_path: Path,
    headwise: Headwise,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    for name in ("run.yaml", "metrics.json"):  # a finished run
        (tmp_path / "run" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "run" / name).touch()
    monkeypatch.setattr(module, interrupt)
    code, _, stderr = headwise(*arguments)
    assert code == 130
    assert stderr.splitlines()[-1] == ("stopped; the same command with --resume continues" if hint else "stopped")
