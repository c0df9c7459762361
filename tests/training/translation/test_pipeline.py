"""Training of translators: they learn, and the run directory holds model, metrics, predictions and card."""

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
from headwise.training.translation.config import TranslationConfig
from headwise.training.translation.data import load_data
from headwise.training.translation.model import build_model
from headwise.training.translation.pipeline import TranslationPipeline
from headwise.training.translation.trainer import average_checkpoints
from tests.training.conftest import Headwise
from tests.training.translation.conftest import SUFFICIENT, build_config, sentences, translate_words, write


def test_trained_translator_reports_high_bleu_in_metrics_and_card(run: RunResult) -> None:
    metrics = json.loads((run.run_dir / "metrics.json").read_text())
    assert metrics["metrics"]["test"]["bleu"] > 80
    assert metrics["metrics"]["test"]["chrf"] > 90
    assert metrics["signatures"]["bleu"].startswith("nrefs:1|case:mixed")
    assert metrics["dev_loss"] < 0.3
    assert metrics["steps"] == SUFFICIENT["steps"]
    assert metrics["peak_memory"]["peak_mib"] > 0
    assert metrics["baselines"]["test"]["copy of the source"]["bleu"] < 10
    card = (run.run_dir / "README.md").read_text()
    assert "# en → de, small" in card
    assert metrics["signatures"]["bleu"] in card
    assert str(run.run_dir.parent) not in card


def test_predictions_keep_the_order_of_the_files(run: RunResult, pairs: Path) -> None:
    rows = [row for row in pq.read_table(run.run_dir / "predictions.parquet").to_pylist() if row["split"] == "test"]
    assert [row["source"] for row in rows] == (pairs / "test.en").read_text().splitlines()
    assert [row["reference"] for row in rows] == [translate_words(row["source"]) for row in rows]
    assert sum(row["predicted"] == row["reference"] for row in rows) > 25


def test_run_dir_loads_with_transformers_auto_classes(run: RunResult) -> None:
    model = AutoModelForSeq2SeqLM.from_pretrained(run.run_dir)
    tokenizer = AutoTokenizer.from_pretrained(run.run_dir)
    assert model.generation_config.num_beams == 2
    assert model.generation_config.length_penalty == 0.6
    batch = tokenizer(["one two three", "six"], padding=True, return_tensors="pt")
    translations = tokenizer.batch_decode(model.generate(**batch, max_new_tokens=12), skip_special_tokens=True)
    assert translations == ["eins zwei drei", "sechs"]


def test_run_yaml_restores_the_config(run: RunResult, pairs: Path) -> None:
    assert load_config(run.run_dir / "run.yaml") == build_config(pairs, **SUFFICIENT)


def test_best_dev_loss_selects_the_checkpoint(pairs: Path, tmp_path: Path) -> None:
    done = train(build_config(pairs, epochs=3, learning_rate=0.05), tmp_path / "run")
    losses = [log["eval_loss"] for log in done.metrics["history"] if "eval_loss" in log]
    assert len(losses) == 3
    assert done.metrics["dev_loss"] == pytest.approx(min(losses), abs=1e-4)


