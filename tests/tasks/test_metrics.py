"""Metrics against scikit-learn and seqeval where they have them, plain loops otherwise."""

import math
from typing import Any, get_args

import numpy as np
import pytest
import seqeval.metrics
import sklearn.metrics
from datasets import ClassLabel, Dataset, Features, List, Value
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.tasks import LabelType, Task, metrics
from headwise.tasks.metrics import bootstrap, standard_error

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def task(label_type: LabelType) -> Task:
    return Task(name="a", label_type=label_type, about="")


def random(label_type: LabelType, count: int, seed: int) -> tuple[Any, Dataset]:
    """Scores and rows of a kind."""
    draw = np.random.default_rng(seed)
    if label_type == "classification":
        feature = Features({"label": ClassLabel(names=["a", "b", "c"])})
        return draw.normal(size=(count, 3)), Dataset.from_dict({"label": draw.integers(0, 3, count)}, features=feature)
    if label_type == "multi-label":
        feature = Features({"label": List(Value("int8"), length=3)})
        return draw.normal(size=(count, 3)), Dataset.from_dict(
            {"label": draw.integers(0, 2, (count, 3))}, features=feature
        )
    if label_type == "regression":
        return draw.normal(size=(count, 1)), Dataset.from_dict({"label": draw.normal(size=count)})
    if label_type == "tokens":
        lengths = draw.integers(1, 9, count)
        feature = Features({"label": List(ClassLabel(names=TAGS))})
        rows = Dataset.from_dict({"label": [draw.integers(0, 5, length) for length in lengths]}, features=feature)
        return draw.normal(size=(count, 9, 5)), rows
    queries = [f"q{number}" for number in draw.integers(0, max(1, count // 5), count)]
    rows = Dataset.from_dict({"query": queries, "label": draw.integers(0, 2, count)})
    return draw.integers(0, 4, count).astype(float), rows


@given(count=st.integers(2, 60), seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_classification(count: int, seed: int) -> None:
    scores, rows = random("classification", count, seed)
    found = task("classification").metrics(scores, rows)
    truth, guess = rows["label"][:], scores.argmax(1)
    precision, recall, f1 = [], [], []
    for number in sorted({*truth, *guess}):
        right = sum(a == b == number for a, b in zip(truth, guess, strict=True))
        precision.append(right / max(1, sum(guess == number)))
        recall.append(right / max(1, truth.count(number)))
        f1.append(2 * right / (sum(guess == number) + truth.count(number)))
    assert found["accuracy"] == pytest.approx(np.mean([a == b for a, b in zip(truth, guess, strict=True)]))
    assert found["macro_f1"] == pytest.approx(np.mean(f1))
    assert found["precision"] == pytest.approx(np.mean(precision))
    assert found["recall"] == pytest.approx(np.mean(recall))


def test_multi_label() -> None:
    scores = np.array([[1.0, -1.0], [1.0, 1.0], [-1.0, -1.0]])
    rows = Dataset.from_dict({"label": [[1, 0], [0, 1], [1, 0]]})
    found = task("multi-label").metrics(scores, rows)
    assert found["micro_f1"] == pytest.approx(2 * 2 / (3 + 3))
    assert found["macro_f1"] == pytest.approx((2 * 1 / (2 + 2) + 2 * 1 / (1 + 1)) / 2)
    assert found["exact_match"] == pytest.approx(1 / 3)


def test_regression() -> None:
    found = task("regression").metrics(np.array([[1.0], [2.0], [4.0]]), Dataset.from_dict({"label": [1.0, 3.0, 2.0]}))
    assert found["rmse"] == pytest.approx(math.sqrt((0 + 1 + 4) / 3))
    assert found["mae"] == pytest.approx(1.0)
    assert found["pearson"] == pytest.approx(np.corrcoef([1, 2, 4], [1, 3, 2])[0, 1])
    same = task("regression").metrics(np.ones(3), Dataset.from_dict({"label": [1.0, 3.0, 2.0]}))
    assert same["pearson"] == 0.0


@given(seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
def test_tokens_are_judged_as_seqeval_does(seed: int) -> None:
    scores, rows = random("tokens", 12, seed)
    truth = [[TAGS[number] for number in row] for row in rows["label"]]
    guess = [[TAGS[n] for n in score[: len(row)].argmax(1)] for score, row in zip(scores, truth, strict=True)]
    found = task("tokens").metrics(scores, rows)
    assert found["f1"] == pytest.approx(seqeval.metrics.f1_score(truth, guess))
    assert found["precision"] == pytest.approx(seqeval.metrics.precision_score(truth, guess))
    assert found["recall"] == pytest.approx(seqeval.metrics.recall_score(truth, guess))
    assert found["word_accuracy"] == pytest.approx(seqeval.metrics.accuracy_score(truth, guess))


def test_words_that_were_cut_off_count_as_no_name() -> None:
    rows = Dataset.from_dict({"label": [[0, 1, 2]]}, features=Features({"label": List(ClassLabel(names=TAGS))}))
    found = task("tokens").metrics([np.eye(5)[[0]]], rows)
    assert found["f1"] == 0.0
    assert found["word_accuracy"] == pytest.approx(1 / 3)


@given(count=st.integers(1, 60), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_ranking(count: int, seed: int) -> None:
    scores, rows = random("ranking", count, seed)
    found = task("ranking").metrics(scores, rows)
    reciprocal, precision, gain, recall, without = [], [], [], [], 0
    labels, queries = rows["label"][:], rows["query"][:]
    for query in sorted(set(queries)):
        own = [(scores[i], labels[i]) for i in range(count) if queries[i] == query]
        ranked = [label for _, label in sorted(own, key=lambda pair: (-pair[0], pair[1]))]
        places = [place for place, label in enumerate(ranked, 1) if label]
        if not places:
            without += 1
            continue
        reciprocal.append(1 / places[0])
        precision.append(sum(hit / place for hit, place in enumerate(places, 1)) / len(places))
        ideal = sum(1 / math.log2(1 + place) for place in range(1, len(places) + 1))
        gain.append(sum(1 / math.log2(1 + place) for place in places) / ideal)
        recall.append(sum(place <= 3 for place in places) / len(places))
    assert found["queries"] == len(reciprocal)
    assert found["queries_without_hit"] == without
    if reciprocal:
        assert found["mrr"] == pytest.approx(np.mean(reciprocal))
        assert found["map"] == pytest.approx(np.mean(precision))
        assert found["ndcg"] == pytest.approx(np.mean(gain))
        assert found["r@3"] == pytest.approx(np.mean(recall))


def test_ranking_agrees_with_scikit_learn_where_no_scores_are_equal() -> None:
    draw = np.random.default_rng(0)
    labels, scores = draw.integers(0, 2, 30), draw.normal(size=30)
    rows = Dataset.from_dict({"query": ["q"] * 30, "label": labels})
    found = task("ranking").metrics(np.stack([-scores, scores], axis=1), rows)
    assert found["map"] == pytest.approx(sklearn.metrics.average_precision_score(labels, scores))
    assert found["ndcg"] == pytest.approx(sklearn.metrics.ndcg_score([labels], [scores]))


def test_a_model_gains_nothing_by_equal_scores() -> None:
    rows = Dataset.from_dict({"query": ["q"] * 4, "label": [1, 0, 0, 0]})
    assert task("ranking").metrics(np.zeros(4), rows)["mrr"] == 0.25


@pytest.mark.parametrize(
    "label_type", [label_type for label_type in get_args(LabelType) if label_type != "clicks"]
)  # which have impressions
def test_the_primary_metric_is_what_the_bootstrap_computes_from_sums(label_type: LabelType) -> None:
    scores, rows = random(label_type, 40, 1)
    found = task(label_type).metrics(scores, rows)
    of_kind = metrics.get_metrics(label_type)
    assert of_kind.from_sums(of_kind.row_statistics(scores, rows).sum(axis=0)) == pytest.approx(
        found[task(label_type).primary]
    )
    error = task(label_type).standard_error(scores, rows)
    assert error == task(label_type).standard_error(scores, rows)
    assert 0 < error < 0.5
    assert task(label_type).higher_is_better == (label_type != "regression")


def test_bootstrap_is_the_spread_of_metrics_of_drawn_rows() -> None:
    scores, rows = random("multi-label", 50, 2)
    truth, draw = np.asarray(rows["label"][:]), np.random.default_rng(5)
    drawn = [draw.integers(0, 50, 50) for _ in range(400)]
    spread = np.std([sklearn.metrics.f1_score(truth[pick], scores[pick] > 0, average="micro") for pick in drawn])
    assert task("multi-label").standard_error(scores, rows) == pytest.approx(spread, rel=0.15)


def test_bootstrap_in_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = np.stack([np.arange(30.0), np.ones(30)], axis=1)

    def mean(sums: Any) -> Any:
        return sums[:, 0] / sums[:, 1]

    at_once = standard_error(parts, mean)
    monkeypatch.setattr(bootstrap, "CELLS", 100)
    assert standard_error(parts, mean) == pytest.approx(at_once)
