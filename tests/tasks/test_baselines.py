"""Baselines, computed by hand, and their cache."""

import json
from collections.abc import Callable
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, List
from filelock import FileLock

from headwise.tasks import Examples, LabelType, Task, baselines, tfidf
from headwise.tasks.baselines import Baselines, cache_path, compute_baselines, read_cache

GOOD, BAD = ("good", "fine", "great"), ("bad", "poor", "awful")


def build_examples(train: dict[str, Any], test: dict[str, Any], **options: Any) -> Examples:
    return Examples(
        {"train": Dataset.from_dict(train), "test": Dataset.from_dict(test)}, ("a", "b", "c"), "", **options
    )


def compute(label_type: LabelType, examples: Examples, cache: Path) -> Baselines:
    return compute_baselines(Task(name="reviews", label_type=label_type, about=""), examples, cache=cache)


def texts(count: int) -> list[str]:
    """Return texts of which the parity of the index decides the adjective."""
    return [f"a {(BAD, GOOD)[i % 2][i % 3]} film {i}" for i in range(count)]


def test_the_most_frequent_label_of_train(tmp_path: Path) -> None:
    train = {"text": ["good film", "fine film", "bad film"], "label": [2, 2, 0]}
    test = {"text": ["good", "bad", "plot", "fine"], "label": [2, 0, 1, 2]}
    metrics = compute("classification", build_examples(train, test), tmp_path).metrics["test"]
    assert metrics["most frequent label"]["accuracy"] == 0.5


def test_tfidf_learns_the_words_that_decide(tmp_path: Path) -> None:
    labels = [2 * (i % 2) for i in range(40)]  # no row has label 1
    examples = build_examples({"text": texts(40), "label": labels}, {"text": texts(20), "label": labels[:20]})
    metrics = compute("classification", examples, tmp_path).metrics["test"]
    assert metrics["TF-IDF + logistic regression"]["accuracy"] == 1.0
    assert metrics["most frequent label"]["accuracy"] == 0.5