def test_choose_bleu_selects_the_checkpoint_with_the_best_dev_bleu(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([1.0, 5.0, 3.0])
    monkeypatch.setattr(TranslationPipeline, "compute_dev_metrics", lambda *_: {"bleu": next(scores)})
    out = tmp_path / "run"
    done = train(build_config(pairs, epochs=3, choose="bleu", beams=1), out)
    best = next(log["step"] for log in done.metrics["history"] if log.get("eval_bleu") == 5.0)
    checkpoint = load_file(out / "checkpoints" / f"checkpoint-{best}" / "model.safetensors")
    for name, tensor in load_file(out / "model.safetensors").items():
        assert torch.equal(tensor, checkpoint[name])


def test_average_is_the_mean_of_the_last_checkpoints(pairs: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(build_config(pairs, epochs=4, average=3), out)
    checkpoints = sorted((out / "checkpoints").iterdir(), key=lambda path: int(path.name.split("-")[1]))
    assert len(checkpoints) >= 3
    weights = [load_file(path / "model.safetensors") for path in checkpoints[-3:]]
    for name, tensor in load_file(out / "model.safetensors").items():
        torch.testing.assert_close(tensor, torch.stack([one[name] for one in weights]).mean(dim=0))


def test_resumed_run_gives_the_same_metrics(pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uninterrupted = train(build_config(pairs, epochs=3), tmp_path / "uninterrupted")
    out = tmp_path / "run"
    with monkeypatch.context() as context:
        context.setattr(TranslationPipeline, "evaluate_splits", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(build_config(pairs, epochs=3), out)
    assert not (out / "metrics.json").exists()
    resumed = train(build_config(pairs, epochs=3), out, resume=True)
    assert resumed.metrics["metrics"] == uninterrupted.metrics["metrics"]


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_rows_limits_the_training_pairs(pairs: Path) -> None:
    data = load_data(build_config(pairs, rows=30))
    assert len(data.pairs.splits["train"]) == 30
    assert "30 of the training pairs, drawn with seed 0" in data.description


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, {"k": 16, "per_head": True}, marks=pytest.mark.long),
        ({"k": 4, "relative": "keys"}, {"k": 4, "per_head": True, "keys": True, "values": False}),
        ({"tables": "layers", "relative": "values"}, {"k": 16, "per_head": False, "keys": False, "values": True}),
        pytest.param({"model": "big"}, {"k": 8, "per_head": False}, marks=pytest.mark.long),
    ],
)
def test_rpr_options_override_the_preset(
    options: dict[str, Any], expected: dict[str, Any], run: RunResult, pairs: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(run.run_dir)
    config = build_model(build_config(pairs, **options), tokenizer).config
    assert config.scheme_options == config.decoder_scheme_options == expected


def test_decoder_can_have_its_own_scheme(run: RunResult, pairs: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(run.run_dir)
    config = build_model(build_config(pairs, scheme="distance-aware", decoder_scheme="rpr", k=3), tokenizer).config
    assert (config.scheme, config.scheme_options) == ("distance-aware", {})
    assert config.decoder_scheme_options == {"k": 3, "per_head": True}


def test_too_long_sentence_is_reported_or_clipped(tmp_path: Path) -> None:
    texts = sentences(30, seed=1)
    for split in ("train", "dev", "test"):
        write(tmp_path / "data", split, [*texts[:4], " ".join(["one"] * 20), *texts[5:]])
    with pytest.raises(UserError, match=r"train\.en, line 5, source: \d+ tokens, but at most 16 are allowed") as error:
        train(build_config(tmp_path / "data", epochs=1), tmp_path / "run")
    assert "--clip" in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["data"], "no run directory is created"
    done = train(build_config(tmp_path / "data", epochs=1, clip=True, beams=1), tmp_path / "run")
    assert any("clipped: 1 train, 1 dev, 1 test pairs" in note for note in done.metrics["notes"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": None}, "--source and --target are required"),
        ({"target": "en"}, "must differ, got 'en' for both"),
        ({"scheme": "plain", "k": 3}, "--k applies to --scheme rpr"),
        ({"k": -1}, "--k, the clipping distance"),
        ({"vocabulary": 100}, "--vocabulary must be at least 259"),
        ({"smoothing": 1.0}, "--smoothing must be at least 0 and below 1"),
        ({"steps": 5, "epochs": 2.0}, "give one of them"),
        ({"warmup": 0}, "--warmup must be at least 1"),
    ],
)
def test_invalid_configs_are_rejected(options: dict[str, Any], message: str, pairs: Path) -> None:
    with pytest.raises(UserError, match=message):
        build_config(pairs, **options)


def test_missing_data_is_named() -> None:
    with pytest.raises(UserError, match=r"--data is required: one directory or file, or hub:NAME$"):
        TranslationConfig(source="en", target="de")


def test_batch_size_below_the_longest_sentence_is_rejected(pairs: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--batch-size 3 is too small"):
        train(build_config(pairs, batch_size=3, epochs=1), tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_command_line_trains_a_translator(pairs: Path, tmp_path: Path, headwise: Headwise) -> None:
    options = "--task translation --source en --target de --model small --layers 1 --heads 2 --head-dim 8 --beams 1"
    sizes = "--feedforward 16 --vocabulary 300 --batch-size 800 --max-length 16 --epochs 1 --scheme distance-aware"
    code, stdout, err = headwise("train", *options.split(), *sizes.split(), "--data", pairs, "--out", tmp_path / "run")
    assert code == 0, err
    assert "test: bleu" in stdout
    config = load_config(tmp_path / "run" / "run.yaml")
    assert isinstance(config, TranslationConfig)
    assert (config.scheme, config.early_stopping_patience) == ("distance-aware", 5)
    code, _, err = headwise("train", "--task", "translation", "--data", pairs, "--out", tmp_path / "other")
    assert (code, "--source and --target are required" in err) == (2, True)
    assert not (tmp_path / "other").exists()


def test_averaging_more_checkpoints_than_exist_uses_all(run: RunResult) -> None:
    model = AutoModelForSeq2SeqLM.from_pretrained(run.run_dir)
    assert average_checkpoints(model, run.run_dir / "checkpoints", 99) == 2
