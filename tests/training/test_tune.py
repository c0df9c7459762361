"""`headwise train --tune`: the search of the learning rate on dev."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import TrainerCallback

from headwise.errors import UserError
from headwise.training import TextConfig, train
from headwise.training.core import tune
from headwise.training.core.callbacks import extra_callbacks
from headwise.training.text import pipeline
from tests.training.conftest import Headwise

TINY = ("--heads", 2, "--head-dim", 8, "--word-dim", 16, "--epochs", 2, "--model", "none")


def trial_metrics(values: dict[float, float]) -> Any:
    """Return a trial that needs no training, and the rates that it was called with."""
    calls: list[float] = []

    def run(rate: float) -> dict[str, float]:
        calls.append(rate)
        if values.get(rate) == -1:
            raise UserError("step 3: the task's loss is nan, on rows 1")
        return {"eval_accuracy": values.get(rate, 0.5), "eval_rmse": values.get(rate, 0.5)}

    return run, calls


def test_the_best_rate_is_chosen(tmp_path: Path) -> None:
    run, calls = trial_metrics({2e-4: 0.9, 4e-4: -1})
    record = tune.tune_learning_rate(1e-4, "accuracy", run, tmp_path)
    assert sorted(calls) == [2.5e-5, 5e-5, 1e-4, 2e-4, 4e-4]
    assert record["chosen"] == 2e-4
    assert {trial["learning_rate"]: trial["value"] for trial in record["trials"]}[4e-4] is None, "it was not finite"
    assert json.loads((tmp_path / "tuning.json").read_text()) == record


def test_lower_errors_are_better_and_the_default_wins_ties(tmp_path: Path) -> None:
    assert tune.tune_learning_rate(1e-4, "rmse", trial_metrics({2e-4: 0.9})[0], tmp_path)["chosen"] == 1e-4


def test_other_errors_are_not_hidden(tmp_path: Path) -> None:
    def run(rate: float) -> dict[str, float]:
        raise UserError("out of memory")

    with pytest.raises(UserError, match="out of memory"):
        tune.tune_learning_rate(1e-4, "rmse", run, tmp_path)


def test_an_interrupted_search_continues(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    run, calls = trial_metrics({})

    def interrupted(rate: float) -> dict[str, float]:
        if len(calls) == 2:
            raise KeyboardInterrupt
        result: dict[str, float] = run(rate)
        return result

    with pytest.raises(KeyboardInterrupt):
        tune.tune_learning_rate(1e-4, "accuracy", interrupted, tmp_path)
    first = list(calls)
    tune.tune_learning_rate(1e-4, "accuracy", run, tmp_path)
    assert len(calls) == 5
    assert calls[:2] == first
    printed = [message for message in caplog.messages if message.startswith("  ")]
    assert [message.split(":")[0].strip() for message in printed] == [
        *("trial 1 of 5", "trial 2 of 5", "resumed after trial 2 of 5"),
        *("trial 3 of 5", "trial 4 of 5", "trial 5 of 5", "chosen"),
    ]


def test_a_tuned_run(reviews: Path, tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "FACTORS", (1.0, 0.001))
    out = tmp_path / "run"
    code, _, stderr = headwise("train", "--data", reviews, "--out", out, "--tune", *TINY)
    assert code == 0, stderr
    assert "--tune: 2 trials of at most 500 steps each; accuracy on dev decides" in stderr
    assert "  trial 2 of 2: learning rate 3e-06: dev accuracy 0." in stderr
    assert "  chosen: learning rate 0.003" in stderr
    metrics = json.loads((out / "metrics.json").read_text())
    assert [trial["learning_rate"] for trial in metrics["tuning"]["trials"]] == [0.003, 3e-06]
    text = (out / "run.yaml").read_text()
    assert "# --tune chose learning rate 0.003 of 0.003, 3e-06 by accuracy on dev" in text
    config = yaml.safe_load(text)
    assert config["learning_rate"] == 0.003
    assert "tune" not in config

    again = train(TextConfig.load(out / "run.yaml"), tmp_path / "again").metrics
    assert again["metrics"] == metrics["metrics"], "trials leave no trace in the model"
    assert "tuning" not in again


@pytest.mark.long  # test_an_interrupted_search_continues runs without training
def test_an_interrupted_run_is_not_tuned_again(
    reviews: Path, tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupt(TrainerCallback):
        def on_epoch_end(self, *args: Any, **kwargs: Any) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(tune, "FACTORS", (1.0, 0.001))
    out = tmp_path / "run"
    with extra_callbacks(Interrupt()):
        assert headwise("train", "--data", reviews, "--out", out, "--tune", *TINY)[0] == 130
    assert "chosen" in json.loads((out / "tuning.json").read_text())
    monkeypatch.setattr(pipeline, "run_short", None)  # no trial is run
    assert headwise("train", "--resume", "--out", out)[0] == 0
    assert json.loads((out / "metrics.json").read_text())["tuning"]["chosen"] == 0.003


def test_tune_excludes_a_learning_rate(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    options = ("--out", tmp_path / "run", "--tune", *TINY)
    code, _, stderr = headwise("train", "--data", reviews, *options, "--learning-rate", 0.1)
    assert (code, "leave out --learning-rate" in stderr) == (2, True)
