"""The summary of a task's data, and its warnings."""

from pathlib import Path
from typing import Any

import pytest

from headwise.tasks import load_files, summarize
from headwise.tasks.summary import find_label_warnings
from tests.tasks.files import write_file


def summarize_columns(path: Path, columns: dict[str, Any], **options: Any) -> str:
    _, examples = load_files(write_file(path / "a.jsonl", columns), cache=path / "cache", **options)
    return str(summarize(examples))


def test_classes(tmp_path: Path) -> None:
    texts = [f"text number {i}" for i in range(79)] + ["one text of many more words"]
    labels = ["negative"] * 41 + ["positive"] * 37 + ["postive"] * 2
    assert summarize_columns(tmp_path, {"text": texts, "label": labels}).splitlines() == [
        "rows: train 64, dev 8, test 8",
        "lengths: median 3 words, 95% quantile 3, longest 6",
        "labels: negative 41, positive 37, postive 2",
        "duplicates: none between splits",
        "warning: label 'postive' (2) is similar to 'positive' (37): a misspelling?",
    ]


def test_missing_values_that_were_written_as_words(tmp_path: Path) -> None:
    texts = [f"text {i}" for i in range(37)] + ["nan", "nan", "fine"]
    lines = summarize_columns(tmp_path, {"text": texts, "label": ["a", "b"] * 19 + ["nan", "nan"]}).splitlines()
    assert "labels: a 19, b 19, nan 2" in lines
    assert "warning: 2 rows are labelled 'nan': probably missing labels" in lines
    assert "warning: 2 texts are 'nan', 'null' or the like: probably missing values" in lines


def test_duplicates_between_splits(tmp_path: Path) -> None:
    write_file(tmp_path / "train.csv", {"text": ["a b", "c", "d"], "label": ["x", "y", "x"]})
    write_file(tmp_path / "test.csv", {"text": ["a b", "e"], "label": ["x", "y"]})
    write_file(tmp_path / "dev.csv", {"text": ["f", "e"], "label": ["x", "y"]})
    _, examples = load_files(tmp_path, cache=tmp_path / "cache")
    assert summarize(examples).duplicates == "1 of test's texts are in train too, 1 of test's texts are in dev too"


def test_other_label_types(tmp_path: Path) -> None:
    texts = [f"text {i}" for i in range(20)]
    ratings = summarize_columns(tmp_path, {"text": texts, "label": [1, 5] * 10}, label_type="regression")
    assert "labels: 1 to 5, mean 3, median 3" in ratings
    several = summarize_columns(tmp_path, {"text": texts, "label": ["a|b", "a"] * 10}, label_type="multi-label")
    assert "labels: a 20, b 10" in several
    tokens = {"words": [["EU", "says", "so"]] * 20, "tags": [["B-ORG", "O", "O"]] * 20}
    lines = summarize_columns(tmp_path, tokens, label_type="tokens")
    assert "labels: O 40, B-ORG 20" in lines
    assert "lengths: median 3 words" in lines
    pairs = {"premise": ["a b"] * 20, "hypothesis": ["c"] * 20, "label": ["x", "y"] * 10}
    assert "lengths: median 3 words" in summarize_columns(tmp_path, pairs)


def test_many_labels_are_not_all_listed(tmp_path: Path) -> None:
    columns = {"text": [f"text {i}" for i in range(100)], "label": [f"topic {i % 50}" for i in range(100)]}
    summary = summarize_columns(tmp_path, columns)
    assert " 2 and 30 others, the rarest 2" in summary
    assert "warning" not in summary


@pytest.mark.parametrize(
    ("labels", "similar"),
    [
        ({"Positive": 20, "positive": 18}, True),
        ({"very good": 20, "very_good": 1}, True),
        ({"neutral": 20, "netural": 1}, True),
        ({"neutral": 20, "neutrals": 19}, False),
        ({"1": 100, "10": 2}, False),
        ({"label 1": 100, "label 11": 2}, False),
        ({"C": 100, "C++": 2}, False),
        ({"acceptable": 100, "unacceptable": 2}, False),
        ({"-1": 100, "1": 2}, False),
        ({"cat": 100, "car": 2}, False),
    ],
)
def test_misspelled_labels(labels: dict[str, int], similar: bool) -> None:
    assert bool(find_label_warnings(labels)) == similar


def test_numbers_that_are_written_differently() -> None:
    warnings = find_label_warnings({"0.0": 60, "1.0": 30, "1": 30, "10": 5})
    assert warnings == ["label '1' (30) is similar to '1.0' (30): a misspelling?"]


def test_labels_with_commas_are_told_from_several_labels(tmp_path: Path) -> None:
    columns = {"text": [f"text {i}" for i in range(20)], "label": ["billing", "billing, refund"] * 10}
    assert "labels: 'billing' 10, 'billing, refund' 10" in summarize_columns(tmp_path, columns)


def test_many_different_numbers_are_probably_ratings() -> None:
    ratings = {str(number / 10): 3 for number in range(48)}
    assert find_label_warnings(ratings) == [
        "the labels are 48 different numbers; for ratings, add --label-type regression"
    ]
    assert find_label_warnings({str(stars): 100 for stars in range(1, 6)}) == []


def test_joined_labels_are_probably_several_labels() -> None:
    labels = {"System": 30, "Internet|System": 3, "Internet": 2, "Internet|Security|System": 1}
    assert find_label_warnings(labels) == [
        "labels such as 'Internet|System' look like several labels; for several labels per text, add "
        "--label-type multi-label"
    ]
    assert find_label_warnings({"yes": 30, "no": 20, "a|b": 10}) == []
    assert find_label_warnings({"Case=Nom|Number=Sing": 9, "Number=Sing": 9}, is_tagging=True) == []


def test_the_first_and_the_other_tags_of_an_entity_are_not_misspellings() -> None:
    tags = {"O": 900, "B-CODE": 266, "I-CODE": 21}
    assert find_label_warnings(tags, is_tagging=True) == []
    assert find_label_warnings(tags | {"B-CODR": 2}, is_tagging=True) != []


def test_labels_with_one_row_are_not_evaluated(tmp_path: Path) -> None:
    columns = {"text": [f"text {i}" for i in range(21)], "label": ["food", "money"] * 10 + ["health"]}
    assert "warning: labels with a single row, which are not evaluated: health" in summarize_columns(tmp_path, columns)
