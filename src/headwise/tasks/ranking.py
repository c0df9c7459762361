"""Queries with candidate documents: BM25 selects the candidates, a model ranks them."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, Features, Value

from headwise.tasks.splitting import shuffled_indices

CLASSES = ("other", "relevant")
NUM_CANDIDATES = 20
NUM_NEGATIVES = 5  # of each training query, drawn from its candidates

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
class Query:
    """A query.

    Args:
        row: Its index in the file.
        name: Its id.
        text: The text.
        relevant: The ids of its relevant documents.
    """

    row: int
    name: str
    text: str
    relevant: frozenset[str]


def build_splits(queries: Mapping[str, Sequence[Query]], corpus: Mapping[str, str], seed: int) -> dict[str, Dataset]:
    """Build the splits of a ranking task.

    Training queries have their relevant documents and NUM_NEGATIVES other candidates. The rows of a query of another
    split are its candidates, the best NUM_CANDIDATES documents by BM25 in this order.

    Args:
        queries: The queries of each split.
        corpus: The text of each document.
        seed: The seed of the sampled candidates.
    """
    candidates = iter(find_candidates([query for split in queries.values() for query in split], corpus))
    splits = {}
    for split, split_queries in queries.items():
        pairs: list[tuple[Query, str]] = []
        for query in split_queries:
            documents = next(candidates)
            if split == "train":
                pairs += training_pairs(query, documents, seed)
            else:
                pairs += [(query, document) for document in documents]
        splits[split] = build_dataset(pairs, corpus)
    return splits


def find_candidates(queries: Sequence[Query], corpus: Mapping[str, str]) -> list[list[str]]:
    """Return the ids of each query's candidates, best first."""
    ids = list(corpus)
    best = rank_bm25([query.text for query in queries], list(corpus.values()), NUM_CANDIDATES)
    return [[ids[index] for index in indices] for indices in best]


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


def training_pairs(query: Query, candidates: Sequence[str], seed: int) -> list[tuple[Query, str]]:
    """Return a query with its relevant documents and some of its other candidates."""
    others = [document for document in candidates if document not in query.relevant]
    drawn = sorted(shuffled_indices(len(others), (seed, query.row))[:NUM_NEGATIVES])
    return [(query, document) for document in (*sorted(query.relevant), *(others[index] for index in drawn))]


def build_dataset(pairs: Sequence[tuple[Query, str]], corpus: Mapping[str, str]) -> Dataset:
    """Build a dataset from queries and ids of documents."""
    columns = {
        "text": [query.text for query, _ in pairs],
        "pair": [corpus[document] for _, document in pairs],
        "label": [int(document in query.relevant) for query, document in pairs],
        "row": [query.row for query, _ in pairs],
        "query": [query.name for query, _ in pairs],
        "document": [document for _, document in pairs],
    }
    return Dataset.from_dict(columns, features=FEATURES)


def describe_candidates(corpus: Mapping[str, str]) -> str:
    """Describe the candidates, for a recipe."""
    return (
        f"Candidates are BM25's best {NUM_CANDIDATES} of {len(corpus):,} documents; training uses the relevant "
        f"documents of a query and {NUM_NEGATIVES} of its other candidates."
    )


def describe_missing(splits: Mapping[str, Dataset]) -> str:
    """Describe how many queries of dev and test have no relevant candidate."""
    counts = []
    for name in ("dev", "test"):
        if name not in splits:
            continue
        rows = splits[name].select_columns(["query", "label"])[:]
        answered = {query for query, label in zip(rows["query"], rows["label"], strict=True) if label}
        queries = set(rows["query"])
        counts.append(f"{len(queries - answered)} of {name}'s {len(queries)}")
    return f"Queries without a relevant candidate, which metrics exclude: {' and '.join(counts)}."
