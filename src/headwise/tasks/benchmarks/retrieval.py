"""Ranking of documents for claims: SciFact and Cross-genre-IR."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import ClassLabel, Dataset, Features, Value

from headwise.errors import UserError
from headwise.tasks import labels
from headwise.tasks.arrow_cache import Field, Source, load_rows
from headwise.tasks.benchmarks.layout import find_files
from headwise.tasks.formats import read_batches, read_head
from headwise.tasks.splitting import shuffled_indices, stratified_split
from headwise.tasks.task import Examples, Task

CLASSES = ("other", "relevant")
NUM_CANDIDATES = 20
NUM_NEGATIVES = 5  # of each training claim, drawn from its candidates

FEATURES = Features(
    {
        "text": Value("string"),
        "pair": Value("string"),
        "label": ClassLabel(names=list(CLASSES)),
        "row": Value("int64"),
        "query": Value("string"),
        "document": Value("string"),
    }
)


@dataclass(frozen=True)
class Claim:
    """A claim.

    Args:
        row: Its index in the file.
        name: Its id.
        text: The text.
        relevant: The ids of the documents that it cites.
    """

    row: int
    name: str
    text: str
    relevant: frozenset[str]


def load_scifact(data: Path | None, seed: int, cache: Path | None) -> Examples:
    """Load SciFact, with BM25's best documents as candidates."""
    files = find_all_files(data, {name: (f"{name}.jsonl",) for name in ("claims_train", "claims_dev", "corpus")})
    abstracts = read_records(files["corpus"], "doc_id", "title", "abstract")
    corpus = {str(number): f"{title} {' '.join(sentences)}" for number, title, sentences in abstracts}
    published, test = read_claims(files["claims_train"], corpus), read_claims(files["claims_dev"], corpus)
    indices = stratified_split(np.zeros(len(published)), {"dev": len(published) // 10}, seed)
    train, dev = ([published[index] for index in indices[name]] for name in ("rest", "dev"))
    candidates = find_candidates([*published, *test], corpus)
    pairs = {
        "train": [pair for claim in train for pair in training_pairs(claim, candidates[claim], seed)],
        "dev": [(claim, document) for claim in dev for document in candidates[claim]],
        "test": [(claim, document) for claim in test for document in candidates[claim]],
    }
    splits = {split: build_dataset(split_pairs, corpus) for split, split_pairs in pairs.items()}
    recipe = (
        f"SciFact ({format_names(files)}). train/dev/test {len(train)}/{len(dev)}/{len(test)} claims: test is the "
        f"published dev, as the published test has no labels, dev is 10% of train, seed {seed}. Candidates are BM25's "
        f"best {NUM_CANDIDATES} of {len(corpus):,} abstracts; training uses the cited abstracts of a claim and "
        f"{NUM_NEGATIVES} of its other candidates. {describe_missing(splits)}"
    )
    return Examples(splits, CLASSES, recipe, ordered_by="BM25")


def find_all_files(data: Path | None, patterns: Mapping[str, Sequence[str]]) -> dict[str, Path]:
    """Find files.

    Raises:
        UserError: A file is missing.
    """
    expected = ", ".join(" or ".join(names) for names in patterns.values())
    if data is None:
        raise UserError(f"--data is required: a directory with {expected}; this task is not on the hub")
    files = find_files(data, patterns)
    missing = [" or ".join(names) for name, names in patterns.items() if name not in files]
    if missing:
        raise UserError(f"{data}: no {', '.join(missing)}; expected {expected}, gzipped or not")
    return files


def format_names(files: Mapping[str, Path]) -> str:
    """Return the names of files, for a recipe."""
    return ", ".join(file.name for file in files.values())


def read_records(path: Path, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Read the values of columns, row by row."""
    for batch in read_batches(path, columns):
        yield from zip(*(batch.columns[name] for name in columns), strict=True)


def read_claims(path: Path, corpus: Mapping[str, str]) -> list[Claim]:
    """Read the claims of a file.

    Raises:
        UserError: A claim cites a document that is not in the corpus.
    """
    claims = []
    for row, (name, text, cited) in enumerate(read_records(path, "id", "claim", "cited_doc_ids")):
        relevant = frozenset(map(str, cited))
        if unknown := relevant - corpus.keys():
            raise UserError(f"{path}: claim {name} cites document {min(unknown)}, which is not in the corpus")
        claims.append(Claim(row, str(name), text, relevant))
    return claims


def find_candidates(claims: Sequence[Claim], corpus: Mapping[str, str]) -> dict[Claim, list[str]]:
    """Return the ids of each claim's candidates, best first."""
    ids = list(corpus)
    best = rank_bm25([claim.text for claim in claims], list(corpus.values()), NUM_CANDIDATES)
    return {claim: [ids[index] for index in indices] for claim, indices in zip(claims, best, strict=True)}


def rank_bm25(queries: Sequence[str], documents: Sequence[str], count: int) -> list[list[int]]:
    """Return the indices of the best documents of each query by BM25 (Lucene's, k1 = 1.5, b = 0.75).

    Documents with equal scores keep their order.
    """
    bm25s = import_bm25s()
    index = bm25s.BM25()
    index.index(
        bm25s.tokenize(list(documents), stopwords="en", return_ids=False, show_progress=False), show_progress=False
    )
    best = []
    for words in bm25s.tokenize(list(queries), stopwords="en", return_ids=False, show_progress=False):
        scores = index.get_scores(words) if words else np.zeros(len(documents))
        best.append(np.argsort(-scores, kind="stable")[:count].tolist())
    return best


def import_bm25s() -> Any:
    """Import bm25s. It imports JAX if installed, which by default reserves three quarters of the GPU memory."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import bm25s

    return bm25s


def training_pairs(claim: Claim, candidates: Sequence[str], seed: int) -> list[tuple[Claim, str]]:
    """Return a claim with its relevant documents and some of its other candidates."""
    others = [document for document in candidates if document not in claim.relevant]
    drawn = sorted(shuffled_indices(len(others), (seed, claim.row))[:NUM_NEGATIVES])
    return [(claim, document) for document in (*sorted(claim.relevant), *(others[index] for index in drawn))]


def build_dataset(pairs: Sequence[tuple[Claim, str]], corpus: Mapping[str, str]) -> Dataset:
    """Build a dataset from claims and ids of documents."""
    columns = {
        "text": [claim.text for claim, _ in pairs],
        "pair": [corpus[document] for _, document in pairs],
        "label": [int(document in claim.relevant) for claim, document in pairs],
        "row": [claim.row for claim, _ in pairs],
        "query": [claim.name for claim, _ in pairs],
        "document": [document for _, document in pairs],
    }
    return Dataset.from_dict(columns, features=FEATURES)


def describe_missing(splits: Mapping[str, Dataset]) -> str:
    """Describe how many queries have no relevant candidate."""
    counts = []
    for name in ("dev", "test"):
        rows = splits[name].select_columns(["query", "label"])[:]
        answered = {query for query, label in zip(rows["query"], rows["label"], strict=True) if label}
        queries = set(rows["query"])
        counts.append(f"{len(queries - answered)} of {name}'s {len(queries)}")
    return f"Claims without a relevant candidate, which metrics exclude: {' and '.join(counts)}."


def load_cross_genre(data: Path | None, seed: int, cache: Path | None) -> Examples:
    """Load Cross-genre-IR."""
    patterns = {name: (f"{name}_dataset.csv", f"{name}.csv") for name in ("train", "dev", "test")}
    files = find_all_files(data, patterns)
    splits = {name: load_pairs(path, cache) for name, path in files.items()}
    sizes = "/".join(f"{len(rows):,}" for rows in splits.values())
    recipe = (
        f"Cross-genre-IR ({format_names(files)}). train/dev/test {sizes} pairs: split as given. "
        f"{describe_missing(splits)}"
    )
    return Examples(splits, CLASSES, recipe)


def load_pairs(path: Path, cache: Path | None) -> Dataset:
    """Load claims (`Hypothesis`), abstracts, their ids (`PMID`) and labels; the label is the last other column."""
    columns = [name for name in read_head(path).columns if name != "PMID"]
    if len(columns) != 3 or "Hypothesis" not in columns[:2]:
        raise UserError(
            f"{path}: expected an abstract, Hypothesis, a label and PMID; the columns are {', '.join(columns)}"
        )
    abstract = columns[1 - columns.index("Hypothesis")]
    fields = {
        "text": Field("Hypothesis", pa.string(), labels.parse_text),
        "pair": Field(abstract, pa.string(), labels.parse_text),
        "label": Field(columns[2], pa.string(), labels.label_parser(dict(zip("01", CLASSES, strict=True))), "01"),
        "document": Field("PMID", pa.string(), str),
    }
    rows = load_rows(Source((path,), read_batches, ""), fields, cache=cache)
    data = labels.encode_labels(path.name, rows, CLASSES).remove_columns(["line", "file"])
    return data.add_column("query", rows.column("text").combine_chunks())


SCIFACT = Task(
    name="scifact",
    label_type="ranking",
    about="rank abstracts for a scientific claim: those that support or refute it are relevant",
    source="claims_{train,dev}.jsonl and corpus.jsonl. This is an open alternative to cross-genre-ir",
    read=load_scifact,
    pair=True,
)

CROSS_GENRE_IR = Task(
    name="cross-genre-ir",
    label_type="ranking",
    about="rank publications for a claim in the news: the publication that it is based on is relevant",
    paper="attention guiding, Table 1: 5 epochs",
    source="{train,dev,test}_dataset.csv with an abstract, a claim (column Hypothesis), a label (0 or 1) and PMID",
    read=load_cross_genre,
    pair=True,
)
