"""Built-in tasks read the published layouts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import ClassLabel, Dataset, DatasetDict

from headwise.errors import UserError
from headwise.tasks import Examples, get_task, hub, list_tasks, load_files
from headwise.tasks.ranking import rank_bm25
from tests.tasks.files import Columns, sample_columns, write_file


def load(name: str, directory: Path) -> Examples:
    return get_task(name).load(directory, cache=directory / "cache")


def sizes(examples: Examples) -> list[int]:
    return [len(examples.splits[split]) for split in ("train", "dev", "test")]


def test_every_task_has_a_description_a_source_and_a_primary_metric() -> None:
    assert len({task.name for task in list_tasks()}) == len(list_tasks()) == 15
    for task in list_tasks():
        assert task.about
        assert task.source
        assert task.primary in {"accuracy", "rmse", "f1", "mrr", "auc", "bleu"}
        assert get_task(task.name) is task
    with pytest.raises(UserError, match=r"no task 'ag'; the tasks are ag-news, .*, mind, translation"):
        get_task("ag")
    with pytest.raises(UserError, match=r"no task 'transaltion'; did you mean translation\?"):
        get_task("transaltion")


@pytest.mark.parametrize("task", [task for task in list_tasks() if task.read is not None], ids=lambda task: task.name)
def test_an_empty_directory_raises_an_error_with_the_expected_files(task: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected .*(train|corpus|json)"):
        task.load(tmp_path)
    with pytest.raises(UserError, match="no such file or directory"):
        task.load(tmp_path / "none")


def test_ag_news_as_published_has_no_header(tmp_path: Path) -> None:
    rows = [f'"{number % 4 + 1}","Title {number}","Some ""news"", \\$5"\n' for number in range(40)]
    (tmp_path / "train.csv").write_text("".join(rows))
    (tmp_path / "test.csv").write_text("".join(rows[:8]))
    examples = load("ag-news", tmp_path)
    assert sizes(examples) == [36, 4, 8]
    assert examples.labels == ("World", "Sports", "Business", "Sci/Tech")
    assert examples.splits["test"][1] == {"text": 'Title 1 Some "news", \\$5', "row": 1, "label": 1}
    assert "40 of the 120,000 published train rows" in examples.recipe
    assert "dev is 10% of train, stratified, seed 0" in examples.recipe


def test_ag_news_with_a_header_and_without_titles(tmp_path: Path) -> None:
    columns: Columns = {"label": [1, 2] * 10, "title": ["", "T"] * 10, "text": ["News"] * 20, "source": ["x"] * 20}
    write_file(tmp_path / "train_subset.csv.gz", columns)
    write_file(tmp_path / "test.csv.gz", {"label": [1, 2], "title": ["T", ""], "description": ["News", "News"]})
    examples = load("ag-news", tmp_path)
    assert examples.splits["test"]["text"][:] == ["T News", "News"]
    write_file(tmp_path / "dev.csv", {"label": [3], "title": ["Own"], "text": ["dev row"]})
    examples = load("ag-news", tmp_path)
    assert sizes(examples) == [20, 1, 2]
    assert examples.splits["dev"]["text"][:] == ["Own dev row"]


def reviews(count: int) -> dict[str, Sequence[Any]]:
    return {
        "reviewerID": ["A"] * count,
        "reviewText": [f"Review {number}" if number else "" for number in range(count)],
        "overall": [float(number % 5 + 1) for number in range(count)],
    }


def test_amazon_as_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path / "reviews_Electronics_5.json.gz", reviews(101))
    examples = load("amazon-electronics", tmp_path)
    assert examples.labels == ("1", "2", "3", "4", "5")
    assert sizes(examples) == [80, 10, 10]
    assert sorted(row for rows in examples.splits.values() for row in rows["row"]) == list(range(1, 101))
    ratings = load("amazon-electronics-rating", tmp_path)
    for row in ratings.splits["train"]:
        assert row["label"] == row["row"] % 5 + 1
    monkeypatch.setattr("headwise.tasks.benchmarks.reviews.SPLIT_SIZES", {"dev": 5, "test": 5, "train": 40})
    drawn = load("amazon-electronics", tmp_path)
    assert sizes(drawn) == [40, 5, 5]
    assert sorted(drawn.splits["test"]["label"]) == [0, 1, 2, 3, 4]
    assert "drawn from 100 rows" in drawn.recipe


def test_amazon_csv_with_several_domains(tmp_path: Path) -> None:
    columns = {"domain": ["books", "electronics"] * 20, "stars": ["5.0", "1.0", "1.0", "2.0"] * 10, "text": ["a"] * 40}
    write_file(tmp_path / "all_stars.csv", columns)
    examples = load("amazon-electronics", tmp_path)
    assert sizes(examples) == [16, 2, 2]
    assert {row["label"] for row in examples.splits["train"]} == {0, 1}


def test_sentiment_treebank_as_trees(tmp_path: Path) -> None:
    trees = (
        "(4 (2 Fine) (2 (2 -LRB-) (2 film)))",
        "(0 (2 Bad) (3 (2 old) (2 film)))",
        "(2 (2 A) (2 film))",
        "(1 (2 Poor))",
    )
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.txt").write_text("\n".join(trees))
    five, two = load("sst5", tmp_path), load("sst2", tmp_path)
    assert five.splits["train"]["text"][:] == ["Fine ( film", "Bad old film", "A film", "Poor"]
    assert five.splits["train"]["label"][:] == [4, 0, 2, 1]
    assert two.splits["train"]["label"][:] == [1, 0, 0]
    assert two.splits["train"]["row"][:] == [0, 1, 3]
    assert "3 rows left out: neutral" in two.recipe


def test_sentiment_treebank_as_lines(tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        (tmp_path / f"stsa.binary.{split}").write_text("1 a fine film\n0 a poor one\n")
    assert load("sst2", tmp_path).splits["dev"][0] == {"text": "a fine film", "row": 0, "label": 1}
    (tmp_path / "stsa.binary.dev").write_text("1 a fine film\nwhat\n")
    with pytest.raises(UserError, match="line 2: expected a tree"):
        load("sst2", tmp_path)


def nli_columns(count: int = 30) -> dict[str, Sequence[Any]]:
    labels = ["entailment", "neutral", "contradiction"]
    return {
        "gold_label": ["-" if number == 3 else labels[number % 3] for number in range(count)],
        "sentence1": [f"Premise {number}" for number in range(count)],
        "sentence2": ["" if number == 9 else "Hypothesis" for number in range(count)],
        "annotator_labels": [["neutral"]] * count,
    }


@pytest.mark.parametrize(("name", "file"), [("snli", "snli_1.0_{}.jsonl"), ("mednli", "mli_{}_v1.jsonl")])
def test_nli_as_published(tmp_path: Path, name: str, file: str) -> None:
    for split in ("train", "dev", "test"):
        write_file(tmp_path / file.format(split), nli_columns())
    examples = load(name, tmp_path)
    assert examples.labels == ("entailment", "neutral", "contradiction")
    assert sizes(examples) == [28, 28, 28]
    assert examples.splits["train"][3] == {"text": "Premise 4", "pair": "Hypothesis", "row": 4, "label": 1}
    assert "6 rows left out: no majority label, or an empty text" in examples.recipe


def test_the_cache_of_a_benchmark_is_not_used_for_own_data(tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        write_file(tmp_path / f"snli_1.0_{split}.jsonl", nli_columns())
    load("snli", tmp_path)
    with pytest.raises(UserError, match="line 10: column 'sentence2': empty text"):
        load_files(tmp_path, cache=tmp_path / "cache")


def test_multinli_with_fixed_splits(tmp_path: Path) -> None:
    for split, count in (("train", 200), ("dev", 20), ("test", 30)):
        write_file(tmp_path / f"{split}.csv", nli_columns(count))
    examples = load("multinli", tmp_path)
    assert sizes(examples) == [198, 18, 28]
    assert "published" not in examples.recipe


def test_multinli_is_evaluated_on_dev_matched(tmp_path: Path) -> None:
    write_file(tmp_path / "multinli_1.0_train.jsonl", nli_columns(200))
    write_file(tmp_path / "multinli_1.0_dev_matched.jsonl", nli_columns(30))
    write_file(tmp_path / "multinli_1.0_dev_mismatched.jsonl", nli_columns(60))
    examples = load("multinli", tmp_path)
    assert sizes(examples) == [193, 5, 28]
    assert "test is the published dev-matched" in examples.recipe


def test_an_unknown_label_raises_an_error(tmp_path: Path) -> None:
    write_file(tmp_path / "rte_train.csv", {"premise": ["a"], "hypothesis": ["b"], "label": ["maybe"]})
    with pytest.raises(UserError, match="line 2: label 'maybe' is unknown; expected entailment, not_entailment"):
        load("rte", tmp_path)


def test_healthver_without_train_uses_dev_for_training(tmp_path: Path) -> None:
    columns = {
        "label": ["Supports", "Refutes"] * 10,
        "evidence": ["e"] * 20,
        "claim": ["c"] * 20,
        "question": ["q"] * 20,
    }
    write_file(tmp_path / "healthver_dev.csv.gz", columns)
    write_file(tmp_path / "healthver_test.csv.gz", columns)
    examples = load("healthver", tmp_path)
    assert sizes(examples) == [18, 2, 20]
    assert (examples.splits["test"][0]["text"], examples.splits["test"][0]["pair"]) == ("c", "e")
    assert "no train file: the published dev is used for training" in examples.recipe


def write_scifact(directory: Path) -> None:
    documents = [{"doc_id": n, "title": f"Topic{n}", "abstract": [f"About topic{n} .", "More ."]} for n in range(30)]
    claims = [{"id": 100 + n, "claim": f"Claim on topic{n}", "cited_doc_ids": [n], "evidence": {}} for n in range(30)]
    unmatched = {"id": 999, "claim": "Unlike anything", "cited_doc_ids": [29], "evidence": {}}
    for name, rows in (("corpus", documents), ("claims_train", claims), ("claims_dev", [*claims[:3], unmatched])):
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_scifact_has_candidates_of_bm25(tmp_path: Path) -> None:
    write_scifact(tmp_path)
    examples = load("scifact", tmp_path)
    assert examples.labels == ("other", "relevant")
    assert sizes(examples) == [27 * 6, 3 * 20, 4 * 20]
    test = examples.splits["test"]
    assert test[0] == {
        "text": "Claim on topic0",
        "pair": "Topic0 About topic0 . More .",
        "label": 1,
        "row": 0,
        "query": "100",
        "document": "0",
    }
    assert {row["query"] for row in examples.splits["train"]}.isdisjoint(row["query"] for row in examples.splits["dev"])
    assert sum(examples.splits["train"]["label"]) == 27
    assert "0 of dev's 3 and 1 of test's 4." in examples.recipe
    metrics = get_task("scifact").metrics(-test.to_pandas().index.to_numpy(), test)
    assert (metrics["mrr"], metrics["queries"], metrics["queries_without_hit"]) == (1.0, 3.0, 1.0)
    assert load("scifact", tmp_path).splits["train"]["document"][:] == examples.splits["train"]["document"][:]


def test_scifact_without_a_cited_document_raises_an_error(tmp_path: Path) -> None:
    write_scifact(tmp_path)
    (tmp_path / "corpus.jsonl").write_text('{"doc_id": 1, "title": "T", "abstract": ["A"]}\n')
    with pytest.raises(UserError, match=r"claims_train\.jsonl: claim 100 cites document 0, which is not in the corpus"):
        load("scifact", tmp_path)
    (tmp_path / "corpus.jsonl").unlink()
    with pytest.raises(UserError, match=r"no corpus\.jsonl; expected"):
        load("scifact", tmp_path)


def test_bm25_ranks_by_shared_words_and_keeps_the_order_of_ties() -> None:
    documents = ["the cat sat", "a dog sat", "a dog and a cat", "nothing"]
    assert rank_bm25(["cat dog", "zebra"], documents, 2) == [[2, 0], [0, 1]]


def test_cross_genre_ir(tmp_path: Path) -> None:
    columns: Columns = {
        "Premise": ["Abstract one", "Abstract two"] * 4,
        "Hypothesis": ["A"] * 4 + ["B"] * 4,
        "Label": [1, 0] * 4,
    }
    for split in ("train", "dev", "test"):
        write_file(tmp_path / f"{split}_dataset.csv", {**columns, "PMID": [10, 20] * 4})
    examples = load("cross-genre-ir", tmp_path)
    assert examples.splits["test"][5] == {
        "text": "B",
        "pair": "Abstract two",
        "document": "20",
        "row": 5,
        "query": "B",
        "label": 0,
    }
    assert get_task("cross-genre-ir").metrics([1.0, 0.0] * 4, examples.splits["test"])["mrr"] == 1.0
    write_file(tmp_path / "dev_dataset.csv", {**columns, "PMID": [10, 20] * 4, "Label": [1, 2] * 4})
    with pytest.raises(UserError, match=r"dev_dataset\.csv, line 3: label '2'"):
        load("cross-genre-ir", tmp_path)


def test_conll2003(tmp_path: Path) -> None:
    for name in ("eng.train", "eng.testa", "eng.testb"):
        (tmp_path / name).write_text("-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nsays VBZ I-VP O\n\n")
    examples = load("conll2003", tmp_path)
    assert sizes(examples) == [1, 1, 1]
    assert examples.labels == ("O", "I-ORG")


def test_without_a_path_the_data_comes_from_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def load_dataset(path: str, configuration: str | None) -> DatasetDict:
        assert path == "stanfordnlp/snli"
        columns = {"premise": ["a"] * 20, "hypothesis": ["b"] * 20, "label": [0, 1, 2, -1] * 5}
        rows = Dataset.from_dict(columns).cast_column(
            "label", ClassLabel(names=["entailment", "neutral", "contradiction"])
        )
        return DatasetDict(train=rows, validation=rows, test=rows)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(hub, "is_hub_reachable", lambda *_: True)
    examples = get_task("snli").load(cache=tmp_path)
    assert sizes(examples) == [15, 15, 15]
    assert examples.splits["train"]["label"][:] == [0, 1, 2] * 5
    with pytest.raises(UserError, match=r"--data is required: a directory with mli_train_v1\.jsonl"):
        get_task("mednli").load(cache=tmp_path)


def test_one_file_is_split(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.csv", sample_columns(100, ("0", "1")))
    assert sizes(get_task("sst2").load(path, cache=tmp_path / "cache")) == [80, 10, 10]
