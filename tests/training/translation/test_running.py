"""Runs that learn to translate: they learn, and leave all that there is to know in a folder."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from headwise.errors import UserError
from headwise.training import RunResult, train
from headwise.training.registry import load_config
from headwise.training.translation.averaging import average
from headwise.training.translation.config import TranslationConfig
from headwise.training.translation.model import build
from headwise.training.translation.train import load
from tests.training.conftest import Headwise
from tests.training.translation.conftest import LEARNT, sentences, settings, translated, write


def test_it_learns_and_says_how_well(run: RunResult) -> None:
    metrics = json.loads((run.run_dir / "metrics.json").read_text())
    assert metrics["metrics"]["test"]["bleu"] > 80
    assert metrics["metrics"]["test"]["chrf"] > 90
    assert metrics["signatures"]["bleu"].startswith("nrefs:1|case:mixed")
    assert metrics["dev_loss"] < 0.3
    assert metrics["steps"] == LEARNT["steps"]
    card = (run.run_dir / "README.md").read_text()
    assert "# en → de, small" in card
    assert metrics["signatures"]["bleu"] in card
    assert str(run.run_dir.parent) not in card


def test_predictions_are_in_the_order_of_the_files(run: RunResult, pairs: Path) -> None:
    rows = [row for row in pq.read_table(run.run_dir / "predictions.parquet").to_pylist() if row["split"] == "test"]
    assert [row["source"] for row in rows] == (pairs / "test.en").read_text().splitlines()
    assert [row["reference"] for row in rows] == [translated(row["source"]) for row in rows]
    assert sum(row["predicted"] == row["reference"] for row in rows) > 25


def test_the_folder_is_a_model_of_transformers(run: RunResult) -> None:
    model = AutoModelForSeq2SeqLM.from_pretrained(run.run_dir)
    tokenizer = AutoTokenizer.from_pretrained(run.run_dir)
    assert model.generation_config.num_beams == 2
    assert model.generation_config.length_penalty == 0.6
    batch = tokenizer(["one two three", "six"], padding=True, return_tensors="pt")
    said = tokenizer.batch_decode(model.generate(**batch, max_new_tokens=12), skip_special_tokens=True)
    assert said == ["eins zwei drei", "sechs"]


def test_settings_come_back(run: RunResult, pairs: Path) -> None:
    assert load_config(run.run_dir / "run.yaml") == settings(pairs, **LEARNT)


def test_the_checkpoint_with_the_best_dev_loss_is_kept(pairs: Path, tmp_path: Path) -> None:
    done = train(settings(pairs, epochs=3, learning_rate=0.05), tmp_path / "run")
    losses = [log["eval_loss"] for log in done.metrics["history"] if "eval_loss" in log]
    assert len(losses) == 3
    assert done.metrics["dev_loss"] == pytest.approx(min(losses), abs=1e-4)


def test_or_the_one_with_the_best_dev_bleu(pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = iter([1.0, 5.0, 3.0])
    monkeypatch.setattr("headwise.training.translation.train.dev_bleu", lambda *_: {"bleu": next(figures)})
    out = tmp_path / "run"
    done = train(settings(pairs, epochs=3, choose="bleu", beams=1), out)
    best = next(log["step"] for log in done.metrics["history"] if log.get("eval_bleu") == 5.0)
    kept = load_file(out / "checkpoints" / f"checkpoint-{best}" / "model.safetensors")
    for name, tensor in load_file(out / "model.safetensors").items():
        assert torch.equal(tensor, kept[name])


def test_the_mean_of_checkpoints(pairs: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(settings(pairs, epochs=4, average=3), out)
    found = sorted((out / "checkpoints").iterdir(), key=lambda path: int(path.name.split("-")[1]))
    assert len(found) >= 3
    parts = [load_file(path / "model.safetensors") for path in found[-3:]]
    for name, tensor in load_file(out / "model.safetensors").items():
        torch.testing.assert_close(tensor, torch.stack([part[name] for part in parts]).mean(dim=0))


def test_an_unfinished_run_goes_on(pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(settings(pairs, epochs=3), tmp_path / "whole")
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("headwise.training.translation.train.translations", stopped)
        with pytest.raises(KeyboardInterrupt):
            train(settings(pairs, epochs=3), out)
    assert not (out / "metrics.json").exists()
    again = train(settings(pairs, epochs=3), out, resume=True)
    assert again.metrics["metrics"] == whole.metrics["metrics"]


def stopped(*_: Any) -> None:
    raise KeyboardInterrupt


def test_fewer_rows_and_presets(pairs: Path) -> None:
    assert len(load(settings(pairs, rows=30)).splits["train"]) == 30
    assert "30 of the training pairs, drawn by seed 0" in load(settings(pairs, rows=30)).recipe


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, {"k": 16, "per_head": True}),
        ({"k": 4, "relative": "keys"}, {"k": 4, "per_head": True, "keys": True, "values": False}),
        ({"tables": "layers", "relative": "values"}, {"k": 16, "per_head": False, "keys": False, "values": True}),
        ({"model": "big"}, {"k": 8, "per_head": False}),
    ],
)
def test_tables_of_relative_positions(
    options: dict[str, Any], found: dict[str, Any], run: RunResult, pairs: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(run.run_dir)
    config = build(settings(pairs, **options), tokenizer).config
    assert config.scheme_options == config.decoder_scheme_options == found


def test_a_scheme_of_the_decoders_own(run: RunResult, pairs: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(run.run_dir)
    config = build(settings(pairs, scheme="distance-aware", decoder_scheme="rpr", k=3), tokenizer).config
    assert (config.scheme, config.scheme_options) == ("distance-aware", {})
    assert config.decoder_scheme_options == {"k": 3, "per_head": True}


def test_a_sentence_that_is_too_long_is_named_or_clipped(tmp_path: Path) -> None:
    texts = sentences(30, seed=1)
    for split in ("train", "dev", "test"):
        write(tmp_path / "data", split, [*texts[:4], " ".join(["one"] * 20), *texts[5:]])
    with pytest.raises(UserError, match=r"train\.en, line 5, source: \d+ tokens, where at most 16 are taken") as told:
        train(settings(tmp_path / "data", epochs=1), tmp_path / "run")
    assert "--clip" in str(told.value)
    assert [path.name for path in tmp_path.iterdir()] == ["data"], "nothing is begun"
    done = train(settings(tmp_path / "data", epochs=1, clip=True, beams=1), tmp_path / "run")
    assert any("clipped: 1 train, 1 dev, 1 test pairs" in note for note in done.metrics["notes"])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"source": None}, "--source and --target: between which languages"),
        ({"target": "en"}, "both 'en'"),
        ({"scheme": "plain", "k": 3}, "--k is for --scheme rpr"),
        ({"k": -1}, "--k, the clipping distance"),
        ({"vocabulary": 100}, "--vocabulary must be at least 259"),
        ({"smoothing": 1.0}, "--smoothing must be at least 0 and below 1"),
        ({"steps": 5, "epochs": 2.0}, "give one of them"),
        ({"warmup": 0}, "--warmup must be at least 1"),
    ],
)
def test_settings_that_cannot_be(options: dict[str, Any], told: str, pairs: Path) -> None:
    with pytest.raises(UserError, match=told):
        settings(pairs, **options)


def test_a_batch_without_room(pairs: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--batch-size 3 has no room"):
        train(settings(pairs, batch_size=3, epochs=1), tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_the_command_line(pairs: Path, tmp_path: Path, headwise: Headwise) -> None:
    options = "--task translation --source en --target de --model small --layers 1 --heads 2 --head-dim 8 --beams 1"
    sizes = "--feedforward 16 --vocabulary 300 --batch-size 800 --max-length 16 --epochs 1 --scheme distance-aware"
    code, said, err = headwise("train", *options.split(), *sizes.split(), "--data", pairs, "--out", tmp_path / "run")
    assert code == 0, err
    assert "test: bleu" in said
    kept = load_config(tmp_path / "run" / "run.yaml")
    assert isinstance(kept, TranslationConfig)
    assert (kept.scheme, kept.patience) == ("distance-aware", 5)
    code, _, err = headwise("train", "--task", "translation", "--data", pairs, "--out", tmp_path / "other")
    assert (code, "between which languages" in err) == (2, True)
    assert not (tmp_path / "other").exists()


def test_averaging_needs_no_more_than_there_are(run: RunResult) -> None:
    model = AutoModelForSeq2SeqLM.from_pretrained(run.run_dir)
    assert average(model, run.run_dir / "checkpoints", 99) == 2
