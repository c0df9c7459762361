"""Baselines, computed by hand."""

from typing import Any

from datasets import Dataset

from headwise.tasks import Examples, LabelType, Task
from headwise.tasks.baselines import compute_baselines


def metrics_of(
    label_type: LabelType,
    train: list[Any],
    test: list[Any],
    query: list[str] | None = None,
    ordered_by: str | None = None,
) -> dict[str, dict[str, float]]:
    """Return the metrics of the baselines on test."""
    splits = {"train": Dataset.from_dict({"label": train}), "test": Dataset.from_dict({"label": test})}
    if query is not None:
        splits["test"] = splits["test"].add_column("query", query)
    task = Task(name="reviews", label_type=label_type, about="")
    return compute_baselines(task, Examples(splits, ("a", "b", "c"), "", ordered_by), "test")


def test_the_most_frequent_label_of_train() -> None:
    baselines = metrics_of("classification", [2, 2, 0], [2, 0, 1, 2])
    assert baselines["most frequent label"]["accuracy"] == 0.5


def test_the_labels_of_most_rows() -> None:
    baselines = metrics_of("multi-label", [[1, 0, 1], [1, 0, 0], [1, 1, 0]], [[1, 0, 0], [1, 1, 0]])
    assert baselines["labels of most rows"]["exact_match"] == 0.5


def test_the_mean_rating() -> None:
    assert metrics_of("regression", [1.0, 3.0], [2.0, 4.0])["mean"]["mae"] == 1.0


def test_the_order_of_candidates() -> None:
    query = ["q", "q", "q", "r", "r"]
    baselines = metrics_of("ranking", [0], [0, 1, 0, 1, 0], query=query, ordered_by="BM25")
    assert baselines["BM25"]["mrr"] == (1 / 2 + 1) / 2
    assert metrics_of("ranking", [0], [0, 1, 0, 1, 0], query=query) == {}, "candidates have no order"


def test_token_tasks_have_no_baseline() -> None:
    assert metrics_of("tokens", [[0]], [[0]]) == {}
