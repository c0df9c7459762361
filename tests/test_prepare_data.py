"""benchmarks/prepare_data.py: splits are fixed, and no text is in two of them."""

import csv
import gzip
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def write(path: Path, header: str, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("\n".join([header, *lines]) + "\n")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    reviews = [f"books,{1 + i % 5}.0,t,review {i % 95},a,b,c" for i in range(100)]
    write(directory / "amazon_reviews/blitzer_4domains_stars.csv.gz", "domain,stars,title,text,asin,product,r", reviews)
    write(directory / "snli/train_subset.csv.gz", "label,premise,hypothesis", ["neutral,a,b", "neutral,in,test"])
    revised = ["entailment,revised,train,train", "entailment,revised,dev,dev"]
    write(directory / "snli/counterfactual_revised.csv.gz", "label,premise,hypothesis,split", revised)
    for split in ("dev", "test"):
        lines = [f"neutral,in,{split}", f"entailment,in,{split}", "neutral,,"]
        write(directory / f"snli/{split}.csv.gz", "label,premise,hypothesis", lines)
    for split in ("dev", "test"):
        lines = [f"Neutral,evidence {i},claim {i // 3} of {split},q" for i in range(60)]
        write(directory / f"medical/healthver_{split}.csv.gz", "label,evidence,claim,question", lines)
    return directory


def prepare(data: Path, out: Path, *names: str) -> str:
    command = [sys.executable, str(ROOT / "benchmarks/prepare_data.py"), str(data), "--out", str(out), "--only", *names]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_set_without_splits(data: Path, tmp_path: Path) -> None:
    output = prepare(data, tmp_path / "a", "amazon-stars", "scitail")
    assert "5 duplicates dropped" in output
    assert "scitail: skipped, nli/scitail_test.csv is missing" in output
    prepare(data, tmp_path / "b", "amazon-stars")
    splits = {name: read(tmp_path / "a/amazon-stars" / f"{name}.csv") for name in ("train", "dev", "test")}
    texts = [row["text"] for rows in splits.values() for row in rows]
    assert sorted(texts) == sorted({f"review {i}" for i in range(95)})
    assert {row["label"] for rows in splits.values() for row in rows} == set("12345")
    assert len(splits["dev"]) >= 8
    assert len(splits["test"]) == 10
    for name in splits:
        paths = [tmp_path / x / "amazon-stars" / f"{name}.csv" for x in ("a", "b")]
        assert paths[0].read_bytes() == paths[1].read_bytes()


def test_published_splits_are_kept(data: Path, tmp_path: Path) -> None:
    prepare(data, tmp_path / "out", "snli")
    splits = {name: read(tmp_path / "out/snli" / f"{name}.csv") for name in ("train", "dev", "test")}
    assert sorted((row["premise"], row["hypothesis"]) for row in splits["train"]) == [("a", "b"), ("revised", "train")]
    for name in ("dev", "test"):
        assert [(row["label"], row["hypothesis"]) for row in splits[name]] == [("neutral", name), ("entailment", name)]


def test_claims_are_not_divided_among_splits(data: Path, tmp_path: Path) -> None:
    prepare(data, tmp_path / "out", "healthver")
    splits = {name: read(tmp_path / "out/healthver" / f"{name}.csv") for name in ("train", "dev", "test")}
    claims = {name: {row["claim"] for row in rows} for name, rows in splits.items()}
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 54, "dev": 6, "test": 60}
    assert not claims["train"] & claims["dev"]
