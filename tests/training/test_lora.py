"""`headwise train --lora`: the run contains a merged model that needs no PEFT, and the adapter."""

import json
import sys
from pathlib import Path

import pytest
from peft import PeftModel
from safetensors.torch import load_file
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertModel,
)

from headwise.training.core.callbacks import extra_callbacks
from tests.training.conftest import Headwise
from tests.training.test_interrupt import Interrupt

LORA = ("--lora", "--epochs", 2, "--batch-size", 32, "--learning-rate", 0.01)


def test_a_run_with_lora(reviews: Path, bert: Path, tmp_path: Path, headwise: Headwise) -> None:
    out = tmp_path / "run"
    code, _, stderr = headwise("train", "--data", reviews, "--model", bert, "--out", out, *LORA)
    assert code == 0, stderr
    assert "LoRA of rank 8 in query, value: " in stderr
    before, after = (load_file(path / "model.safetensors") for path in (bert, out))
    name = "encoder.layer.0.attention.self.{}.weight"
    changed = {
        part: not before[name.format(part)].equal(after[f"bert.{name.format(part)}"]) for part in ("query", "key")
    }
    assert changed == {"query": True, "key": False}
    assert type(AutoModelForSequenceClassification.from_pretrained(out)) is BertForSequenceClassification
    adapter = json.loads((out / "adapter" / "adapter_config.json").read_text())
    assert (adapter["r"], adapter["lora_alpha"], sorted(adapter["target_modules"])) == (8, 16, ["query", "value"])
    base = AutoModelForSequenceClassification.from_pretrained(bert)
    PeftModel.from_pretrained(base, out / "adapter")

    assert headwise("evaluate", out)[0] == 0
    labelled = tmp_path / "labelled.csv"
    assert headwise("predict", out, reviews, "--out", labelled)[0] == 0
    assert "predicted" in labelled.read_text().splitlines()[0]


@pytest.mark.long
def test_a_resumed_run_ends_with_the_same_weights(
    reviews: Path, bert: Path, tmp_path: Path, headwise: Headwise
) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    options = ("--data", reviews, "--model", bert, "--lora", "--epochs", 3, "--batch-size", 32)
    assert headwise("train", "--out", whole, *options)[0] == 0
    with extra_callbacks(Interrupt("on_epoch_begin")):
        assert headwise("train", "--out", resumed, *options)[0] == 130
    assert headwise("train", "--resume", "--out", resumed)[0] == 0
    first, second = (load_file(path / "model.safetensors") for path in (whole, resumed))
    assert all(first[name].equal(second[name]) for name in first)


def test_guides_apply_to_lora(reviews: Path, bert: Path, tmp_path: Path, headwise: Headwise) -> None:
    out = tmp_path / "run"
    options = ("--guides", "first=0.1", "--lora-r", 2, "--lora-target-modules", "key")
    code, _, stderr = headwise("train", "--data", reviews, "--model", bert, "--out", out, *LORA, *options)
    assert code == 0, stderr
    assert "LoRA of rank 2 in key: " in stderr
    assert any("guide/First" in log for log in json.loads((out / "metrics.json").read_text())["history"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model", "plain", "--lora"), "--lora is for pretrained models, not for --model plain"),
        (("--model", "plain", "--lora-r", "4"), "--lora-r requires --lora"),
        (("--lora", "--retrofit", "rpr"), "--lora and --retrofit exclude each other"),
        (
            ("--lora", "--lora-target-modules", "query", "valve"),
            "--lora-target-modules valve: no such linear layer; the linear layers of this model are "
            "dense, key, query, value",
        ),
        (("--lora", "--lora-target-modules", "word_embeddings"), "word_embeddings: no such linear layer"),
        (("--lora", "--lora-target-modules", "classifier"), "classifier: no such linear layer"),
        (("--lora", "--lora-r", "0"), "--lora-r must be at least 1"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, tuple) else "",
)
def test_invalid_options(
    reviews: Path, bert: Path, tmp_path: Path, headwise: Headwise, options: tuple[str, ...], message: str
) -> None:
    code, _, stderr = headwise("train", "--data", reviews, "--model", bert, "--out", tmp_path / "run", *options)
    assert code == 2
    assert message in stderr
    if "--lora-target-modules" not in options:
        assert "chosen for" not in stderr, "no settings are stated before the error"


def test_models_without_default_layers(reviews: Path, bert: Path, tmp_path: Path, headwise: Headwise) -> None:
    tokenizer = AutoTokenizer.from_pretrained(bert)
    config = DistilBertConfig(vocab_size=len(tokenizer), dim=16, n_layers=1, n_heads=2, hidden_dim=16)
    for part in (DistilBertModel(config), tokenizer):
        part.save_pretrained(tmp_path / "distilbert")
    options = ("--data", reviews, "--model", tmp_path / "distilbert", "--out", tmp_path / "run", "--lora")
    code, _, stderr = headwise("train", *options)
    assert code == 2
    assert "PEFT has no default for distilbert models: add --lora-target-modules; the linear layers of" in stderr
    assert "are k_lin, lin1, lin2, out_lin, q_lin, v_lin" in stderr
    assert headwise("train", *options, "--lora-target-modules", "q_lin", "v_lin", "--epochs", 1)[0] == 0


def test_missing_package(
    reviews: Path, bert: Path, tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    code, _, stderr = headwise("train", "--data", reviews, "--model", bert, "--out", tmp_path / "run", "--lora")
    assert code == 2
    assert "--lora requires PEFT: pip install 'headwise[lora]'" in stderr
