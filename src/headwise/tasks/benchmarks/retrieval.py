"""Which documents does a claim rest on? Candidates are ranked anew: SciFact and Cross-genre-IR."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import ClassLabel, Dataset, Features, Value

from headwise.errors import UserError
from headwise.tasks import labels
from headwise.tasks.arrow_cache import Field, Source, store
from headwise.tasks.benchmarks.bm25 import candidates
from headwise.tasks.benchmarks.layout import files
from headwise.tasks.formats import read_batches, read_head
from headwise.tasks.splitting import shuffled_indices, split
from headwise.tasks.task import Examples, Task

LABELS = ("other", "relevant")
CANDIDATES = 20
NEGATIVES = 5  # for each claim of train, drawn from its candidates

FEATURES = Features(
    {
        "text": Value("string"),
        "pair": Value("string"),
        "label": ClassLabel(names=list(LABELS)),
        "row": Value("int64"),
        "query": Value("string"),
        "document": Value("string"),
    }
)


@dataclass(frozen=True)
class Claim:
    row: int
    name: str
    text: str
    relevant: frozenset[str]


def scifact(data: Path | None, seed: int, cache: Path | None) -> Examples:
    found = all_files(data, {name: (f"{name}.jsonl",) for name in ("claims_train", "claims_dev", "corpus")})
    abstracts = records(found["corpus"], "doc_id", "title", "abstract")
    corpus = {str(number): f"{title} {' '.join(sentences)}" for number, title, sentences in abstracts}
    published, test = claims(found["claims_train"], corpus), claims(found["claims_dev"], corpus)
    parts = split(np.zeros(len(published)), {"dev": len(published) // 10}, seed)
    train, dev = ([published[index] for index in parts[name]] for name in ("rest", "dev"))
    ranked = by_words([*published, *test], corpus)
    rows = {
        "train": [row for claim in train for row in to_learn(claim, ranked[claim], seed)],
        "dev": [(claim, name) for claim in dev for name in ranked[claim]],
        "test": [(claim, name) for claim in test for name in ranked[claim]],
    }
    splits = {name: dataset(found_rows, corpus) for name, found_rows in rows.items()}
    told = (
        f"SciFact ({listed(found)}). train/dev/test {len(train)}/{len(dev)}/{len(test)} claims: test is the published "
        f"dev, as the published test has no labels, dev is 10% of train, seed {seed}. Ranked are BM25's first "
        f"{CANDIDATES} of {len(corpus):,} abstracts; learnt from are a claim's cited abstracts and {NEGATIVES} others "
        f"of its {CANDIDATES}. {without_hit(splits)}"
    )
    return Examples(splits, LABELS, told, ordered_by="BM25")


def all_files(data: Path | None, patterns: Mapping[str, Sequence[str]]) -> dict[str, Path]:
    names = ", ".join(" or ".join(wanted) for wanted in patterns.values())
    if data is None:
        raise UserError(f"say where the data is (--data FOLDER with {names}); it is not taken from the hub")
    found = files(data, patterns)
    missing = [" or ".join(wanted) for name, wanted in patterns.items() if name not in found]
    if missing:
        raise UserError(f"{data}: no {', '.join(missing)}; expected {names}, also .gz")
    return found


def listed(found: Mapping[str, Path]) -> str:
    return ", ".join(file.name for file in found.values())


def records(path: Path, *columns: str) -> Iterator[tuple[Any, ...]]:
    for batch in read_batches(path, columns):
        yield from zip(*(batch.columns[name] for name in columns), strict=True)


def claims(path: Path, corpus: Mapping[str, str]) -> list[Claim]:
    found = []
    for row, (name, text, cited) in enumerate(records(path, "id", "claim", "cited_doc_ids")):
        relevant = frozenset(map(str, cited))
        if unknown := relevant - corpus.keys():
            raise UserError(f"{path}: claim {name} cites document {min(unknown)}, which the corpus lacks")
        found.append(Claim(row, str(name), text, relevant))
    return found


def by_words(found: Sequence[Claim], corpus: Mapping[str, str]) -> dict[Claim, list[str]]:
    """The names of each claim's candidates, the best first."""
    names = list(corpus)
    best = candidates([claim.text for claim in found], list(corpus.values()), CANDIDATES)
    return {claim: [names[number] for number in numbers] for claim, numbers in zip(found, best, strict=True)}


