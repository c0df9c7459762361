"""Models that were retrofitted and saved can be trained further, with their scheme."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, BertModel

import headwise as hw
from headwise.errors import UserError
from headwise.studies.methods import Method
from headwise.studies.plan import build_config
from headwise.studies.trial_design import list_ranges
from headwise.training import TextConfig
from tests.training.conftest import Headwise

OPTIONS = ("--epochs", 1, "--report-to", "none")
NOTE = "model has distance-aware attention in 2 layers: 16 parameters"


@pytest.fixture(scope="module")
def retrofitted(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with trained values of w and v, saved by transformers."""
    path = tmp_path_factory.mktemp("retrofitted") / "model"
    model = hw.retrofit(BertModel.from_pretrained(bert), hw.DistanceAware)
    with torch.no_grad():
        for i, parameter in enumerate(hw.scheme_parameters(model)):
            parameter.fill_(0.1 * (i + 1))
    model.save_pretrained(path)  # type: ignore[operator]
    tokenizer = AutoTokenizer.from_pretrained(bert)
    tokenizer.add_special_tokens({"mask_token": "."})  # a word that it has
    tokenizer.save_pretrained(path)
    return path


def read_scheme(path: Path) -> dict[str, Any]:
    """Return the parameters of schemes in a model directory, by their name in the base model."""
    weights = load_file(path / "model.safetensors")
    return {name.removeprefix("bert."): x for name, x in weights.items() if "headwise_scheme" in name}


def largest_change(before: Path, after: Path) -> float:
    old, new = read_scheme(before), read_scheme(after)
    assert old.keys() == new.keys()
    assert len(old) == 4
    return max(float((old[name] - new[name]).abs().max()) for name in old)


