"""What studies vary: a scheme's options, a guide's layers, the share of the training rows; and what a run costs."""

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
    settings = TextConfig(
        data=(str(reviews),), scheme_options=("mapping=clip", "threshold=3"), heads=2, head_dim=8, epochs=1, rows=0.25
    )
    done = train(settings, tmp_path / "run")
    assert "32 of the training rows" in done.metrics["dataset"], "a quarter of 128"
    assert done.metrics["peak_memory"]["peak_mib"] > 1
    schemes = [x for x in TextModel.load(done.run_dir).model.modules() if isinstance(x, DistanceAware)]
    assert [(scheme.mapping, scheme.threshold) for scheme in schemes] == [("clip", 3)]


def test_guides_of_some_layers_and_of_knowledge(reviews: Path, bert: Path, tmp_path: Path) -> None:
    settings = TextConfig(data=(str(reviews),), model=str(bert), epochs=1, rows=40, guides=("pdg@1=0.1", "pmi=0.1"))
    done = train(settings, tmp_path / "run")
    logged = {name for log in done.metrics["history"] for name in log}
    assert {"guide/PatternDecorrelation", "guide/MutualInformation"} <= logged


def test_what_was_saved_in_half_precision_learns_in_single(reviews: Path, half_bert: Path, tmp_path: Path) -> None:
    settings = TextConfig(
        data=(str(reviews),), model=str(half_bert), epochs=1, rows=40, batch_size=8, learning_rate=1e-6
    )
    done = train(settings, tmp_path / "run")
    begun = load_file(half_bert / "model.safetensors")
    ended = load_file(done.run_dir / "model.safetensors")
    assert {x.dtype for x in ended.values()} == {torch.float32}
    learnt = [
        name for name, x in begun.items() if "pooler" not in name and not torch.equal(x.float(), ended[f"bert.{name}"])
    ]
    assert len(learnt) > 20, "steps of 1e-6 are not lost"


def test_a_classifier_of_the_first_token(reviews: Path, bert: Path, tmp_path: Path, headwise: Headwise) -> None:
    args = ("--data", reviews, "--epochs", 1, "--rows", 40, "--classifier", "first-token")
    code, _, err = headwise("train", *args, "--model", bert, "--guides", "mdg", "--out", tmp_path / "run")
    assert code == 0, err
    trained = TextModel.load(tmp_path / "run")
    assert type(trained.model).__name__ == "BertFirstTokenForSequenceClassification"
    assert 'hw.from_pretrained("PATH", FirstToken)' in (tmp_path / "run" / "README.md").read_text()
    figures = json.loads((tmp_path / "run" / "metrics.json").read_text())["metrics"]["test"]
    assert evaluate(tmp_path / "run")["metrics"] == pytest.approx(figures)
    assert headwise("inspect", tmp_path / "run", "--text", "a good film", "--out", tmp_path / "page.html")[0] == 0
    code, _, err = headwise("train", *args, "--model", "rpr", "--out", tmp_path / "other")
    assert (code, "--classifier is for Hugging Face models, not for --model rpr" in err) == (2, True), err
    GPT2Model(GPT2Config(vocab_size=30, n_embd=8, n_layer=1, n_head=2)).save_pretrained(tmp_path / "gpt")
    AutoTokenizer.from_pretrained(bert).save_pretrained(tmp_path / "gpt")
    code, _, err = headwise("train", *args, "--model", tmp_path / "gpt", "--out", tmp_path / "other")
    assert (
        code,
        "--classifier first-token: GPT2: the first token is read of Hugging Face's encoders alone" in err,
    ) == (2, True), err


def test_a_single_step_learns(reviews: Path, bert: Path, tmp_path: Path) -> None:
    """The Trainer's warm-up begins with a rate of 0, which would be the whole training."""
    ended = []
    for rate in (1e-3, 1e-2):
        settings = TextConfig(data=(str(reviews),), model=str(bert), epochs=1, batch_size=1000, learning_rate=rate)
        ended.append(load_file(train(settings, tmp_path / str(rate)).run_dir / "model.safetensors"))
    assert not torch.equal(ended[0]["classifier.bias"], ended[1]["classifier.bias"])