def test_tfidf_reads_both_texts_of_a_pair_and_their_common_words(tmp_path: Path) -> None:
    words = [f"word{i}" for i in range(12)]
    pairs = [(words[i % 12], words[(i // 2 * 5 + i * (i % 2) * 7) % 12]) for i in range(240)]
    labels = [int(a == b) for a, b in pairs]
    rows = {"text": [a for a, _ in pairs], "pair": [b for _, b in pairs], "label": labels}
    majority = max(np.mean(labels), 1 - np.mean(labels))
    metrics = compute("classification", build_examples(rows, rows), tmp_path).metrics["test"]
    assert metrics["TF-IDF + logistic regression"]["accuracy"] > majority, "common words decide"


def test_several_labels(tmp_path: Path) -> None:
    labels = [[1, i % 2, int(i == 0)] for i in range(40)]
    examples = build_examples({"text": texts(40), "label": labels}, {"text": texts(6), "label": labels[:6]})
    metrics = compute("multi-label", examples, tmp_path).metrics["test"]
    assert metrics["most frequent labels"]["exact_match"] < 0.7
    assert metrics["TF-IDF + logistic regression"]["exact_match"] == pytest.approx(5 / 6), "one row has a rare label"


def test_no_constant_answer_has_a_higher_micro_f1(tmp_path: Path) -> None:
    labels = [[int(i % 10 in (0, 1, 2)), int(i % 10 in (2, 3)), int(i % 10 == 4), int(i == 0)] for i in range(40)]
    rows = {"text": texts(40), "label": labels}
    examples = Examples({"train": Dataset.from_dict(rows), "test": Dataset.from_dict(rows)}, ("a", "b", "c", "d"), "")
    metrics = compute("multi-label", examples, tmp_path).metrics["test"]
    task = Task(name="reviews", label_type="multi-label", about="")
    answers = [np.tile(answer, (40, 1)) for answer in product((-1, 1), repeat=4)]
    best = max(task.metrics(scores, examples.splits["test"])["micro_f1"] for scores in answers)
    assert metrics["most frequent labels"]["micro_f1"] == pytest.approx(best)
    assert best > 0.3, "no label is in most rows"


def test_ratings(tmp_path: Path) -> None:
    ratings = [1.0 + 3 * (i % 2) for i in range(40)]
    examples = build_examples({"text": texts(40), "label": ratings}, {"text": texts(10), "label": ratings[:10]})
    metrics = compute("regression", examples, tmp_path).metrics["test"]
    assert metrics["mean"]["mae"] == 1.5
    assert metrics["TF-IDF + ridge regression"]["mae"] < 0.5


def test_the_most_frequent_tag_of_each_word(tmp_path: Path) -> None:
    names = ["O", "B-PER", "B-LOC"]

    def rows(words: list[list[str]], tags: list[list[int]]) -> Dataset:
        data = Dataset.from_dict({"words": words, "label": tags})
        return data.cast_column("label", List(ClassLabel(names=names)))

    train = rows([["Paris", "is", "big"], ["Paris", "Hilton"], ["Paris", "is"]], [[2, 0, 0], [1, 1], [2, 0]])
    test = rows([["Paris", "Hilton", "new"]], [[1, 1, 0]])
    examples = Examples({"train": train, "test": test}, tuple(names), "")
    metrics = compute("tokens", examples, tmp_path).metrics["test"]["most frequent tag of each word"]
    assert metrics["word_accuracy"] == pytest.approx(2 / 3), "Paris is mostly a place, a new word is O"


@pytest.fixture
def candidates() -> Callable[..., Examples]:
    def build(ordered_by: str | None) -> Examples:
        rows = {
            "text": ["red apple"] * 3 + ["green pear"] * 2,
            "pair": ["blue plum", "a red apple", "a red wall", "green pear", "grey stone"],
            "label": [0, 1, 0, 1, 0],
            "query": ["q", "q", "q", "r", "r"],
        }
        return build_examples(rows, rows, ordered_by=ordered_by)

    return build


def test_candidates_are_ranked_by_bm25(candidates: Callable[..., Examples], tmp_path: Path) -> None:
    assert compute("ranking", candidates(None), tmp_path).metrics["test"]["BM25"]["mrr"] == 1.0


def test_the_given_order_of_candidates(candidates: Callable[..., Examples], tmp_path: Path) -> None:
    metrics = compute("ranking", candidates("BM25"), tmp_path).metrics["test"]
    assert {name: values["mrr"] for name, values in metrics.items()} == {"BM25": (1 / 2 + 1) / 2}
    metrics = compute("ranking", candidates("popularity"), tmp_path).metrics["test"]
    assert {name: values["mrr"] for name, values in metrics.items()} == {"popularity": (1 / 2 + 1) / 2, "BM25": 1.0}


def test_large_data_is_subsampled_and_the_baseline_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfidf, "MAX_CHARACTERS", 500)
    labels = [i % 2 for i in range(100)]
    examples = build_examples({"text": texts(100), "label": labels}, {"text": texts(20), "label": labels[:20]})
    result = compute("regression", examples, tmp_path)
    (note,) = result.notes
    assert note.startswith("TF-IDF + ridge regression was fit on ")
    assert "of 100 training rows" in note
    assert 10 < int(note.split(" fit on ")[1].split()[0]) < 60


def test_texts_without_words_have_no_linear_model(tmp_path: Path) -> None:
    rows = {"text": ["!", "?", "!"], "label": [0, 1, 0]}
    result = compute("classification", build_examples(rows, rows), tmp_path)
    assert list(result.metrics["test"]) == ["most frequent label"]
    assert result.notes == ["no baseline TF-IDF + logistic regression: no training text has a word of two letters"]


def test_a_failing_linear_model_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(tfidf, "fit_tfidf", fail)
    rows = {"text": texts(4), "label": [0, 1, 0, 1]}
    result = compute("classification", build_examples(rows, rows), tmp_path)
    assert list(result.metrics["test"]) == ["most frequent label"]
    assert result.notes == ["no baseline TF-IDF + logistic regression: MemoryError"]


@pytest.mark.parametrize("labels", [[0, 1], [0, 1, 2, 0], [0, 0, 0, 1]])
def test_very_few_rows(labels: list[int], tmp_path: Path) -> None:
    rows = {"text": texts(len(labels)), "label": labels}
    metrics = compute("classification", build_examples(rows, rows), tmp_path).metrics["test"]
    assert 0 <= metrics["TF-IDF + logistic regression"]["accuracy"] <= 1


def test_baselines_are_computed_once_for_each_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: dict[str, Any] = {"text": texts(20), "label": [i % 2 for i in range(20)]}
    first = compute("classification", build_examples(rows, rows), tmp_path)
    calls = []
    original = tfidf.fit_tfidf

    def fit_and_count(*args: Any) -> Any:
        calls.append(args)
        return original(*args)

    monkeypatch.setattr(tfidf, "fit_tfidf", fit_and_count)
    assert compute("classification", build_examples(rows, rows), tmp_path) == first
    assert not calls, "the cache was not used"
    changed = {**rows, "label": rows["label"][::-1]}
    assert compute("classification", build_examples(changed, rows), tmp_path) != first
    assert len(calls) == 1, "other data needs other baselines"
    for damaged in ("", "{", "[]", '{"x": 1}'):
        for path in (tmp_path / "baselines").glob("*.json"):
            path.write_text(damaged)
        assert compute("classification", build_examples(rows, rows), tmp_path) == first


def compute_in_process(cache: Path) -> None:
    """Compute baselines, and log that they were computed."""
    original = baselines.compute_uncached

    def compute_and_log(*args: Any) -> Baselines:
        with (cache / "log").open("a") as log:
            log.write("computed\n")
        return original(*args)

    baselines.compute_uncached = compute_and_log  # type: ignore[assignment]
    rows = {"text": texts(20), "label": [i % 2 for i in range(20)]}
    compute("classification", build_examples(rows, rows), cache)


@pytest.mark.long
def test_of_several_processes_one_computes(tmp_path: Path) -> None:
    processes = [get_context("spawn").Process(target=compute_in_process, args=(tmp_path,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert (tmp_path / "log").read_text().splitlines() == ["computed"]
    (path,) = (tmp_path / "baselines").glob("*.json")
    assert json.loads(path.read_text())["metrics"]["test"]


def test_an_unusable_cache_does_not_stop_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    rows = {"text": texts(20), "label": [i % 2 for i in range(20)]}
    assert compute("classification", build_examples(rows, rows), tmp_path / "file").metrics["test"]


def test_baselines_that_another_process_computes(tmp_path: Path) -> None:
    """Without waiting there are none yet. Afterwards they are in the cache."""
    task = Task(name="reviews", label_type="classification", about="")
    labels = [2 * (i % 2) for i in range(20)]
    examples = build_examples({"text": texts(20), "label": labels}, {"text": texts(20), "label": labels})
    path = cache_path(task, examples, {"test": examples.splits["test"]}, tmp_path)
    path.parent.mkdir(parents=True)
    with FileLock(f"{path}.lock"):
        assert compute_baselines(task, examples, cache=tmp_path, wait=False) == Baselines()
    computed = compute_baselines(task, examples, cache=tmp_path, wait=False)
    assert computed.metrics["test"]
    assert read_cache(path) == compute_baselines(task, examples, cache=tmp_path) == computed
