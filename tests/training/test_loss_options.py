"""Class weights, label smoothing, the metric that selects the epoch, schedules, and losses that are not finite."""

import json
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset
from torch import nn

from headwise.training import TextConfig, train
from headwise.training.core.arguments import TRACKERS
from headwise.training.text.trainer import TextTrainer, balanced_weights
from tests.training.conftest import Headwise, write

TINY: dict[str, Any] = {"heads": 2, "head_dim": 8, "word_dim": 16, "batch_size": 16, "epochs": 2}


@pytest.fixture
def rare(tmp_path: Path) -> Path:
    """Texts of which one in ten has the rare label, which a noisy word suggests."""
    rows = []
    for i in range(300):
        is_rare = i % 10 == 0
        word = "odd" if is_rare or i % 10 in (1, 2, 3) else "usual"
        rows.append((f"an {word} text {i % 7}", "rare" if is_rare else "common"))
    return write(tmp_path / "rare.csv", ("text", "label"), rows)


def test_balanced_weights() -> None:
    tokens = Dataset.from_dict({"label": [[0, 0, 1], [0]]})
    assert balanced_weights(tokens, "tokens", 2).tolist() == pytest.approx([4 / 6, 2])
    labels = Dataset.from_dict({"label": [[1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]})
    assert balanced_weights(labels, "multi-label", 2).tolist() == pytest.approx([1 / 3, 1]), "no row has the second"
    assert balanced_weights(Dataset.from_dict({"label": [0, 0]}), "classification", 2).tolist() == [0.5, 1]


@pytest.mark.long  # test_balanced_weights and test_the_loss_is_the_mean_over_targets check the weighted loss
def test_class_weights_find_the_rare_class(rare: Path, tmp_path: Path) -> None:
    recall = {}
    for weights in (None, "balanced"):
        config = TextConfig(
            data=(str(rare),),
            model="none",
            class_weights=weights,
            metric_for_best_model="macro_f1",
            learning_rate=0.01,
            **TINY | {"epochs": 8},
        )
        recall[weights] = train(config, tmp_path / str(weights)).metrics["metrics"]["test"]["recall"]
    assert recall[None] == pytest.approx(0.5), "always common"
    assert recall["balanced"] > 0.8


def test_the_loss_is_the_mean_over_targets() -> None:
    logits, labels = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, -100])
    trainer: Any = TextTrainer.__new__(TextTrainer)
    trainer.class_weights, trainer.label_smoothing = torch.tensor([1.0, 2.0, 0.5]), 0.0
    weighted = F.cross_entropy(logits[:5], labels[:5], reduction="none") * torch.tensor([1, 2, 0.5, 1, 2])
    tokens, token_labels = logits[None], labels[None]
    assert trainer.weighted_loss(tokens, token_labels).item() == pytest.approx(weighted.sum().item() / 5, rel=1e-5)
    trainer.class_weights, trainer.label_smoothing = None, 0.1
    smooth = F.cross_entropy(logits[:5], labels[:5], label_smoothing=0.1)
    assert trainer.weighted_loss(tokens, token_labels).item() == pytest.approx(smooth.item(), rel=1e-5)


@pytest.mark.long  # test_the_loss_is_the_mean_over_targets checks the smoothed loss
def test_label_smoothing_lowers_confidence(reviews: Path, tmp_path: Path) -> None:
    loss = {}
    for smoothing in (0.0, 0.4):
        config = TextConfig(
            data=(str(reviews),), label_smoothing_factor=smoothing, learning_rate=0.02, **TINY | {"epochs": 6}
        )
        history = train(config, tmp_path / str(smoothing)).metrics["history"]
        loss[smoothing] = [log["eval_loss"] for log in history if "eval_loss" in log][-1]
    assert loss[0.0] < loss[0.4], "the loss on dev is not smoothed"


def test_macro_f1_selects_the_epoch(rare: Path, tmp_path: Path) -> None:
    config = TextConfig(data=(str(rare),), metric_for_best_model="macro_f1", **TINY | {"epochs": 4})
    metrics = train(config, tmp_path / "run").metrics
    state = json.loads(next((tmp_path / "run" / "checkpoints").rglob("trainer_state.json")).read_text())
    assert metrics["metrics"]["dev"]["macro_f1"] == pytest.approx(
        max(log["eval_macro_f1"] for log in metrics["history"] if "eval_macro_f1" in log)
    )
    assert metrics["primary_metric"] == "accuracy"
    assert state["best_metric"] is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--label", "label", "--metric-for-best-model", "rmse"),
            "classification labels have accuracy, macro_f1, loss",
        ),
        (("--metric-for-best-model", "f2"), "--metric-for-best-model must be one of"),
        (("--label-smoothing-factor", "1"), "--label-smoothing-factor must be at least 0 and below 1"),
        (("--weight-decay", "-1"), "--weight-decay must be at least 0"),
        (("--gradient-accumulation-steps", "0"), "--gradient-accumulation-steps must be at least 1"),
        (("--lr-scheduler-type", "step"), "--lr-scheduler-type must be one of linear, cosine, constant"),
        (("--label-type", "regression", "--label", "stars", "--class-weights", "balanced"), "--class-weights does not"),
        (("--label-type", "regression", "--label", "stars", "--label-smoothing-factor", ".1"), "--label-smoothing-f"),
        (("--report-to", "wandb"), "--report-to wandb: the package is not installed; pip install wandb"),
    ],
    ids=lambda x: x[-1] if isinstance(x, tuple) else "",
)
def test_invalid_options(
    tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], message: str
) -> None:
    monkeypatch.setitem(TRACKERS, "wandb", lambda: False)
    rows = [(f"text {i}", "ab"[i % 2], str(i % 5)) for i in range(40)]
    data = write(tmp_path / "data.csv", ("text", "label", "stars"), rows)
    code, _, stderr = headwise("train", "--data", data, "--out", tmp_path / "run", *options)
    assert code == 2
    assert message in stderr
    assert len(stderr.strip().splitlines()) <= 2, "one line, after the one on chosen settings"
    assert not (tmp_path / "run" / "run.yaml").exists()


