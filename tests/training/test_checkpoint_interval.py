"""Runs of a study write few checkpoints, and have the results of runs that write one after each epoch."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from transformers import TrainerCallback

from headwise.training import RunResult, TextConfig, train
from headwise.training.core.callbacks import extra_callbacks
from headwise.training.core.checkpointing import BEST_WEIGHTS
from headwise.training.core.run_dir import last_checkpoint
from headwise.training.core.run_settings import change_settings
from headwise.training.registry import load_config
from tests.short_form import keep_short
from tests.training.conftest import rows, write


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A run with a checkpoint after each epoch, whose best epoch is not the last one."""
    data = write(tmp_path_factory.mktemp("data") / "reviews.csv", ("text", "label"), rows(160))
    config = TextConfig(
        data=(str(data),), heads=2, head_dim=8, word_dim=16, batch_size=16, learning_rate=0.03, epochs=5
    )
    return train(config, tmp_path_factory.mktemp("runs") / "run")


def check_same(run: RunResult, other: RunResult) -> None:
    """Check the metrics, the losses and the weights of a run."""
    assert other.metrics["metrics"] == run.metrics["metrics"]
    assert other.metrics["steps"] == run.metrics["steps"]
    assert [get_results(log) for log in other.metrics["history"]] == [get_results(x) for x in run.metrics["history"]]
    weights, others = (load_file(x.run_dir / "model.safetensors") for x in (run, other))
    assert weights.keys() == others.keys()
    assert all(weights[name].equal(others[name]) for name in weights)


def get_results(log: dict[str, float]) -> dict[str, float]:
    """Return what does not depend on time."""
    return {name: value for name, value in log.items() if "runtime" not in name and "per_second" not in name}


def find_best_epoch(run: RunResult) -> int:
    """Return the epoch whose weights are those of the run."""
    accuracies = [log["eval_accuracy"] for log in run.metrics["history"] if "eval_accuracy" in log]
    return 1 + accuracies.index(max(accuracies))


class InterruptFourthEpoch(TrainerCallback):
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if round(state.epoch or 0) == 3:
            raise KeyboardInterrupt


def test_short_run_writes_no_checkpoint(run: RunResult, tmp_path: Path) -> None:
    assert find_best_epoch(run) < run.metrics["epochs"], "the best weights are not the last ones"
    with change_settings(checkpoint_seconds=float("inf")):
        other = train(load_config(run.run_dir / "run.yaml"), tmp_path / "run")
    assert last_checkpoint(run.run_dir) is not None
    assert last_checkpoint(other.run_dir) is None
    check_same(run, other)


PRETRAINED: dict[str, dict[str, Any]] = {"lora": {"lora": True}, "guided": {"retrofit": "rpr", "guides": ("mdg",)}}


@pytest.mark.parametrize("method", keep_short(list(PRETRAINED), "lora"))
def test_short_run_of_a_pretrained_model(reviews: Path, bert: Path, tmp_path: Path, method: str) -> None:
    if method == "lora":
        pytest.importorskip("peft")
    common: dict[str, Any] = {"batch_size": 32, "learning_rate": 0.01, "epochs": 3}
    config = TextConfig(data=(str(reviews),), model=str(bert), **common, **PRETRAINED[method])
    run = train(config, tmp_path / "run")
    with change_settings(checkpoint_seconds=float("inf")):
        check_same(run, train(config, tmp_path / "other"))


@pytest.mark.parametrize("interval", [0.0, float("inf")])
def test_resumed_run_has_the_best_weights(
    run: RunResult, tmp_path: Path, interval: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only checkpoint is that of the third epoch. It contains the weights of the best epoch, an earlier one."""
    assert find_best_epoch(run) < 3
    seconds = count()
    config, out = load_config(run.run_dir / "run.yaml"), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("headwise.training.core.checkpointing.time.monotonic", lambda: next(seconds))
        with (
            change_settings(checkpoint_seconds=3),
            extra_callbacks(InterruptFourthEpoch()),
            pytest.raises(KeyboardInterrupt),
        ):
            train(config, out)
    checkpoints = list((out / "checkpoints").glob("checkpoint-*"))
    assert [str(path) for path in checkpoints] == [last_checkpoint(out)]
    assert (checkpoints[0] / BEST_WEIGHTS).is_file()
    with change_settings(checkpoint_seconds=interval):
        check_same(run, train(config, out, resume=True))