def test_the_scheme_is_loaded_and_trained(retrofitted: Path, reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    run, again = tmp_path / "run", tmp_path / "again"
    rate = ("--learning-rate", 1e-3)
    code, _, stderr = headwise("train", "--data", reviews, "--model", retrofitted, "--out", run, *OPTIONS, *rate)
    assert code == 0, stderr
    assert NOTE in stderr
    assert largest_change(retrofitted, run) > 5e-3, "10 times the learning rate"
    card = (run / "README.md").read_text()
    assert "fine-tuned, with distance-aware attention." in card
    assert "hw.from_pretrained" in card, "transformers alone does not load it"
    rates = ("--learning-rate", 1e-4, "--scheme-learning-rate", 1e-12)
    code, _, stderr = headwise("train", "--data", reviews, "--model", run, "--out", again, *OPTIONS, *rates)
    assert code == 0, stderr
    assert NOTE in stderr
    assert largest_change(run, again) < 1e-8, "a run starts from the scheme of the run before"
    code, stdout, _ = headwise("evaluate", again)
    assert code == 0
    metrics = json.loads((again / "metrics.json").read_text())["metrics"]["test"]
    assert f"accuracy {metrics['accuracy']:.4f}" in stdout
    assert headwise("predict", again, reviews, "--out", tmp_path / "labelled.csv")[0] == 0


def test_runs_are_used_after_the_first_model_is_gone(
    retrofitted: Path, reviews: Path, tmp_path: Path, headwise: Headwise
) -> None:
    copy, run = tmp_path / "copy", tmp_path / "run"
    shutil.copytree(retrofitted, copy)
    rates = ("--learning-rate", 1e-4, "--scheme-learning-rate", 1e-3)
    assert headwise("train", "--data", reviews, "--model", copy, "--out", run, *OPTIONS, *rates)[0] == 0
    shutil.rmtree(copy)
    code, _, stderr = headwise("predict", run, reviews, "--out", tmp_path / "labelled.csv")
    assert code == 0, stderr


def test_adapted_models_keep_the_scheme(retrofitted: Path, reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    adapted, run = tmp_path / "adapted", tmp_path / "run"
    options = ("--steps", 2, "--batch-size", 4, "--max-length", 16, "--report-to", "none")
    code, _, stderr = headwise("adapt", retrofitted, "--data", reviews, *options, "--out", adapted)
    assert code == 0, stderr
    assert NOTE in stderr
    assert largest_change(retrofitted, adapted) < 1e-3
    code, _, stderr = headwise("train", "--data", reviews, "--model", adapted, "--out", run, *OPTIONS)
    assert code == 0, stderr
    assert NOTE in stderr


def test_lora_does_not_train_the_scheme(retrofitted: Path, reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    pytest.importorskip("peft")
    run = tmp_path / "run"
    code, _, stderr = headwise("train", "--data", reviews, "--model", retrofitted, "--lora", "--out", run, *OPTIONS)
    assert code == 0, stderr
    assert f"{NOTE}, not trained" in stderr
    assert largest_change(retrofitted, run) == 0
    with pytest.raises(UserError, match="LoRA freezes the parameters of schemes"):
        TextConfig(data=("x.csv",), model=str(retrofitted), lora=True, scheme_learning_rate=0.1)


@pytest.mark.parametrize("scheme", ["rpr", "distance-aware"])
def test_a_second_scheme_is_one_line(
    scheme: str, retrofitted: Path, reviews: Path, tmp_path: Path, headwise: Headwise
) -> None:
    code, _, stderr = headwise(
        "train", "--data", reviews, "--model", retrofitted, "--retrofit", scheme, "--out", tmp_path / "run"
    )
    message = (
        f"--retrofit {scheme}: {retrofitted} already has distance-aware attention; leave out --retrofit to train it "
        "further, or name the original model"
    )
    assert (code, message in stderr.splitlines()[-1]) == (2, True)
    code, _, stderr = headwise(
        "compare", "--data", reviews, "--methods", f"{retrofitted}+retrofit:{scheme}", "--out", tmp_path / "study"
    )
    assert (code, message in stderr.splitlines()[-1]) == (2, True), "before the first run"
    assert not (tmp_path / "study").exists()


def test_comparisons_train_and_tune_them(
    retrofitted: Path, bert: Path, reviews: Path, tmp_path: Path, headwise: Headwise
) -> None:
    methods = (f"plain=--model {bert}", f"distances=--model {retrofitted}")
    out = ("--out", tmp_path / "study")
    options = ("--seeds", 1, "--jobs", 1, "--baseline", "plain")
    code, stdout, stderr = headwise(
        "compare", "--data", reviews, "--methods", *methods, *options, *OPTIONS, *out, "--scheme-learning-rate", 1e-3
    )
    assert code == 0, stderr
    assert "distances" in stdout
    base = TextConfig(data=(str(reviews),), model=str(retrofitted))
    assert [x.name for x in list_ranges(base)] == ["scheme_learning_rate"]
    shared = TextConfig(data=(str(reviews),), model=str(retrofitted), scheme_learning_rate=0.1)
    assert build_config(shared, Method("bert", {"model": str(bert)}), 0).scheme_learning_rate is None


def test_the_rate_requires_trainable_parameters(bert: Path, tmp_path: Path) -> None:
    alibi = tmp_path / "alibi"
    hw.retrofit(BertModel.from_pretrained(bert), hw.Alibi).save_pretrained(alibi)  # type: ignore[operator]
    for model in (bert, alibi):
        with pytest.raises(UserError, match="requires a scheme with trainable parameters"):
            TextConfig(data=("x.csv",), model=str(model), scheme_learning_rate=0.1)


def test_cards_of_models_with_a_window_need_headwise(
    bert: Path, reviews: Path, tmp_path: Path, headwise: Headwise
) -> None:
    run = tmp_path / "run"
    code, _, stderr = headwise(
        "train", "--data", reviews, "--model", bert, "--attention-window", 4, "--out", run, *OPTIONS
    )
    assert code == 0, stderr
    assert "hw.from_pretrained" in (run / "README.md").read_text()
    code, _, stderr = headwise("train", "--data", reviews, "--model", run, "--out", tmp_path / "again", *OPTIONS)
    assert code == 0, stderr
    assert "attention window: 4 tokens before and after, 1 global" in stderr, "the model was loaded with it"
