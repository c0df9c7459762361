"""benchmarks/long_documents.py and its sets and report: ways to read long texts are compared on the same rows."""

import csv
import gzip
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import BertConfig, BertModel

from headwise.models import build_tokenizer

WORDS = [f"word{i}" for i in range(40)]


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return import_module("long_documents")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A BERT that reads 512 tokens."""
    tokenizer = build_tokenizer([" ".join(WORDS)], framed=True, max_tokens=512)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    BertModel(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def read_settings(study: Any, model: Path, data: Path, *options: str) -> Any:
    parser = study.argparse.ArgumentParser()
    study.add_arguments(parser)
    sizes = ["--train-rows", "16", "--dev-rows", "3", "--test-rows", "4", "--epochs", "1", "--batch-size", "4"]
    arguments = ["--out", "unused", "--model", str(model), "--data", str(data), *sizes, *options]
    return study.read_settings(parser.parse_args(arguments))


def write_texts(path: Path, *, pairs: bool = False) -> Path:
    random = np.random.default_rng(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label", *(["first"] if pairs else [])])
        for row in range(36):
            text = " ".join(random.choice(WORDS, size=random.integers(520, 700)))
            writer.writerow([text, "ab"[row % 2], *([" ".join(WORDS[row // 3 : row // 3 + 3])] if pairs else [])])
    return path


def test_windows_cover_a_text_and_head_tail_has_both_ends(study: Any, model: Path, tmp_path: Path) -> None:
    data = study.load_data(read_settings(study, model, write_texts(tmp_path / "texts.csv"), "--min-tokens", "512"))
    for row, tokens in enumerate(data.tokens):
        windows, owners = study.encode(data, [row], study.METHODS["windows"], 512)
        assert owners == [0] * len(windows)
        assert max(map(len, windows)) <= 512
        parts = [window[1:-1] for window in windows]
        covered = parts[0] + [token for part in parts[1:] for token in part[510 // 4 :]]
        assert covered == tokens
        (both,), _ = study.encode(data, [row], study.METHODS["head-tail"], 512)
        assert both[1:-1] == tokens[:127] + tokens[len(tokens) - 383 :]


def test_pairs_with_the_same_first_text_are_in_one_split(study: Any, model: Path, tmp_path: Path) -> None:
    settings = read_settings(study, model, write_texts(tmp_path / "pairs.csv", pairs=True), "--train-rows", "4")
    data = study.load_data(settings)
    tests = []
    for seed in range(3):
        rows = study.split(settings, data, seed)
        firsts = {name: {data.firsts[row] for row in part} for name, part in rows.items()}
        assert not firsts["train"] & firsts["dev"]
        assert not (firsts["train"] | firsts["dev"]) & firsts["test"]
        tests.append(rows["test"].tolist())
    assert tests[0] == tests[1] == tests[2]
    (pair,), _ = study.encode(data, [0], study.METHODS["truncate"], 64)
    types = study.collate([pair], data.tokenizer, "cpu")["token_type_ids"][0].tolist()
    assert len(pair) == 64
    assert types == [0] * 5 + [1] * 59, "the classification token, three words and a separator are the first text"


def test_a_trial_and_its_cost(study: Any, model: Path, tmp_path: Path) -> None:
    settings = read_settings(study, model, write_texts(tmp_path / "texts.csv"), "--min-tokens", "512")
    for method, length in (("tfidf", 512), ("windows", 512), ("tile+relative", 1024)):
        result = study.run_trial(settings, study.Trial(method, length, 1e-3, 0))
        assert {"dev", "test"} <= result.keys()
        assert "test" not in study.run_trial(settings, study.Trial(method, length, 1e-3, study.FIRST_TUNING_SEED))
    assert study.measure_cost(settings, "windows", 512)["ms_per_text"] > 0


def test_report(study: Any, tmp_path: Path) -> None:
    report = import_module("long_documents_report")
    noise = np.random.default_rng(0).normal(0, 0.002, (4, 10))
    means = {("tfidf", 512): 0.8, ("truncate", 512): 0.7, ("tile", 1024): 0.75, ("tile+distance", 1024): 0.751}
    path = tmp_path / "results.jsonl"
    with path.open("w") as file:
        for (cell, mean), errors in zip(means.items(), noise, strict=True):
            for seed, error in enumerate(errors):
                trial = {"method": cell[0], "length": cell[1], "rate": 1e-4, "seed": seed}
                file.write(json.dumps({"settings": {}, "trial": trial, "result": {"test": mean + error}}) + "\n")
        cost = {"method": "tile", "length": 1024, "ms_per_text": 12.5, "peak_mib": 300.0}
        file.write(json.dumps({"cost": cost}) + "\n")
    results = report.read_results([path])
    rows = {line.split(" | ")[0].strip("| "): line for line in report.build_table(results, 1.0).splitlines()}
    assert rows["tile"].count("better") == 1
    assert rows["tile"].count("worse") == 1, "than TF-IDF"
    assert "| 12.5 | 300 | 10 |" in rows["tile"]
    assert "no difference" in rows["tile+distance"], "from tile"
    assert "worse" in rows["truncate"]
    report.draw(results).savefig(tmp_path / "cost.png")


def test_sets(study: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(name: str, lines: list[str]) -> None:
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")

    stars = [("x", 5), ("x", 4), ("y", 1), ("y", 5), ("z", 2)]  # y has 3 stars in the mean
    reviews = [f"books,{s},title,review {i},{asin},p,r" for i, (asin, s) in enumerate(stars)]
    write("amazon_reviews/blitzer_4domains_stars.csv.gz", ["domain,stars,title,text,asin,product,reviewer", *reviews])
    corpus = [{"doc_id": i, "title": f"title {i}", "abstract": [f"{word} cell."]} for i, word in enumerate(WORDS)]
    write("scifact/corpus.jsonl.gz", [json.dumps(x) for x in corpus])
    for name, word in (("train", 3), ("dev", 4)):
        claim = {"id": 1, "claim": f"{WORDS[word]} is a cell", "cited_doc_ids": [word]}
        write(f"scifact/claims_{name}.jsonl.gz", [json.dumps(claim)])
    prepare = import_module("prepare_long_documents")
    arguments = [str(tmp_path / "data"), "--model", str(model), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(prepare, "IMDB", "imdb.csv")
    monkeypatch.setattr(sys, "argv", ["prepare_long_documents.py", *arguments])
    prepare.main()
    with (tmp_path / "out/products.csv").open(newline="") as file:
        products = list(csv.DictReader(file))
    assert [row["label"] for row in products] == ["positive", "negative"]
    assert products[0]["text"] == "title. review 0\ntitle. review 1"
    with (tmp_path / "out/scifact.csv").open(newline="") as file:
        pairs = list(csv.DictReader(file))
    assert [row["label"] for row in pairs] == ["cited", "other"] * 2
    assert all((row["first"].split()[0] in row["text"]) == (row["label"] == "cited") for row in pairs)
