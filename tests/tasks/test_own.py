"""The user's own data, from file to examples, and what can be wrong with it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict

from headwise.errors import UserError
from headwise.tasks import Examples, arrow_cache, hub, load_files
from tests.tasks.files import sample, write


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
    return folder / "headwise"


def sizes(examples: Examples) -> dict[str, int]:
    return {split: len(rows) for split, rows in examples.splits.items()}


@pytest.mark.parametrize("ending", ["csv", "tsv.gz", "jsonl", "parquet"])
def test_one_file_is_split(tmp_path: Path, ending: str) -> None:
    task, found = load_files(write(tmp_path / f"reviews.{ending}", sample(100)))
    assert (task.name, task.label_type, task.pair) == ("reviews", "classification", False)
    assert found.labels == ("bad", "good")
    assert sizes(found) == {"train": 80, "dev": 10, "test": 10}
    assert "split 80/10/10, stratified, seed 0" in found.recipe
    seen = {}
    for rows in found.splits.values():
        assert set(rows.column_names) == {"text", "label", "row"}
        assert rows.features["label"].names == ["bad", "good"]
        for row in rows:
            seen[row["row"]] = (row["text"], found.labels[row["label"]])
    columns = sample(100)
    assert seen == dict(enumerate(zip(columns["text"], columns["label"], strict=True)))


def test_splits_are_the_same_for_a_seed_only(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", sample(100))
    rows = [load_files(path, seed=seed)[1].splits["test"]["row"][:] for seed in (0, 0, 1)]
    assert rows[0] == rows[1] != rows[2]


@pytest.mark.parametrize("dev", ["dev", "valid", "validation"])
def test_a_folder_of_splits(tmp_path: Path, dev: str) -> None:
    for split, count in (("train", 30), (dev, 6), ("test", 8)):
        write(tmp_path / f"my_{split}.csv.gz", sample(count))
    write(tmp_path / "notes.csv", sample(3))
    _, found = load_files(tmp_path)
    assert sizes(found) == {"train": 30, "dev": 6, "test": 8}
    assert "split as given. 8 of test's texts are in train too." in found.recipe
    (tmp_path / "my_test.csv.gz").unlink()
    assert "6 of dev's texts are in train too." in load_files(tmp_path)[1].recipe, "which is then the only judge"


def test_several_files_of_a_split_and_files_by_name(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one.csv", sample(30)), write(tmp_path / "two.csv", sample(20))
    _, found = load_files([one, two])
    assert sizes(found) == {"train": 40, "dev": 5, "test": 5}
    _, found = load_files(train=[one, two], test=two)
    assert sizes(found) == {"train": 45, "dev": 5, "test": 20}
    assert "dev is 10% of train" in found.recipe
    _, found = load_files(train=one, dev=two)
    assert sizes(found) == {"train": 30, "dev": 20}
    assert "no test split" in found.recipe


def test_pairs(tmp_path: Path) -> None:
    columns = {"premise": ["a b"] * 20, "hypothesis": ["c"] * 20, "label": ["x", "y"] * 10}
    task, found = load_files(write(tmp_path / "a.jsonl", columns))
    assert task.pair
    assert found.splits["train"][0]["pair"] == "c"


def test_ratings(tmp_path: Path) -> None:
    columns = {"text": sample(50)["text"], "stars": [number / 10 for number in range(50)]}
    task, found = load_files(write(tmp_path / "a.csv", columns), label_type="regression")
    assert (task.primary, found.labels) == ("rmse", ())
    assert found.splits["train"][0]["label"] == found.splits["train"][0]["row"] / 10


@pytest.mark.parametrize(("name", "value"), [("a.csv", "b|a"), ("a.jsonl", ["b", "a"]), ("a.parquet", ["b", "a"])])
def test_several_labels(tmp_path: Path, name: str, value: Any) -> None:
    none: Any = [] if isinstance(value, list) else ""
    columns = {"text": sample(30)["text"], "label": [value, none, [value[0]] if isinstance(value, list) else "c"] * 10}
    _, found = load_files(write(tmp_path / name, columns), label_type="multi-label")
    row = {row["row"]: row["label"] for rows in found.splits.values() for row in rows}
    count = len(found.labels)
    assert row[0][:2] == [1, 1]
    assert row[1] == [0] * count
    assert sum(row[2]) == 1


def test_tokens(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("EU B-ORG\nsays O\n\nPeter B-PER\nsmiles O\n\n")
    _, found = load_files(tmp_path, label_type="tokens")
    assert found.labels == ("O", "B-ORG", "B-PER")
    assert found.splits["dev"][1] == {"words": ["Peter", "smiles"], "label": [2, 0], "row": 1}
    columns = {"tokens": [["EU", "says"]] * 20, "ner_tags": [["B-ORG", "O"]] * 20}
    _, found = load_files(write(tmp_path / "a.jsonl", columns), label_type="tokens")
    assert sizes(found) == {"train": 16, "dev": 2, "test": 2}


@pytest.mark.parametrize("label_type", ["classification", "multi-label"])
def test_train_knows_every_class_of_a_file_that_is_split(tmp_path: Path, label_type: Any) -> None:
    columns = {**sample(40), "label": ["a", "b"] * 15 + [f"rare {number}" for number in range(10)]}
    for seed in range(5):
        _, found = load_files(write(tmp_path / "a.csv", columns), label_type=label_type, seed=seed)
        label = np.asarray(found.splits["train"]["label"][:])
        known = set(label) if label_type == "classification" else set(np.flatnonzero(label.any(axis=0)))
        assert known == set(range(12))


def test_labels_as_numbers_are_in_their_order(tmp_path: Path) -> None:
    assert load_files(write(tmp_path / "a.csv", sample(60, ("10", "9", "2"))))[1].labels == ("2", "9", "10")
    assert load_files(write(tmp_path / "a.parquet", sample(60, (1.0, 0.0))))[1].labels == ("0", "1")


def test_what_was_read_is_not_read_again_unless_it_changed(tmp_path: Path, cache: Path) -> None:
    path = write(tmp_path / "a.csv", sample(20))
    load_files(path)
    (stored,) = cache.iterdir()
    made = stored.stat().st_mtime_ns
    load_files(path)
    assert [(file, file.stat().st_mtime_ns) for file in cache.iterdir()] == [(stored, made)]
    write(path, sample(30))
    assert sum(sizes(load_files(path)[1]).values()) == 30
    load_files(path, cache=tmp_path / "elsewhere")
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1


def test_nothing_half_stored_is_left(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(arrow_cache, "write", full)
        with pytest.raises(UserError, match="headwise: No space left on device"):
            load_files(write(tmp_path / "a.csv", sample(20)))
    assert list(cache.iterdir()) == []
    load_files(tmp_path / "a.csv")


WRONG: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any], str]] = {
    "empty text": ({"text": ["a", " ", "c"], "label": [0, 1, 0]}, {}, r"a\.csv, line 3: column 'text': empty text"),
    "no label": ({"text": ["a", "b", "c"], "label": [0, "", 0]}, {}, r"line 3: column 'label': no label"),
    "one class": ({"text": ["a", "b"], "label": [1, 1]}, {}, "every label is '1'; two classes at least"),
    "no rows": ({"text": [], "label": []}, {}, "holds no rows"),
    "too few": ({"text": ["a", "b"], "label": [1, 0]}, {}, "2 rows are too few to split; give train, dev and test"),
    "nan": (
        {"text": ["a", "b"], "label": [1, "nan"]},
        {"label_type": "regression"},
        "line 3: .*expected a finite number, got 'nan'",
    ),
    "word": (
        {"text": ["a", "b"], "label": [1, "x"]},
        {"label_type": "regression"},
        "line 3: .*expected a number, got 'x'",
    ),
    "missing": ({"text": ["a"], "label": [1]}, {"label": "stars"}, "no column 'stars'; there: text, label"),
    "ids": ({**sample(50), "label": range(50)}, {}, "50 classes in 50 rows; .*--label_type regression"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_told(tmp_path: Path, what: str) -> None:
    columns, options, message = WRONG[what]
    with pytest.raises(UserError, match=message) as told:
        load_files(write(tmp_path / "a.csv", columns), **options)
    assert "\n" not in str(told.value)


def test_a_label_in_one_split_only_is_told(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", sample(20))
    write(tmp_path / "test.csv", {"text": ["a", "b"], "label": ["good", "maybe"]})
    with pytest.raises(
        UserError, match=r"test\.csv, line 3: label 'maybe' is in test, but nowhere in train, which has bad"
    ):
        load_files(tmp_path)


def test_tags_that_are_no_spans_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("EU B-ORG\nsays O\n\nPeter NOUN\n")
    with pytest.raises(UserError, match=r"a\.conll, line 4: .*expected tags such as O, B-PER and I-PER, got 'NOUN'"):
        load_files(tmp_path / "a.conll", label_type="tokens")


def test_a_text_that_no_file_can_hold_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": 1}\n{"text": "\\ud800", "label": 0}\n')
    with pytest.raises(UserError, match="line 2: half a character"):
        load_files(tmp_path / "a.jsonl")


def test_where_nothing_is_or_too_much(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.csv: no such file or folder"):
        load_files(tmp_path / "none.csv")
    with pytest.raises(UserError, match="given as hub:owner/name"):
        load_files("owner/name")
    with pytest.raises(UserError, match="no data files there"):
        load_files(tmp_path)
    write(tmp_path / "one.csv", sample())
    assert load_files(tmp_path)
    write(tmp_path / "two.csv", sample())
    with pytest.raises(UserError, match=r"which file is it\? .* there: one\.csv, two\.csv"):
        load_files(tmp_path)
    with pytest.raises(UserError, match="say either data"):
        load_files()
    with pytest.raises(UserError, match="give --train too"):
        load_files(test=tmp_path / "one.csv")
    os.rename(tmp_path / "one.csv", tmp_path / "test.csv")
    with pytest.raises(UserError, match="there is no train split among test"):
        load_files(tmp_path)


@pytest.fixture(params=[True, False], ids=["reached", "cached"])
def hub_answers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "answers", lambda _: request.param)
    return bool(request.param)


def test_a_data_set_of_the_hub(monkeypatch: pytest.MonkeyPatch, hub_answers: bool) -> None:
    def load(path: str, configuration: str | None) -> DatasetDict:
        assert (path, configuration) == ("owner/name", "small")
        assert hub_answers != datasets.config.HF_HUB_OFFLINE
        rows = Dataset.from_dict(dict(sample(20, (0, 1)))).cast_column("label", ClassLabel(names=["no", "yes"]))
        return DatasetDict(train=rows, validation=rows, test=rows)

    monkeypatch.setattr(datasets, "load_dataset", load)
    _, found = load_files("hub:owner/name:small")
    assert found.labels == ("no", "yes")
    assert sizes(found) == {"train": 20, "dev": 20, "test": 20}
    assert "hub:owner/name:small" in found.recipe
    assert not datasets.config.HF_HUB_OFFLINE


def test_no_network_says_how_to_give_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "answers", lambda _: False)
    with pytest.raises(
        UserError,
        match=r"hub:owner/name: could not be had .*Couldn't reach 'owner/name' on the Hub.*give files: --data PATH",
    ) as told:
        load_files("hub:owner/name")
    assert "\n" not in str(told.value)
