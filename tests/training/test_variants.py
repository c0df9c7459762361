"""What studies vary: a scheme's options, a guide's layers, the share of the training rows; and what a run costs."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from headwise.attention import DistanceAware
from headwise.training import Settings, Trained, train


def test_scheme_options_reach_the_model(reviews: Path, tmp_path: Path) -> None:
    settings = Settings(
        data=(str(reviews),), scheme_options=("mapping=clip", "threshold=3"), heads=2, head_dim=8, epochs=1, rows=0.25
    )
    done = train(settings, tmp_path / "run")
    assert "32 of the training rows" in done.metrics["recipe"], "a quarter of 128"
    assert done.metrics["memory"]["peak_mib"] > 1
    schemes = [x for x in Trained.load(done.folder).model.modules() if isinstance(x, DistanceAware)]
    assert [(scheme.mapping, scheme.threshold) for scheme in schemes] == [("clip", 3)]


def test_guides_of_some_layers_and_of_knowledge(reviews: Path, bert: Path, tmp_path: Path) -> None:
    settings = Settings(data=(str(reviews),), model=str(bert), epochs=1, rows=40, guides=("pdg@1=0.1", "pmi=0.1"))
    done = train(settings, tmp_path / "run")
    logged = {name for log in done.metrics["history"] for name in log}
    assert {"guide/PatternDecorrelation", "guide/MutualInformation"} <= logged


def test_what_was_saved_in_half_precision_learns_in_single(reviews: Path, half_bert: Path, tmp_path: Path) -> None:
    settings = Settings(data=(str(reviews),), model=str(half_bert), epochs=1, rows=40, batch_size=8, learning_rate=1e-6)
    done = train(settings, tmp_path / "run")
    begun = load_file(half_bert / "model.safetensors")
    ended = load_file(done.folder / "model.safetensors")
    assert {x.dtype for x in ended.values()} == {torch.float32}
    learnt = [
        name for name, x in begun.items() if "pooler" not in name and not torch.equal(x.float(), ended[f"bert.{name}"])
    ]
    assert len(learnt) > 20, "steps of 1e-6 are not lost"