def learning_rates(reviews: Path, out: Path, **options: Any) -> list[float]:
    """Return the learning rates that a run logs."""
    config = TextConfig(data=(str(reviews),), learning_rate=0.01, **TINY | options)
    return [log["learning_rate"] for log in train(config, out).metrics["history"] if "learning_rate" in log]


def test_schedules(reviews: Path, tmp_path: Path) -> None:
    assert set(learning_rates(reviews, tmp_path / "constant", lr_scheduler_type="constant")) == {0.01}
    linear = learning_rates(reviews, tmp_path / "linear", warmup_steps=4)
    assert linear.index(max(linear)) in (3, 4)
    assert linear[-1] < 0.002


def test_gradient_accumulation_equals_a_larger_batch(reviews: Path, tmp_path: Path) -> None:
    """With all rows in one step, one batch, four batches and batches of 48, 48 and 32 rows have the same gradient."""
    weights = {}
    for size, steps in ((128, 1), (32, 4), (48, 3)):
        config = TextConfig(
            data=(str(reviews),),
            dropout=0.0,
            precision="float32",
            gradient_accumulation_steps=steps,
            **TINY | {"batch_size": size, "learning_rate": 0.01},
        )
        result = train(config, tmp_path / str(size))
        assert result.metrics["steps"] == 2
        weights[size] = (
            result.metrics["metrics"]["dev"],
            [log["eval_loss"] for log in result.metrics["history"] if "eval_loss" in log],
        )
    assert weights[128][1] == pytest.approx(weights[32][1], rel=1e-4)
    assert weights[128][1] == pytest.approx(weights[48][1], rel=1e-4)


def test_a_dev_loss_that_is_not_finite_is_an_error(
    reviews: Path, tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model breaks in evaluation only, so that no training loss shows it."""
    from headwise.models import HeadwiseForSequenceClassification

    forward = HeadwiseForSequenceClassification.forward

    @wraps(forward)
    def broken(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        outputs = forward(self, *args, **kwargs)
        if not self.training:
            outputs["loss"] = outputs["loss"] * float("nan")
        return outputs

    monkeypatch.setattr(HeadwiseForSequenceClassification, "forward", broken)
    options = [str(x) for name, value in TINY.items() for x in (f"--{name.replace('_', '-')}", value)]
    code, _, stderr = headwise("train", "--data", reviews, "--out", tmp_path / "run", *options)
    assert code == 2
    assert "step 8: loss on dev is nan; try a lower --learning-rate" in stderr
    assert not (tmp_path / "run" / "metrics.json").exists()


def test_ratings_that_are_not_finite_are_an_error(
    tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headwise.models import HeadwiseForSequenceClassification

    forward = HeadwiseForSequenceClassification.forward

    @wraps(forward)
    def broken(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        outputs = forward(self, *args, **kwargs)
        if not self.training:
            outputs["logits"] = outputs["logits"] * float("inf")
        return outputs

    monkeypatch.setattr(HeadwiseForSequenceClassification, "forward", broken)
    data = write(tmp_path / "stars.csv", ("text", "stars"), [(f"text {i % 5}", str(i % 5)) for i in range(60)])
    options = [str(x) for name, value in TINY.items() for x in (f"--{name.replace('_', '-')}", value)]
    options += ["--label-type", "regression", "--label", "stars"]
    code, _, stderr = headwise("train", "--data", data, "--out", tmp_path / "run", *options)
    assert code == 2
    assert "the model's scores on dev are not finite; try a lower --learning-rate" in stderr


def test_a_guided_run_logs_both_terms_of_its_loss(reviews: Path, bert: Path, tmp_path: Path) -> None:
    config = TextConfig(data=(str(reviews),), model=str(bert), guides=("first=0.5",), epochs=1, batch_size=32)
    logs = [log for log in train(config, tmp_path / "run").metrics["history"] if "loss" in log]
    assert logs
    for log in logs:
        assert log["loss"] == pytest.approx(log["task_loss"] + 0.5 * log["guide/First"], rel=1e-3)
