"""Rankings from the user's own queries, documents and relevance judgments."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from headwise.errors import UserError
from headwise.tasks import load_files, load_ranking, summarize
from tests.tasks.files import write_file

ANIMALS = ("cat", "dog", "bird", "fish", "horse", "mouse", "sheep", "goat", "duck", "snake")


def documents() -> dict[str, list[Any]]:
    """Return three documents about each animal."""
    return {
        "_id": [f"d{index}" for index in range(30)],
        "title": [f"The {ANIMALS[index // 3]}" if index % 3 else "" for index in range(30)],
        "text": [f"{ANIMALS[index // 3]} number {index} sleeps" for index in range(30)],
    }


def queries() -> dict[str, list[Any]]:
    """Return two queries about each animal."""
    return {
        "_id": [f"q{index}" for index in range(20)],
        "text": [f"{('where', 'when')[index % 2]} does the {ANIMALS[index // 2]} sleep" for index in range(20)],
    }


def relevance(numbers: Sequence[int]) -> dict[str, list[Any]]:
    """Return judgments of these queries: two relevant documents and one with the score 0."""
    pairs = [(number, 3 * (number // 2) + part) for number in numbers for part in range(3)]
    return {
        "query-id": [f"q{number}" for number, _ in pairs],
        "corpus-id": [f"d{document}" for _, document in pairs],
        "score": [document % 3 for _, document in pairs],
    }


def write_beir(directory: Path, splits: Mapping[str, Sequence[int]], extension: str = "jsonl") -> Path:
    """Write the layout of BEIR."""
    (directory / "qrels").mkdir()
    write_file(directory / f"queries.{extension}", queries())
    write_file(directory / f"corpus.{extension}", documents())
    for split, numbers in splits.items():
        write_file(directory / "qrels" / f"{split}.tsv", relevance(numbers))
    return directory


SPLITS = {"train": range(12), "dev": range(12, 16), "test": range(16, 20)}


@pytest.mark.parametrize("extension", ["jsonl", "csv", "tsv.gz", "parquet", "xlsx"])
def test_the_layout_of_beir(tmp_path: Path, extension: str) -> None:
    task, examples = load_files(write_beir(tmp_path, SPLITS, extension), label_type="ranking")
    assert (task.label_type, task.pair, task.name) == ("ranking", True, tmp_path.name)
    assert examples.ordered_by == "BM25"
    assert "train/dev/test 12/4/4 queries: split as given." in examples.recipe
    train = examples.splits["train"]
    relevant = [(row["query"], row["document"]) for row in train if row["label"]]
    assert relevant[:4] == [("q0", "d1"), ("q0", "d2"), ("q1", "d1"), ("q1", "d2")]
    assert train[0]["pair"] == "The cat cat number 1 sleeps"
    assert len(train) == 12 * 7, "two relevant documents and five others"
    test = examples.splits["test"]
    assert len(test) == 4 * 20, "the best 20 documents by BM25"
    assert {row["document"] for row in test if row["query"] == "q16" and row["label"]} == {"d25", "d26"}
    assert set(test["query"][:]) == {"q16", "q17", "q18", "q19"}
    assert "labels: other" in str(summarize(examples))


def test_other_files_and_column_names(tmp_path: Path) -> None:
    asked = write_file(tmp_path / "asked.csv", dict(zip(("qid", "question"), queries().values(), strict=True)))
    articles = write_file(tmp_path / "articles.csv", {"id": documents()["_id"], "body": documents()["text"]})
    judged = relevance(range(20))
    pairs = [pair for pair in zip(*judged.values(), strict=True) if pair[2]]
    judged_path = write_file(
        tmp_path / "judged.csv", {"query_id": [pair[0] for pair in pairs], "document_id": [pair[1] for pair in pairs]}
    )
    task, examples = load_ranking(queries=asked, documents=articles, relevance=judged_path)
    assert task.name == "asked"
    assert "train/dev/test 16/2/2 queries: split 80/10/10, seed 0." in examples.recipe
    counts = {split: len(set(rows["query"][:])) for split, rows in examples.splits.items()}
    assert counts == {"train": 16, "dev": 2, "test": 2}
    seeds = [load_ranking(queries=asked, documents=articles, relevance=judged_path, seed=seed) for seed in (0, 1)]
    assert seeds[0][1].splits["test"]["query"][:] == examples.splits["test"]["query"][:]
    assert seeds[1][1].splits["test"]["query"][:] != examples.splits["test"]["query"][:]


@pytest.mark.parametrize(
    ("query_id", "document_id"),
    [("query-id", "document-id"), ("queryid", "corpus_id"), ("question_id", "docid"), ("qid", "pid")],
)
def test_ids_have_the_same_column_names_in_all_files(tmp_path: Path, query_id: str, document_id: str) -> None:
    files = {
        "queries": {query_id: queries()["_id"], "text": queries()["text"]},
        "documents": {document_id: documents()["_id"], "text": documents()["text"]},
        "relevance": dict(zip((query_id, document_id, "score"), relevance(range(20)).values(), strict=True)),
    }
    paths: dict[str, Any] = {role: write_file(tmp_path / f"{role}.csv", columns) for role, columns in files.items()}
    _, examples = load_ranking(**paths)
    assert "train/dev/test 16/2/2 queries" in examples.recipe


def test_dev_is_drawn_and_repeated_queries_are_reported(tmp_path: Path) -> None:
    _, examples = load_ranking(write_beir(tmp_path, {"train": range(12), "test": range(10, 14)}))
    assert "train/dev/test 11/1/4 queries: dev is 10% of train, seed 0." in examples.recipe
    assert examples.duplicates == "2 of test's queries are in train too"


def test_bad_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_beir(tmp_path, SPLITS)
    with (tmp_path / "qrels" / "train.tsv").open("a") as file:
        file.write("q0\td99\t1\nq99\td0\t1\nq0\td0\tgood\n\td0\t1\n")
    with (tmp_path / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "d30", "text": " "}\n{"_id": "d0", "text": "again"}\n')
    message = (
        f"6 of 116 rows are invalid: {tmp_path}/corpus.jsonl, line 31 (empty text), "
        f"{tmp_path}/corpus.jsonl, line 32 (document 'd0' is repeated), "
        f"{tmp_path}/qrels/train.tsv, line 38 (document 'd99' is in no file of documents), "
        f"{tmp_path}/qrels/train.tsv, line 39 (query 'q99' is in no file of queries), "
        f"{tmp_path}/qrels/train.tsv, line 40 (expected a number, got 'good') and 1 more"
    )
    with pytest.raises(UserError) as raised:
        load_ranking(tmp_path)
    assert str(raised.value) == f"{message}; correct the rows, or skip them with --skip-bad-rows"
    _, examples = load_ranking(tmp_path, skip_bad_rows=True)
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [f"skipped: {message}"]
    assert "6 invalid rows skipped." in examples.recipe


def test_contradictory_judgments_are_invalid(tmp_path: Path) -> None:
    write_beir(tmp_path, SPLITS)
    with (tmp_path / "qrels" / "train.tsv").open("a") as file:
        file.write("q0\td0\t0\nq0\td0\t1\n")  # the first one repeats an earlier row
    message = "line 39: document 'd0' is relevant to query 'q0' here, and not relevant in an earlier row"
    with pytest.raises(UserError, match=re.escape(f"{message}; correct the row")):
        load_ranking(tmp_path)


def test_missing_files_and_columns_raise_errors(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="no file whose name begins with queries; corpus or documents; qrels or relevance"
    ):
        load_ranking(tmp_path)
    with pytest.raises(UserError, match=r"no such directory; a ranking needs .*, or --queries, "):
        load_ranking(tmp_path / "none")
    with pytest.raises(UserError, match="--documents and --relevance are required: a ranking needs"):
        load_ranking(queries=tmp_path / "queries.csv")
    write_beir(tmp_path, {"test": range(4)})
    with pytest.raises(UserError, match=r"test\.tsv: no relevance file for training"):
        load_ranking(tmp_path)
    write_file(tmp_path / "qrels" / "test.tsv", relevance([1]))
    (tmp_path / "qrels" / "test.tsv").rename(tmp_path / "qrels" / "all.tsv")
    with pytest.raises(UserError, match=r"all\.tsv: 1 queries are too few to draw dev and test from"):
        load_ranking(tmp_path)
    write_file(tmp_path / "queries.jsonl", {"number": [1], "text": ["a"]})
    with pytest.raises(UserError, match=r"queries\.jsonl: expected a column _id, id, .*; the columns are number, text"):
        load_ranking(tmp_path)
    with pytest.raises(UserError, match=r"several files: .*; for a ranking, use --label-type ranking"):
        load_files(tmp_path)
