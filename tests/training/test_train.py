"""`headwise train`: the contents of the run directory, and reproducibility."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

import headwise as hw
import headwise.models
from headwise.models import build_tokenizer
from headwise.training import TextConfig, train
from tests.integrations.fusion.cases import CASES, build_model
from tests.short_form import keep_short
from tests.training.conftest import BAD, GOOD, OTHERS, Headwise, rows, write

SMALL = ("--heads", 2, "--head-dim", 8, "--word-dim", 16, "--batch-size", 16)


def read_metrics(run_dir: Path) -> Any:
    return json.loads((run_dir / "metrics.json").read_text())


def test_run_directory(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    out = tmp_path / "run"
    options = ("--epochs", 6, "--learning-rate", 0.01, *SMALL)
    code, stdout, stderr = headwise("train", "--data", reviews, "--out", out, *options)
    assert code == 0
    assert "  epoch 6: dev loss " in stderr
    assert "48/48 [" in stderr, "the progress bar"
    metrics = read_metrics(out)
    accuracy = metrics["metrics"]["test"]["accuracy"]
    assert accuracy >= 0.9
    assert f"test: accuracy {accuracy:.4f} ± " in stdout
    assert "  baseline most frequent label: accuracy 0.5000" in stdout
    assert metrics["dataset"].startswith("reviews.csv. train/dev/test 128/16/16: split 80/10/10, stratified, seed 0")
    card = (out / "README.md").read_text()
    assert f"| test | **this model** | {accuracy:.4f} ± " in card
    assert "| test | most frequent label | 0.5000 |" in card
    assert str(tmp_path) not in card, "a card names no path"
    assert not (out / "training_args.bin").exists()

    predictions = pq.read_table(out / "predictions.parquet").to_pydict()
    test = [i for i, split in enumerate(predictions["split"]) if split == "test"]
    correct = [np.argmax(predictions["scores"][i]) == predictions["label"][i] for i in test]
    assert np.mean(correct) == pytest.approx(accuracy)
    assert all(rows(160)[predictions["row"][i]][1] == metrics["labels"][predictions["label"][i]] for i in test)

    pipe = pipeline(
        "text-classification",
        model=AutoModelForSequenceClassification.from_pretrained(out),
        tokenizer=AutoTokenizer.from_pretrained(out),
    )
    assert [x["label"] for x in pipe(["a great film", "a dull film"])] == ["positive", "negative"]


def test_the_same_configuration_gives_the_same_metrics(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    first, again, other = (tmp_path / name for name in ("first", "again", "other"))
    assert headwise("train", "--data", reviews, "--out", first, "--epochs", 2, "--model", "rpr", *SMALL)[0] == 0
    assert headwise("train", "--config", first / "run.yaml", "--out", again)[0] == 0
    assert headwise("train", "--config", first / "run.yaml", "--out", other, "--seed", 1)[0] == 0
    assert read_metrics(again)["metrics"] == read_metrics(first)["metrics"]
    scores = [pq.read_table(run_dir / "predictions.parquet")["scores"].to_pylist() for run_dir in (first, again, other)]
    assert scores[0] == scores[1]
    assert scores[0] != scores[2]


@pytest.mark.parametrize("retrofit", keep_short((None, "distance-aware", "rpr", "disentangled", "alibi"), "rpr"))
def test_guided_and_retrofitted_hugging_face_model(bert: Path, reviews: Path, tmp_path: Path, retrofit: Any) -> None:
    config = TextConfig(
        data=(str(reviews),),
        model=str(bert),
        retrofit=retrofit,
        guides=("mdg", "first=0.1"),
        epochs=2,
        learning_rate=1e-3,
        batch_size=16,
    )
    result = train(config, tmp_path / "run")
    history = [log for log in result.metrics["history"] if "loss" in log]
    assert {"guide/MapDiscrimination", "guide/MapDiscrimination/weight", "guide/First"} <= history[0].keys()
    model = hw.from_pretrained(result.run_dir, AutoModelForSequenceClassification)
    parameters = hw.scheme_parameters(model)
    assert bool(parameters) == (retrofit is not None)
    assert all(bool((parameter != 0).any()) for parameter in parameters), "the retrofitted parameters were trained"
    scores = pq.read_table(result.run_dir / "predictions.parquet")
    tokenizer, texts = AutoTokenizer.from_pretrained(result.run_dir), rows(160)
    for row, score in zip(scores["row"].to_pylist()[:3], scores["scores"].to_pylist()[:3], strict=True):
        logits = model.eval()(**tokenizer(texts[row][0], return_tensors="pt")).logits
        torch.testing.assert_close(logits[0].double(), torch.tensor(score).double(), atol=1e-4, rtol=1e-4)


def test_new_parameters_of_the_encoder_are_named(bert: Path, reviews: Path, tmp_path: Path) -> None:
    """A new classifier and pooler are no news."""
    model, weights = tmp_path / "bert", load_file(bert / "model.safetensors")
    shutil.copytree(bert, model)
    for parts in (("pooler",), ("pooler", "token_type")):
        kept = {name: x for name, x in weights.items() if not any(part in name for part in parts)}
        save_file(kept, model / "model.safetensors", {"format": "pt"})
        config = TextConfig(data=(str(reviews),), model=str(model), epochs=1)
        notes = " ".join(train(config, tmp_path / parts[-1]).metrics["notes"])
        name = "bert.embeddings.token_type_embeddings.weight"
        assert (f"not in the pretrained model, so trained from random values: {name}" in notes) == (len(parts) == 2)
        assert "classifier" not in notes
        assert "pooler" not in notes


def test_a_replaced_classifier_is_named(bert: Path, reviews: Path, tmp_path: Path) -> None:
    model = tmp_path / "bert"
    shutil.copytree(bert, model)
    AutoModelForSequenceClassification.from_pretrained(bert, num_labels=3).save_pretrained(model)
    config = TextConfig(data=(str(reviews),), model=str(model), epochs=1)
    notes = " ".join(train(config, tmp_path / "run").metrics["notes"])
    assert "trained from random values: classifier.bias (3, now 2), classifier.weight (3 × 16, now 2 × 16)" in notes


def test_models_outside_the_attention_interface_are_fused_for_guides(
    reviews: Path, tmp_path: Path, headwise: Headwise
) -> None:
    model = tmp_path / "mpnet"
    build_model(CASES["mpnet"]).float().save_pretrained(model)
    build_tokenizer([GOOD[0], BAD[0], *OTHERS], framed=True, max_tokens=30).save_pretrained(model)
    options = ("--guides", "mdg", "pdg", "--epochs", 1, "--max-length", 12)
    code, _, err = headwise("train", "--data", reviews, "--model", model, *options, "--out", tmp_path / "run")
    assert code == 0, err
    assert "attention layers fused for guidance: MPNet" in err
    assert "attention layers fused for guidance: MPNet" in read_metrics(tmp_path / "run")["notes"]


def test_early_stopping_keeps_the_best_epoch(reviews: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    config = TextConfig(
        data=(str(reviews),),
        heads=2,
        head_dim=8,
        word_dim=16,
        epochs=30,
        learning_rate=0.02,
        batch_size=16,
        early_stopping_patience=2,
    )
    metrics = train(config, tmp_path / "run").metrics
    dev = [log["eval_accuracy"] for log in metrics["history"] if "eval_accuracy" in log]
    assert len(dev) < 30
    assert metrics["metrics"]["dev"]["accuracy"] == pytest.approx(max(dev))
    best = dev.index(max(dev)) + 1
    kept = f"  epoch {best}, the best on dev, is kept; stopped early, after epoch {len(dev)} of 30"
    assert kept in caplog.messages


def test_subsampling_and_truncation_are_reported(reviews: Path, tmp_path: Path) -> None:
    config = TextConfig(
        data=(str(reviews),), heads=2, head_dim=8, word_dim=16, epochs=1, rows=40, max_length=5, batch_size=16
    )
    metrics = train(config, tmp_path / "run").metrics
    assert metrics["dataset"].endswith("40 of the training rows, drawn with seed 0.")
    assert any(note.startswith("truncated to 5 tokens (--max-length): ") for note in metrics["notes"])


@pytest.mark.long  # test_label_types.py trains such a model in the short form
@pytest.mark.parametrize("pairs", ["joint", "siamese"])
def test_pairs(pairs: Any, tmp_path: Path) -> None:
    texts = rows(200)
    same = [
        (a, b, "same" if x == y else "other") for (a, x), (b, y) in zip(texts, [*texts[3:], *texts[:3]], strict=True)
    ] + [(a, a, "same") for a, _ in texts[:100]]
    data = write(tmp_path / "pairs.csv", ("premise", "hypothesis", "label"), list(same))
    config = TextConfig(data=(str(data),), pairs=pairs, heads=2, head_dim=8, word_dim=16, epochs=2, batch_size=16)
    assert train(config, tmp_path / "run").metrics["inputs"]["pair"] == pairs


@pytest.mark.long  # test_label_types.py trains such a model in the short form
def test_regression(tmp_path: Path) -> None:
    rated = [(text, str(4.5 if label == "positive" else 1.0)) for text, label in rows(160)]
    data = write(tmp_path / "rated.csv", ("text", "stars"), list(rated))
    config = TextConfig(
        data=(str(data),), label_type="regression", heads=2, head_dim=8, word_dim=16, epochs=12, learning_rate=0.01
    )
    metrics = train(config, tmp_path / "run").metrics
    assert metrics["metrics"]["test"]["rmse"] < 1.0, "half the error of the mean"


@pytest.mark.long  # test_label_types.py trains such a model in the short form
def test_multi_label(tmp_path: Path) -> None:
    lines = [(f"{text} {other}", f"{label}|long" if other else label) for text, label in rows(160) for other in [""]]
    lines = [(text + (" music music" if i % 3 == 0 else ""), label + ("|song" if i % 3 == 0 else ""))
             for i, (text, label) in enumerate(lines)]  # fmt: skip
    data = write(tmp_path / "several.csv", ("text", "labels"), list(lines))
    config = TextConfig(
        data=(str(data),), label_type="multi-label", heads=2, head_dim=8, word_dim=16, epochs=8, learning_rate=0.01
    )
    metrics = train(config, tmp_path / "run").metrics
    assert metrics["labels"] == ["negative", "positive", "song"]
    assert metrics["metrics"]["test"]["micro_f1"] > 0.7


@pytest.mark.long  # test_label_types.py trains such a model in the short form
@pytest.mark.parametrize("model", ["tener", "bert"])
def test_tagging(model: Any, bert: Path, tmp_path: Path) -> None:
    lines = []
    for text, _ in rows(120):
        words = text.split()
        lines += [f"{word} {'B-GOOD' if word in ('good', 'fine', 'great', 'lovely') else 'O'}" for word in words] + [""]
    (tmp_path / "tags.conll").write_text("\n".join(lines))
    config = TextConfig(
        data=(str(tmp_path / "tags.conll"),),
        label_type="tokens",
        epochs=12,
        learning_rate=0.01,
        batch_size=16,
        **{"model": str(bert)} if model == "bert" else {"model": model, "heads": 2, "head_dim": 8, "word_dim": 16},
    )
    metrics = train(config, tmp_path / "run").metrics
    assert metrics["labels"] == ["O", "B-GOOD"]
    assert metrics["metrics"]["test"]["f1"] > 0.85


@pytest.mark.long  # test_label_types.py trains such a model in the short form
def test_hierarchical_documents(tmp_path: Path) -> None:
    lines = [(". ".join([a, b, c]), label) for (a, label), (b, _), (c, _) in zip(*[rows(120)] * 3, strict=True)]
    data = write(tmp_path / "long.csv", ("text", "label"), list(lines))
    config = TextConfig(
        data=(str(data),),
        hierarchy=(6, 2),
        heads=2,
        head_dim=8,
        word_dim=16,
        epochs=5,
        learning_rate=0.01,
        batch_size=8,
    )
    metrics = train(config, tmp_path / "run").metrics
    assert metrics["metrics"]["test"]["accuracy"] > 0.8
    assert any("truncated to 2 sentences of 6 words (--hierarchy)" in note for note in metrics["notes"])
