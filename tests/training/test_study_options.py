"""Options that studies vary: scheme options, guided layers, classifiers, and the number of training rows."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, GPT2Config, GPT2Model

from headwise.attention import DistanceAware
from headwise.training import TextConfig, TextModel, evaluate, train
from tests.training.conftest import Headwise


def test_scheme_options_reach_the_model(reviews: Path, tmp_path: Path) -> None:
    config = TextConfig(
        data=(str(reviews),), scheme_options=("mapping=clip", "threshold=3"), heads=2, head_dim=8, epochs=1, rows=0.25
    )
    result = train(config, tmp_path / "run")
    assert "32 of the training rows" in result.metrics["dataset"], "a quarter of 128"
    assert result.metrics["peak_memory"]["peak_mib"] > 1
    schemes = [x for x in TextModel.load(result.run_dir).model.modules() if isinstance(x, DistanceAware)]
    assert [(scheme.mapping, scheme.threshold) for scheme in schemes] == [("clip", 3)]


def test_guides_of_single_layers_and_with_statistics_of_the_data(reviews: Path, bert: Path, tmp_path: Path) -> None:
    config = TextConfig(data=(str(reviews),), model=str(bert), epochs=1, rows=40, guides=("pdg@1=0.1", "pmi=0.1"))
    result = train(config, tmp_path / "run")
    logged = {name for log in result.metrics["history"] for name in log}
    assert {"guide/PatternDecorrelation", "guide/MutualInformation"} <= logged


def test_half_precision_weights_are_trained_in_float32(reviews: Path, half_bert: Path, tmp_path: Path) -> None:
    config = TextConfig(data=(str(reviews),), model=str(half_bert), epochs=1, rows=40, batch_size=8, learning_rate=1e-6)
    result = train(config, tmp_path / "run")
    before = load_file(half_bert / "model.safetensors")
    after = load_file(result.run_dir / "model.safetensors")
    assert {x.dtype for x in after.values()} == {torch.float32}
    changed = [
        name for name, x in before.items() if "pooler" not in name and not torch.equal(x.float(), after[f"bert.{name}"])
    ]
    assert len(changed) > 20, "updates of 1e-6 were lost"


def test_first_token_classifier(reviews: Path, bert: Path, tmp_path: Path, headwise: Headwise) -> None:
    args = ("--data", reviews, "--epochs", 1, "--rows", 40, "--classifier", "first-token")
    code, _, err = headwise("train", *args, "--model", bert, "--guides", "mdg", "--out", tmp_path / "run")
    assert code == 0, err
    trained = TextModel.load(tmp_path / "run")
    assert type(trained.model).__name__ == "BertFirstTokenForSequenceClassification"
    assert 'hw.from_pretrained("PATH", FirstToken)' in (tmp_path / "run" / "README.md").read_text()
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())["metrics"]["test"]
    assert evaluate(tmp_path / "run")["metrics"] == pytest.approx(metrics)
    assert headwise("inspect", tmp_path / "run", "--text", "a good film", "--out", tmp_path / "page.html")[0] == 0
    code, _, err = headwise("train", *args, "--model", "rpr", "--out", tmp_path / "other")
    assert (code, "--classifier is for Hugging Face models, not for --model rpr" in err) == (2, True), err
    GPT2Model(GPT2Config(vocab_size=30, n_embd=8, n_layer=1, n_head=2)).save_pretrained(tmp_path / "gpt")
    AutoTokenizer.from_pretrained(bert).save_pretrained(tmp_path / "gpt")
    code, _, err = headwise("train", *args, "--model", tmp_path / "gpt", "--out", tmp_path / "other")
    assert (code, "--classifier first-token: needs an encoder" in err) == (2, True), err


def test_a_single_step_is_not_lost_to_warmup(reviews: Path, bert: Path, tmp_path: Path) -> None:
    weights = []
    for rate in (1e-3, 1e-2):
        config = TextConfig(data=(str(reviews),), model=str(bert), epochs=1, batch_size=1000, learning_rate=rate)
        weights.append(load_file(train(config, tmp_path / str(rate)).run_dir / "model.safetensors"))
    assert not torch.equal(weights[0]["classifier.bias"], weights[1]["classifier.bias"])
