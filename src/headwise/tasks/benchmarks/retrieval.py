"""Ranking of documents for claims: SciFact and Cross-genre-IR."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset

from headwise.errors import UserError
from headwise.tasks import labels
from headwise.tasks.arrow_cache import Field, Source, load_rows
from headwise.tasks.benchmarks.layout import find_files
from headwise.tasks.formats import read_batches, read_head
from headwise.tasks.ranking import CLASSES, Query, build_splits, describe_candidates, describe_missing
from headwise.tasks.splitting import stratified_split
from headwise.tasks.task import Examples, Task


def load_scifact(data: Path | None, seed: int, cache: Path | None) -> Examples:
    """Load SciFact, with BM25's best documents as candidates."""
    files = find_all_files(data, {name: (f"{name}.jsonl",) for name in ("claims_train", "claims_dev", "corpus")})
    abstracts = read_records(files["corpus"], "doc_id", "title", "abstract")
    corpus = {str(number): f"{title} {' '.join(sentences)}" for number, title, sentences in abstracts}
    published, test = read_claims(files["claims_train"], corpus), read_claims(files["claims_dev"], corpus)
    indices = stratified_split(np.zeros(len(published)), {"dev": len(published) // 10}, seed)
    train, dev = ([published[index] for index in indices[name]] for name in ("rest", "dev"))
    splits = build_splits({"train": train, "dev": dev, "test": test}, corpus, seed)
    recipe = (
        f"SciFact ({format_names(files)}). train/dev/test {len(train)}/{len(dev)}/{len(test)} claims: test is the "
        f"published dev, as the published test has no labels, dev is 10% of train, seed {seed}. "
        f"{describe_candidates(corpus)} {describe_missing(splits)}"
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
    """Read the values of columns, row by row.

    Raises:
        UserError: A value is missing.
    """
    for batch in read_batches(path, columns):
        for index, values in enumerate(zip(*(batch.columns[name] for name in columns), strict=True)):
            if None in values:
                raise UserError(f"{batch.location(index)}: no {columns[values.index(None)]!r}")
            yield values


def read_claims(path: Path, corpus: Mapping[str, str]) -> list[Query]:
    """Read the claims of a file.

    Raises:
        UserError: A claim cites a document that is not in the corpus.
    """
    claims = []
    for row, (name, text, cited) in enumerate(read_records(path, "id", "claim", "cited_doc_ids")):
        relevant = frozenset(map(str, cited))
        if unknown := relevant - corpus.keys():
            raise UserError(f"{path}: claim {name} cites document {min(unknown)}, which is not in the corpus")
        claims.append(Query(row, str(name), text, relevant))
    return claims


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
