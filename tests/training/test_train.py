"""`headwise train`: what is in the folder afterwards, and that it can be done again."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

import headwise as hw
import headwise.models
from headwise.training import TextConfig, train
from tests.training.conftest import Headwise, rows, write

SMALL = ("--heads", 2, "--head-dim", 8, "--word-dim", 16, "--batch-size", 16)


def figures(folder: Path) -> Any:
    return json.loads((folder / "metrics.json").read_text())


def test_from_a_file_to_a_model_with_a_card(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    out = tmp_path / "run"
    code, said, told = headwise(
        "train", "--data", reviews, "--out", out, "--epochs", 6, "--learning-rate", 0.01, *SMALL
    )
    assert code == 0
    assert "  epoch 6: dev loss " in told
    assert "48/48 [" in told, "a bar"
    found = figures(out)
    assert found["metrics"]["test"]["accuracy"] >= 0.9
    assert f"accuracy {found['metrics']['test']['accuracy']:.4f} ± " in said
    assert found["dataset"].startswith("reviews.csv. train/dev/test 128/16/16: split 80/10/10, stratified, seed 0")
    card = (out / "README.md").read_text()
    assert f"{found['metrics']['test']['accuracy']:.4g} ± " in card
    assert str(tmp_path) not in card, "a card names no path of the user's machine"
    assert not (out / "training_args.bin").exists()

    predictions = pq.read_table(out / "predictions.parquet").to_pydict()
    test = [i for i, split in enumerate(predictions["split"]) if split == "test"]
    right = [np.argmax(predictions["scores"][i]) == predictions["label"][i] for i in test]
    assert np.mean(right) == pytest.approx(found["metrics"]["test"]["accuracy"])
    assert all(rows(160)[predictions["row"][i]][1] == found["labels"][predictions["label"][i]] for i in test)

    pipe = pipeline(
        "text-classification",
        model=AutoModelForSequenceClassification.from_pretrained(out),
        tokenizer=AutoTokenizer.from_pretrained(out),
    )
    assert [x["label"] for x in pipe(["a great film", "a dull film"])] == ["positive", "negative"]


def test_the_same_settings_give_the_same_figures(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    first, again, other = (tmp_path / name for name in ("first", "again", "other"))
    assert headwise("train", "--data", reviews, "--out", first, "--epochs", 2, "--model", "rpr", *SMALL)[0] == 0
    assert headwise("train", "--config", first / "run.yaml", "--out", again)[0] == 0
    assert headwise("train", "--config", first / "run.yaml", "--out", other, "--seed", 1)[0] == 0
    assert figures(again)["metrics"] == figures(first)["metrics"]
    scores = [pq.read_table(folder / "predictions.parquet")["scores"].to_pylist() for folder in (first, again, other)]
    assert scores[0] == scores[1]
    assert scores[0] != scores[2]


@pytest.mark.parametrize("retrofit", [None, "distance-aware", "rpr"])
def test_a_hugging_face_model_guided_and_retrofitted(bert: Path, reviews: Path, tmp_path: Path, retrofit: Any) -> None:
    settings = TextConfig(
        data=(str(reviews),),
        model=str(bert),
        retrofit=retrofit,
        guides=("mdg", "first=0.1"),
        epochs=2,
        learning_rate=1e-3,
        batch_size=16,
    )
    done = train(settings, tmp_path / "run")
    history = [log for log in done.metrics["history"] if "loss" in log]
    assert {"guide/MapDiscrimination", "guide/MapDiscrimination/weight", "guide/First"} <= history[0].keys()
    model = hw.from_pretrained(done.run_dir, AutoModelForSequenceClassification)
    parameters = hw.scheme_parameters(model)
    assert bool(parameters) == (retrofit is not None)
    assert all(bool((parameter != 0).any()) for parameter in parameters), "what was put in was learnt"
    scores = pq.read_table(done.run_dir / "predictions.parquet")
    tokenizer, kept = AutoTokenizer.from_pretrained(done.run_dir), rows(160)
    for row, score in zip(scores["row"].to_pylist()[:3], scores["scores"].to_pylist()[:3], strict=True):
        logits = model.eval()(**tokenizer(kept[row][0], return_tensors="pt")).logits
        torch.testing.assert_close(logits[0].double(), torch.tensor(score).double(), atol=1e-4, rtol=1e-4)


def test_an_epoch_is_chosen_by_dev_and_training_stops_early(reviews: Path, tmp_path: Path) -> None:
    settings = TextConfig(
        data=(str(reviews),), heads=2, head_dim=8, word_dim=16, epochs=30, learning_rate=0.02, batch_size=16, patience=2
    )
    found = train(settings, tmp_path / "run").metrics
    dev = [log["eval_accuracy"] for log in found["history"] if "eval_accuracy" in log]
    assert len(dev) < 30
    assert found["metrics"]["dev"]["accuracy"] == pytest.approx(max(dev))


def test_fewer_rows_and_texts_that_are_cut_are_told(reviews: Path, tmp_path: Path) -> None:
    settings = TextConfig(
        data=(str(reviews),), heads=2, head_dim=8, word_dim=16, epochs=1, rows=40, max_length=5, batch_size=16
    )
    found = train(settings, tmp_path / "run").metrics
    assert found["dataset"].endswith("40 of the training rows, drawn by seed 0.")
    assert any(note.startswith("longer than 5 tokens (--max-length) and cut: ") for note in found["notes"])


@pytest.mark.parametrize("pairs", ["joint", "siamese"])
def test_pairs(pairs: Any, tmp_path: Path) -> None:
    texts = rows(200)
    same = [
        (a, b, "same" if x == y else "other") for (a, x), (b, y) in zip(texts, [*texts[3:], *texts[:3]], strict=True)
    ] + [(a, a, "same") for a, _ in texts[:100]]
    data = write(tmp_path / "pairs.csv", ("premise", "hypothesis", "label"), list(same))
    settings = TextConfig(data=(str(data),), pairs=pairs, heads=2, head_dim=8, word_dim=16, epochs=2, batch_size=16)
    assert train(settings, tmp_path / "run").metrics["inputs"]["pair"] == pairs


def test_ratings(tmp_path: Path) -> None:
    rated = [(text, str(4.5 if label == "positive" else 1.0)) for text, label in rows(160)]
    data = write(tmp_path / "rated.csv", ("text", "stars"), list(rated))
    settings = TextConfig(
        data=(str(data),), label_type="regression", heads=2, head_dim=8, word_dim=16, epochs=12, learning_rate=0.01
    )
    found = train(settings, tmp_path / "run").metrics
    assert found["metrics"]["test"]["rmse"] < 1.0, "half as far off as the mean"


def test_several_labels(tmp_path: Path) -> None:
    lines = [(f"{text} {other}", f"{label}|long" if other else label) for text, label in rows(160) for other in [""]]
    lines = [(text + (" music music" if i % 3 == 0 else ""), label + ("|song" if i % 3 == 0 else ""))
             for i, (text, label) in enumerate(lines)]  # fmt: skip
    data = write(tmp_path / "several.csv", ("text", "labels"), list(lines))
    settings = TextConfig(
        data=(str(data),), label_type="multi-label", heads=2, head_dim=8, word_dim=16, epochs=8, learning_rate=0.01
    )
    found = train(settings, tmp_path / "run").metrics
    assert found["labels"] == ["negative", "positive", "song"]
    assert found["metrics"]["test"]["micro_f1"] > 0.7


@pytest.mark.parametrize("model", ["tener", "bert"])
def test_tags_of_words(model: Any, bert: Path, tmp_path: Path) -> None:
    lines = []
    for text, _ in rows(120):
        words = text.split()
        lines += [f"{word} {'B-GOOD' if word in ('good', 'fine', 'great', 'lovely') else 'O'}" for word in words] + [""]
    (tmp_path / "tags.conll").write_text("\n".join(lines))
    settings = TextConfig(
        data=(str(tmp_path / "tags.conll"),),
        label_type="tokens",
        epochs=12,
        learning_rate=0.01,
        batch_size=16,
        **{"model": str(bert)} if model == "bert" else {"model": model, "heads": 2, "head_dim": 8, "word_dim": 16},
    )
    found = train(settings, tmp_path / "run").metrics
    assert found["labels"] == ["O", "B-GOOD"]
    assert found["metrics"]["test"]["f1"] > 0.85


def test_long_texts_by_sentences(tmp_path: Path) -> None:
    lines = [(". ".join([a, b, c]), label) for (a, label), (b, _), (c, _) in zip(*[rows(120)] * 3, strict=True)]
    data = write(tmp_path / "long.csv", ("text", "label"), list(lines))
    settings = TextConfig(
        data=(str(data),),
        hierarchy=(6, 2),
        heads=2,
        head_dim=8,
        word_dim=16,
        epochs=5,
        learning_rate=0.01,
        batch_size=8,
    )
    found = train(settings, tmp_path / "run").metrics
    assert found["metrics"]["test"]["accuracy"] > 0.8
    assert any("2 sentences of 6 words (--hierarchy) and cut" in note for note in found["notes"])
