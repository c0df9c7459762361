"""`headwise train --pack`: the losses, metrics and predictions of padded batches."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from headwise.training.core.callbacks import extra_callbacks
from tests.short_form import choose_size, keep_short
from tests.training.conftest import Headwise
from tests.training.test_interrupt import Interrupt

SCRATCH = ("--model", "distance-aware", "--heads", 2, "--head-dim", 8, "--word-dim", 16, "--dropout", 0)


def train(headwise: Headwise, out: Path, *options: object) -> dict[str, Any]:
    epochs = choose_size(short=1, long=2)
    code, _, stderr = headwise("train", "--out", out, "--epochs", epochs, "--batch-size", 32, *options)
    assert code == 0, stderr
    return json.loads((out / "metrics.json").read_text())  # type: ignore[no-any-return]


def losses(metrics: dict[str, Any]) -> list[float]:
    return [value for log in metrics["history"] for name, value in log.items() if name in ("loss", "eval_loss")]


def without_dropout(bert: Path, directory: Path) -> Path:
    """Copy a model with dropout 0, so that losses can be compared."""
    directory.mkdir()
    for path in bert.iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    config = json.loads((bert / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize("kind", keep_short(["scratch", "bert", "retrofit", "lora"], "retrofit"))
def test_the_same_losses_and_predictions(
    kind: str, reviews: Path, bert: Path, tmp_path: Path, headwise: Headwise
) -> None:
    options: tuple[object, ...] = ("--data", reviews, *SCRATCH)
    if kind != "scratch":
        options = ("--data", reviews, "--model", without_dropout(bert, tmp_path / "bert"), "--learning-rate", 0.001)
        options += {"bert": (), "retrofit": ("--retrofit", "rpr"), "lora": ("--lora",)}[kind]
    padded, packed = tmp_path / "padded", tmp_path / "packed"
    expected, metrics = train(headwise, padded, *options), train(headwise, packed, *options, "--pack")
    assert losses(metrics) == pytest.approx(losses(expected), rel=1e-4, abs=1e-6)
    assert "pack: true" in (packed / "run.yaml").read_text()
    assert any("packed batches" in note for note in metrics["notes"])

    scores = []
    for run in (padded, packed):
        assert headwise("evaluate", run)[0] == 0
        code, _, stderr = headwise("predict", run, reviews, "--out", tmp_path / f"{run.name}.jsonl")
        assert code == 0, stderr
        scores.append([json.loads(line) for line in (tmp_path / f"{run.name}.jsonl").read_text().splitlines()])
    names = [name for name, value in scores[0][0].items() if isinstance(value, float)]
    assert names
    for name in names:
        assert [x[name] for x in scores[1]] == pytest.approx([x[name] for x in scores[0]], abs=2e-3)


@pytest.mark.long
def test_a_resumed_run_ends_with_the_same_weights(
    reviews: Path, bert: Path, tmp_path: Path, headwise: Headwise
) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    options = ("--data", reviews, "--model", bert, "--pack", "--epochs", 3, "--batch-size", 32)
    assert headwise("train", "--out", whole, *options)[0] == 0
    with extra_callbacks(Interrupt("on_epoch_begin")):
        assert headwise("train", "--out", resumed, *options)[0] == 130
    assert headwise("train", "--resume", "--out", resumed)[0] == 0
    first, second = (load_file(path / "model.safetensors") for path in (whole, resumed))
    assert all(first[name].equal(second[name]) for name in first)


def test_packed_runs_can_be_inspected(reviews: Path, bert: Path, tmp_path: Path, headwise: Headwise) -> None:
    train(headwise, tmp_path / "run", "--data", reviews, "--model", bert, "--pack")
    code, _, stderr = headwise("inspect", tmp_path / "run", "--text", "a fine film", "--out", tmp_path / "maps")
    assert code == 0, stderr


def test_guides_are_refused(reviews: Path, bert: Path, tmp_path: Path, headwise: Headwise) -> None:
    options = ("--data", reviews, "--model", bert, "--pack", "--guides", "first", "--out", tmp_path / "run")
    code, _, stderr = headwise("train", *options)
    assert (code, stderr.count("\n")) == (2, 1)
    assert "--pack cannot be combined with --guides, which read the attention of padded batches" in stderr


def test_models_that_cannot_be_packed_are_refused(
    reviews: Path, bert: Path, tmp_path: Path, headwise: Headwise
) -> None:
    from transformers import AutoTokenizer, MPNetConfig, MPNetModel

    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    tokenizer = AutoTokenizer.from_pretrained(bert)
    MPNetModel(MPNetConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(tmp_path / "mpnet")
    tokenizer.save_pretrained(tmp_path / "mpnet")
    options = ("--data", reviews, "--model", tmp_path / "mpnet", "--pack", "--out", tmp_path / "run")
    code, _, stderr = headwise("train", *options)
    assert code == 2
    assert "--pack: MPNetForSequenceClassification computes attention that does not go through" in stderr
    assert not (tmp_path / "run").exists()
