"""Metrics of labeled rows against scikit-learn, seqeval and loops."""

import math
from typing import Any, get_args

import numpy as np
import pytest
import seqeval.metrics
import sklearn.metrics
from datasets import ClassLabel, Dataset, Features, List, Value
from hypothesis import given
from hypothesis import strategies as st

from headwise.tasks import LabelType, Task, metrics
from headwise.tasks.metrics import bootstrap, standard_error

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def make_task(label_type: LabelType) -> Task:
    return Task(name="a", label_type=label_type, about="")


def random_predictions(label_type: LabelType, count: int, seed: int) -> tuple[Any, Dataset]:
    """Return random scores and rows of a label type."""
    rng = np.random.default_rng(seed)
    if label_type == "classification":
        feature = Features({"label": ClassLabel(names=["a", "b", "c"])})
        return rng.normal(size=(count, 3)), Dataset.from_dict({"label": rng.integers(0, 3, count)}, features=feature)
    if label_type == "multi-label":
        feature = Features({"label": List(Value("int8"), length=3)})
        return rng.normal(size=(count, 3)), Dataset.from_dict(
            {"label": rng.integers(0, 2, (count, 3))}, features=feature
        )
    if label_type == "regression":
        return rng.normal(size=(count, 1)), Dataset.from_dict({"label": rng.normal(size=count)})
    if label_type == "tokens":
        lengths = rng.integers(1, 9, count)
        feature = Features({"label": List(ClassLabel(names=TAGS))})
        rows = Dataset.from_dict({"label": [rng.integers(0, 5, length) for length in lengths]}, features=feature)
        return rng.normal(size=(count, 9, 5)), rows
    queries = [f"q{number}" for number in rng.integers(0, max(1, count // 5), count)]
    rows = Dataset.from_dict({"query": queries, "label": rng.integers(0, 2, count)})
    return rng.integers(0, 4, count).astype(float), rows


@given(count=st.integers(2, 60), seed=st.integers(0, 1000))
def test_classification(count: int, seed: int) -> None:
    scores, rows = random_predictions("classification", count, seed)
    values = make_task("classification").metrics(scores, rows)
    labels, predictions = rows["label"][:], scores.argmax(1)
    precision, recall, f1 = [], [], []
    for number in sorted({*labels, *predictions}):
        right = sum(a == b == number for a, b in zip(labels, predictions, strict=True))
        precision.append(right / max(1, sum(predictions == number)))
        recall.append(right / max(1, labels.count(number)))
        f1.append(2 * right / (sum(predictions == number) + labels.count(number)))
    assert values["accuracy"] == pytest.approx(np.mean([a == b for a, b in zip(labels, predictions, strict=True)]))
    assert values["macro_f1"] == pytest.approx(np.mean(f1))
    assert values["precision"] == pytest.approx(np.mean(precision))
    assert values["recall"] == pytest.approx(np.mean(recall))


def test_multi_label() -> None:
    scores = np.array([[1.0, -1.0], [1.0, 1.0], [-1.0, -1.0]])
    rows = Dataset.from_dict({"label": [[1, 0], [0, 1], [1, 0]]})
    values = make_task("multi-label").metrics(scores, rows)
    assert values["micro_f1"] == pytest.approx(2 * 2 / (3 + 3))
    assert values["macro_f1"] == pytest.approx((2 * 1 / (2 + 2) + 2 * 1 / (1 + 1)) / 2)
    assert values["exact_match"] == pytest.approx(1 / 3)


def test_regression() -> None:
    values = make_task("regression").metrics(
        np.array([[1.0], [2.0], [4.0]]), Dataset.from_dict({"label": [1.0, 3.0, 2.0]})
    )
    assert values["rmse"] == pytest.approx(math.sqrt((0 + 1 + 4) / 3))
    assert values["mae"] == pytest.approx(1.0)
    assert values["pearson"] == pytest.approx(np.corrcoef([1, 2, 4], [1, 3, 2])[0, 1])
    constant = make_task("regression").metrics(np.ones(3), Dataset.from_dict({"label": [1.0, 3.0, 2.0]}))
    assert constant["pearson"] == 0.0


@given(seed=st.integers(0, 1000))
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
def test_tokens_equal_seqeval(seed: int) -> None:
    scores, rows = random_predictions("tokens", 12, seed)
    tags = [[TAGS[number] for number in row] for row in rows["label"]]
    predictions = [[TAGS[n] for n in score[: len(row)].argmax(1)] for score, row in zip(scores, tags, strict=True)]
    values = make_task("tokens").metrics(scores, rows)
    assert values["f1"] == pytest.approx(seqeval.metrics.f1_score(tags, predictions))
    assert values["precision"] == pytest.approx(seqeval.metrics.precision_score(tags, predictions))
    assert values["recall"] == pytest.approx(seqeval.metrics.recall_score(tags, predictions))
    assert values["word_accuracy"] == pytest.approx(seqeval.metrics.accuracy_score(tags, predictions))


def test_truncated_words_are_predicted_as_o() -> None:
    rows = Dataset.from_dict({"label": [[0, 1, 2]]}, features=Features({"label": List(ClassLabel(names=TAGS))}))
    values = make_task("tokens").metrics([np.eye(5)[[0]]], rows)
    assert values["f1"] == 0.0
    assert values["word_accuracy"] == pytest.approx(1 / 3)


@given(count=st.integers(1, 60), seed=st.integers(0, 1000))
def test_ranking(count: int, seed: int) -> None:
    scores, rows = random_predictions("ranking", count, seed)
    values = make_task("ranking").metrics(scores, rows)
    reciprocal, precision, gain, recall, without = [], [], [], [], 0
    labels, queries = rows["label"][:], rows["query"][:]
    for query in sorted(set(queries)):
        candidates = [(scores[i], labels[i]) for i in range(count) if queries[i] == query]
        ranked = [label for _, label in sorted(candidates, key=lambda pair: (-pair[0], pair[1]))]
        ranks = [rank for rank, label in enumerate(ranked, 1) if label]
        if not ranks:
            without += 1
            continue
        reciprocal.append(1 / ranks[0])
        precision.append(sum(hit / rank for hit, rank in enumerate(ranks, 1)) / len(ranks))
        ideal = sum(1 / math.log2(1 + rank) for rank in range(1, len(ranks) + 1))
        gain.append(sum(1 / math.log2(1 + rank) for rank in ranks) / ideal)
        recall.append(sum(rank <= 3 for rank in ranks) / len(ranks))
    assert values["queries"] == len(reciprocal)
    assert values["queries_without_hit"] == without
    if reciprocal:
        assert values["mrr"] == pytest.approx(np.mean(reciprocal))
        assert values["map"] == pytest.approx(np.mean(precision))
        assert values["ndcg"] == pytest.approx(np.mean(gain))
        assert values["r@3"] == pytest.approx(np.mean(recall))


def test_ranking_equals_scikit_learn_without_ties() -> None:
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, 30), rng.normal(size=30)
    rows = Dataset.from_dict({"query": ["q"] * 30, "label": labels})
    values = make_task("ranking").metrics(np.stack([-scores, scores], axis=1), rows)
    assert values["map"] == pytest.approx(sklearn.metrics.average_precision_score(labels, scores))
    assert values["ndcg"] == pytest.approx(sklearn.metrics.ndcg_score([labels], [scores]))


def test_constant_scores_rank_relevant_candidates_last() -> None:
    rows = Dataset.from_dict({"query": ["q"] * 4, "label": [1, 0, 0, 0]})
    assert make_task("ranking").metrics(np.zeros(4), rows)["mrr"] == 0.25


@pytest.mark.parametrize("label_type", [name for name in get_args(LabelType) if name not in ("clicks", "translation")])
def test_the_primary_metric_is_a_function_of_sums(label_type: LabelType) -> None:
    scores, rows = random_predictions(label_type, 40, 1)
    values = make_task(label_type).metrics(scores, rows)
    label_metrics = metrics.get_metrics(label_type)
    sums = label_metrics.row_statistics(scores, rows).sum(axis=0)
    assert label_metrics.from_sums(sums) == pytest.approx(values[make_task(label_type).primary])
    error = make_task(label_type).standard_error(scores, rows)
    assert error == make_task(label_type).standard_error(scores, rows)
    assert 0 < error < 0.5
    assert make_task(label_type).higher_is_better == (label_type != "regression")


def test_the_standard_error_equals_that_of_resampled_rows() -> None:
    scores, rows = random_predictions("multi-label", 50, 2)
    labels, rng = np.asarray(rows["label"][:]), np.random.default_rng(5)
    drawn = [rng.integers(0, 50, 50) for _ in range(400)]
    expected = np.std([sklearn.metrics.f1_score(labels[pick], scores[pick] > 0, average="micro") for pick in drawn])
    assert make_task("multi-label").standard_error(scores, rows) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_few_rows_that_are_all_right_or_all_wrong_do_not_have_a_standard_error_of_0(value: float) -> None:
    def error(num_rows: int) -> float:
        return standard_error(np.array([[value, 1.0]] * num_rows), lambda sums: sums[..., 0] / sums[..., 1])

    # the true accuracy is within two standard errors with a probability of 95 %
    for num_rows in (4, 12, 1000):
        assert (1 - 2 * error(num_rows)) ** num_rows == pytest.approx(0.05, abs=0.05)
    assert error(1) == error(2) == 0.5


def test_the_block_size_does_not_change_the_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    row_statistics = np.stack([np.arange(30.0), np.ones(30)], axis=1)

    def mean(sums: Any) -> Any:
        return sums[:, 0] / sums[:, 1]

    expected = standard_error(row_statistics, mean)
    monkeypatch.setattr(bootstrap, "MAX_BLOCK_SIZE", 100)
    assert standard_error(row_statistics, mean) == pytest.approx(expected)


@pytest.mark.parametrize("label_type", ["classification", "multi-label"])
def test_standard_error_of_macro_f1(label_type: LabelType) -> None:
    scores, rows = random_predictions(label_type, 40, seed=0)
    task, rng = make_task(label_type), np.random.default_rng(1)
    samples = [rng.integers(0, 40, 40) for _ in range(300)]
    values = [task.metrics(scores[sample], rows.select(sample))["macro_f1"] for sample in samples]
    assert task.standard_error(scores, rows, metric="macro_f1") == pytest.approx(np.std(values), rel=0.15)
    with pytest.raises(ValueError, match="metric must be"):
        task.standard_error(scores, rows, metric="recall")