def to_learn(claim: Claim, ranked: Sequence[str], seed: int) -> list[tuple[Claim, str]]:
    """What the claim rests on, and some candidates that it does not."""
    others = [name for name in ranked if name not in claim.relevant]
    drawn = sorted(shuffled_indices(len(others), (seed, claim.row))[:NEGATIVES])
    return [(claim, name) for name in (*sorted(claim.relevant), *(others[number] for number in drawn))]


def dataset(rows: Sequence[tuple[Claim, str]], documents: Mapping[str, str]) -> Dataset:
    columns = {
        "text": [claim.text for claim, _ in rows],
        "pair": [documents[name] for _, name in rows],
        "label": [int(name in claim.relevant) for claim, name in rows],
        "row": [claim.row for claim, _ in rows],
        "query": [claim.name for claim, _ in rows],
        "document": [name for _, name in rows],
    }
    return Dataset.from_dict(columns, features=FEATURES)


def without_hit(splits: Mapping[str, Dataset]) -> str:
    """How many queries have nothing to find among their candidates."""
    told = []
    for name in ("dev", "test"):
        rows = splits[name].select_columns(["query", "label"])[:]
        hit = {query for query, label in zip(rows["query"], rows["label"], strict=True) if label}
        queries = set(rows["query"])
        told.append(f"{len(queries - hit)} of {name}'s {len(queries)}")
    return f"Without a relevant candidate, and left out of the metrics: {' and '.join(told)} claims."


def cross_genre(data: Path | None, seed: int, cache: Path | None) -> Examples:
    patterns = {name: (f"{name}_dataset.csv", f"{name}.csv") for name in ("train", "dev", "test")}
    found = all_files(data, patterns)
    made = {name: pairs(path, cache) for name, path in found.items()}
    sizes = "/".join(f"{len(rows):,}" for rows in made.values())
    told = f"Cross-genre-IR ({listed(found)}). train/dev/test {sizes} pairs: split as given. {without_hit(made)}"
    return Examples(made, LABELS, told)


def pairs(path: Path, cache: Path | None) -> Dataset:
    """Rows of a claim, `Hypothesis`, and, in any order, an abstract, its `PMID` and, last, whether it is relevant."""
    columns = [name for name in read_head(path).columns if name != "PMID"]
    if len(columns) != 3 or "Hypothesis" not in columns[:2]:
        raise UserError(f"{path}: expected an abstract, Hypothesis, a label and PMID; there: {', '.join(columns)}")
    abstract = columns[1 - columns.index("Hypothesis")]
    fields = {
        "text": Field("Hypothesis", pa.string(), labels.text),
        "pair": Field(abstract, pa.string(), labels.text),
        "label": Field(columns[2], pa.string(), labels.renamed(dict(zip("01", LABELS, strict=True))), "01"),
        "document": Field("PMID", pa.string(), str),
    }
    rows = store(Source((path,), read_batches, ""), fields, cache=cache)
    data = labels.encode_labels(path.name, rows, LABELS).remove_columns(["line", "file"])
    return data.add_column("query", rows.column("text").combine_chunks())


SCIFACT = Task(
    name="scifact",
    label_type="ranking",
    about="which abstracts does a scientific claim rest on?",
    source="claims_{train,dev}.jsonl, corpus.jsonl; the open stand-in for cross-genre-ir",
    read=scifact,
    pair=True,
)

CROSS_GENRE_IR = Task(
    name="cross-genre-ir",
    label_type="ranking",
    about="which publications does a claim in the news rest on?",
    paper="attention guiding, Table 1: 5 epochs",
    source="{train,dev,test}_dataset.csv: an abstract, a claim (Hypothesis), a label 0 or 1, and PMID",
    read=cross_genre,
    pair=True,
)
