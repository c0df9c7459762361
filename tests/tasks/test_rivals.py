"""What a model should beat, worked out by hand."""

from datasets import Dataset

from headwise.tasks import Examples, Task
from headwise.tasks.baselines import compute_baselines


def of(label_type: str, train: list[object], test: list[object], **more: object) -> dict[str, dict[str, float]]:
    splits = {"train": Dataset.from_dict({"label": train}), "test": Dataset.from_dict({"label": test})}
    if label_type == "ranking":
        splits["test"] = splits["test"].add_column("query", more.pop("query"))
    found: dict[str, object] = {"labels": ("a", "b", "c"), "recipe": "", **more}
    return compute_baselines(Task(name="mine", label_type=label_type, about=""), Examples(splits, **found), "test")  # type: ignore[arg-type]


def test_the_most_frequent_label_of_training() -> None:
    found = of("classification", [2, 2, 0], [2, 0, 1, 2])
    assert found["most frequent label"]["accuracy"] == 0.5


def test_labels_that_most_rows_have() -> None:
    found = of("multi-label", [[1, 0, 1], [1, 0, 0], [1, 1, 0]], [[1, 0, 0], [1, 1, 0]])
    assert found["labels of most rows"]["exact_match"] == 0.5


def test_the_mean_of_ratings() -> None:
    assert of("regression", [1.0, 3.0], [2.0, 4.0])["mean"]["mae"] == 1.0


def test_the_order_that_candidates_came_in() -> None:
    query = ["q", "q", "q", "r", "r"]
    found = of("ranking", [0], [0, 1, 0, 1, 0], query=query, ordered_by="BM25")
    assert found["BM25"]["mrr"] == (1 / 2 + 1) / 2
    assert of("ranking", [0], [0, 1, 0, 1, 0], query=query) == {}, "no order, no rival"


def test_tags_have_none() -> None:
    assert of("tokens", [[0]], [[0]]) == {}
