"""Loading of the user's own data, and its errors."""

import os
import re
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, DatasetDict

from headwise.errors import UserError
from headwise.tasks import Examples, arrow_cache, hub, load_files
from tests.short_form import choose_size
from tests.tasks.files import sample_columns, write_file


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", directory)
    return directory / "headwise"


def sizes(examples: Examples) -> dict[str, int]:
    return {split: len(rows) for split, rows in examples.splits.items()}


@pytest.mark.parametrize("extension", ["csv", "tsv.gz", "jsonl", "parquet"])
def test_one_file_is_split(tmp_path: Path, extension: str) -> None:
    task, examples = load_files(write_file(tmp_path / f"reviews.{extension}", sample_columns(100)))
    assert (task.name, task.label_type, task.pair) == ("reviews", "classification", False)
    assert examples.labels == ("bad", "good")
    assert sizes(examples) == {"train": 80, "dev": 10, "test": 10}
    assert "split 80/10/10, stratified, seed 0" in examples.recipe
    rows_by_index = {}
    for rows in examples.splits.values():
        assert set(rows.column_names) == {"text", "label", "row"}
        assert rows.features["label"].names == ["bad", "good"]
        for row in rows:
            rows_by_index[row["row"]] = (row["text"], examples.labels[row["label"]])
    columns = sample_columns(100)
    assert rows_by_index == dict(enumerate(zip(columns["text"], columns["label"], strict=True)))


@pytest.mark.parametrize("label_type", ["multi-label", "tokens"])
def test_rows_with_several_labels_are_not_stratified(tmp_path: Path, label_type: Any) -> None:
    columns = {"tokens": [["one", "two"]] * 40} if label_type == "tokens" else {"text": ["one", "two"] * 20}
    path = write_file(tmp_path / "a.jsonl", columns | {"tags": [["B-X", "O"], ["O", "O"]] * 20})
    assert "train/dev/test 32/4/4: split 80/10/10, seed 0." in load_files(path, label_type=label_type)[1].recipe


def test_unknown_label_types_are_refused(tmp_path: Path) -> None:
    path, label_type = write_file(tmp_path / "a.csv", sample_columns(20)), "multilabel"
    with pytest.raises(UserError, match=r"label_type='multilabel': expected one of classification, multi-label, reg"):
        load_files(path, label_type=label_type)  # type: ignore[arg-type]


def test_splits_depend_on_the_seed(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.csv", sample_columns(100))
    rows = [load_files(path, seed=seed)[1].splits["test"]["row"][:] for seed in (0, 0, 1)]
    assert rows[0] == rows[1] != rows[2]


@pytest.mark.parametrize("dev", ["dev", "valid", "validation"])
def test_a_directory_of_splits(tmp_path: Path, dev: str) -> None:
    for split, count in (("train", 30), (dev, 6), ("test", 8)):
        write_file(tmp_path / f"my_{split}.csv.gz", sample_columns(count))
    write_file(tmp_path / "notes.csv", sample_columns(3))
    _, examples = load_files(tmp_path)
    assert sizes(examples) == {"train": 30, "dev": 6, "test": 8}
    duplicates = (
        "8 of test's texts are in train too, 6 of dev's texts are in train too, 6 of test's texts are in dev too"
    )
    assert examples.duplicates == duplicates
    assert f"split as given. {duplicates}." in examples.recipe
    (tmp_path / "my_test.csv.gz").unlink()
    assert "6 of dev's texts are in train too." in load_files(tmp_path)[1].recipe


def test_several_files_per_split_and_files_of_each_split(tmp_path: Path) -> None:
    one, two = (
        write_file(tmp_path / "one.csv", sample_columns(30)),
        write_file(tmp_path / "two.csv", sample_columns(20)),
    )
    _, examples = load_files([one, two])
    assert sizes(examples) == {"train": 40, "dev": 5, "test": 5}
    _, examples = load_files(train=[one, two], test=two)
    assert sizes(examples) == {"train": 45, "dev": 5, "test": 20}
    assert "dev is 10% of train" in examples.recipe
    _, examples = load_files(train=one, dev=two)
    assert sizes(examples) == {"train": 30, "dev": 20}
    assert "no test split" in examples.recipe


def test_pairs(tmp_path: Path) -> None:
    columns = {"premise": ["a b"] * 20, "hypothesis": ["c"] * 20, "label": ["x", "y"] * 10}
    task, examples = load_files(write_file(tmp_path / "a.jsonl", columns))
    assert task.pair
    assert examples.splits["train"][0]["pair"] == "c"


def test_ratings(tmp_path: Path) -> None:
    columns = {"text": sample_columns(50)["text"], "stars": [number / 10 for number in range(50)]}
    task, examples = load_files(write_file(tmp_path / "a.csv", columns), label_type="regression")
    assert (task.primary, examples.labels) == ("rmse", ())
    assert examples.splits["train"][0]["label"] == examples.splits["train"][0]["row"] / 10


@pytest.mark.parametrize(("name", "value"), [("a.csv", "b|a"), ("a.jsonl", ["b", "a"]), ("a.parquet", ["b", "a"])])
def test_multi_label(tmp_path: Path, name: str, value: Any) -> None:
    empty: Any = [] if isinstance(value, list) else ""
    columns = {
        "text": sample_columns(30)["text"],
        "label": [value, empty, [value[0]] if isinstance(value, list) else "c"] * 10,
    }
    _, examples = load_files(write_file(tmp_path / name, columns), label_type="multi-label")
    labels = {row["row"]: row["label"] for rows in examples.splits.values() for row in rows}
    assert labels[0][:2] == [1, 1]
    assert labels[1] == [0] * len(examples.labels)
    assert sum(labels[2]) == 1


def test_tokens(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("EU B-ORG\nsays O\n\nPeter B-PER\nsmiles O\n\n")
    _, examples = load_files(tmp_path, label_type="tokens")
    assert examples.labels == ("O", "B-ORG", "B-PER")
    assert examples.splits["dev"][1] == {"words": ["Peter", "smiles"], "label": [2, 0], "row": 1}
    columns = {"tokens": [["EU", "says"]] * 20, "ner_tags": [["B-ORG", "O"]] * 20}
    _, examples = load_files(write_file(tmp_path / "a.jsonl", columns), label_type="tokens")
    assert sizes(examples) == {"train": 16, "dev": 2, "test": 2}


@pytest.mark.parametrize("label_type", ["classification", "multi-label"])
def test_train_contains_every_class_of_a_file_that_is_split(tmp_path: Path, label_type: Any) -> None:
    columns = {**sample_columns(40), "label": ["a", "b"] * 15 + [f"rare {number}" for number in range(10)]}
    for seed in range(5):
        _, examples = load_files(write_file(tmp_path / "a.csv", columns), label_type=label_type, seed=seed)
        labels = np.asarray(examples.splits["train"]["label"][:])
        classes = set(labels) if label_type == "classification" else set(np.flatnonzero(labels.any(axis=0)))
        assert classes == set(range(12))


def test_numeric_labels_are_sorted_by_value(tmp_path: Path) -> None:
    assert load_files(write_file(tmp_path / "a.csv", sample_columns(60, ("10", "9", "2"))))[1].labels == (
        "2",
        "9",
        "10",
    )
    assert load_files(write_file(tmp_path / "a.parquet", sample_columns(60, (1.0, 0.0))))[1].labels == ("0", "1")


def test_files_are_parsed_again_only_if_they_changed(tmp_path: Path, cache: Path) -> None:
    path = write_file(tmp_path / "a.csv", sample_columns(20))
    load_files(path)
    (cached,) = cache.iterdir()
    written = cached.stat().st_mtime_ns
    load_files(path)
    assert [(file, file.stat().st_mtime_ns) for file in cache.iterdir()] == [(cached, written)]
    write_file(path, sample_columns(30))
    assert sum(sizes(load_files(path)[1]).values()) == 30
    load_files(path, cache=tmp_path / "elsewhere")
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1


def test_a_failed_write_leaves_no_file(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, *_: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(arrow_cache, "write_arrow", fail)
        with pytest.raises(UserError, match="headwise: No space left on device"):
            load_files(write_file(tmp_path / "a.csv", sample_columns(20)))
    assert list(cache.iterdir()) == []
    load_files(tmp_path / "a.csv")


@pytest.mark.long
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    count, words = choose_size(short=20_000, long=40_000), "some words " * 50
    columns = {"text": [f"{words}{number}" for number in range(count)], "label": ["a", "b"] * (count // 2)}
    path = write_file(tmp_path / "a.csv", columns)
    del columns
    before = pa.default_memory_pool().max_memory()
    tracemalloc.start()
    _, examples = load_files(path, cache=tmp_path / "cache")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    size = path.stat().st_size
    assert size > 550 * count
    assert peak < size / 4
    assert pa.default_memory_pool().max_memory() - before < size / 2
    assert len(examples.splits["train"]) == 0.8 * count


INVALID_COLUMNS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any], str]] = {
    "empty text": ({"text": ["a", " ", "c"], "label": [0, 1, 0]}, {}, r"a\.csv, line 3: column 'text': empty text"),
    "no label": ({"text": ["a", "b", "c"], "label": [0, "", 0]}, {}, r"line 3: column 'label': no label"),
    "one class": ({"text": ["a", "b"], "label": [1, 1]}, {}, "every label is '1'; at least two classes are required"),
    "no rows": ({"text": [], "label": []}, {}, "the file has no rows"),
    "too few": ({"text": ["a", "b"], "label": [1, 0]}, {}, "2 rows are too few to split; provide train, dev and test"),
    "nan": (
        {"text": ["a", "b"], "label": [1, "nan"]},
        {"label_type": "regression"},
        "line 3: .*expected a finite number, got 'nan'",
    ),
    "large": (
        {"text": ["a", "b"], "label": [1, "1e300"]},
        {"label_type": "regression"},
        r"line 3: .*expected a number up to 3\.4e\+38, got '1e300'",
    ),
    "word": (
        {"text": ["a", "b"], "label": [1, "x"]},
        {"label_type": "regression"},
        "line 3: .*expected a number, got 'x'",
    ),
    "missing": ({"text": ["a"], "label": [1]}, {"label": "stars"}, "no column 'stars'; the columns are text, label"),
    "decimals": (
        {**sample_columns(60), "label": [f"{number % 30 / 4:g}".replace(".", ",") for number in range(60)]},
        {},
        "the labels are 30 different numbers, such as 0,25; use --label-type regression",
    ),
    "ids": ({**sample_columns(50), "label": range(50)}, {}, "50 classes in 50 rows; .*--label-type regression"),
}


@pytest.mark.parametrize("case", INVALID_COLUMNS)
def test_invalid_columns_raise_errors(tmp_path: Path, case: str) -> None:
    columns, options, message = INVALID_COLUMNS[case]
    with pytest.raises(UserError, match=message) as raised:
        load_files(write_file(tmp_path / "a.csv", columns), **options)
    assert "\n" not in str(raised.value)


def test_a_label_that_is_not_in_train_raises_an_error(tmp_path: Path) -> None:
    write_file(tmp_path / "train.csv", sample_columns(20))
    write_file(tmp_path / "test.csv", {"text": ["a", "b"], "label": ["good", "maybe"]})
    with pytest.raises(
        UserError, match=r"test\.csv, line 3: label 'maybe' is in test, but nowhere in train, which has bad"
    ):
        load_files(tmp_path)


def test_invalid_tags_raise_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("EU B-ORG\nsays O\n\nPeter NOUN\n")
    with pytest.raises(UserError, match=r"a\.conll, line 4: .*expected tags such as O, B-PER and I-PER, got 'NOUN'"):
        load_files(tmp_path / "a.conll", label_type="tokens")


def test_a_lone_surrogate_raises_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": 1}\n{"text": "\\ud800", "label": 0}\n')
    with pytest.raises(UserError, match="line 2: contains a lone surrogate"):
        load_files(tmp_path / "a.jsonl")


def test_missing_and_ambiguous_files_raise_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.csv: no such file or directory"):
        load_files(tmp_path / "none.csv")
    with pytest.raises(UserError, match="use hub:owner/name"):
        load_files("owner/name")
    with pytest.raises(UserError, match="no data files"):
        load_files(tmp_path)
    write_file(tmp_path / "one.csv", sample_columns())
    assert load_files(tmp_path)
    write_file(tmp_path / "two.csv", sample_columns())
    with pytest.raises(UserError, match=r"several files: one\.csv, two\.csv; name one of them"):
        load_files(tmp_path)
    with pytest.raises(UserError, match="expected either data"):
        load_files()
    with pytest.raises(UserError, match="--train is required with --test"):
        load_files(test=tmp_path / "one.csv")
    os.rename(tmp_path / "one.csv", tmp_path / "test.csv")
    with pytest.raises(UserError, match="there is no train split among test"):
        load_files(tmp_path)


BAD_ROWS = {
    "text": ["a", "", "c", None, "e", "f", "g", " ", "i", ""] * 2,
    "label": ["x", "y", None, "x", "", "x", "y", "x", "y", "x"] * 2,
}
FIRST_BAD_ROWS = (
    "{unit} 3 (column 'text': empty text), {unit} 4 (column 'label': no label), {unit} 5 (column 'text': empty text), "
    "{unit} 6 (column 'label': no label), {unit} 9 (column 'text': empty text) and 7 more"
)


@pytest.mark.parametrize("extension", ["csv", "parquet", "xlsx"])
def test_bad_rows_raise_one_error_with_their_number(tmp_path: Path, extension: str) -> None:
    path = write_file(tmp_path / f"a.{extension}", BAD_ROWS)
    unit, offset = ("row", 1) if extension == "parquet" else ("row" if extension == "xlsx" else "line", 0)
    first = re.sub(r"\d+ \(", lambda match: f"{int(match[0][:-2]) - offset} (", FIRST_BAD_ROWS.format(unit=unit))
    with pytest.raises(UserError) as raised:
        load_files(path)
    assert str(raised.value) == (
        f"{path}: 12 of 20 rows are invalid: {first}; correct the rows, or skip them with --skip-bad-rows"
    )


def test_bad_rows_are_skipped_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_file(tmp_path / "a.csv", BAD_ROWS)
    for _ in range(2):  # the second time from the cache
        caplog.clear()
        _, examples = load_files(path, skip_bad_rows=True)
        rows = sorted(row for split in examples.splits.values() for row in split["row"][:])
        assert rows == [0, 5, 6, 8, 10, 15, 16, 18]
        assert "12 rows without a valid text or label skipped." in examples.recipe
        assert caplog.messages == [f"skipped: {path}: 12 of 20 rows are invalid: {FIRST_BAD_ROWS.format(unit='line')}"]
        assert caplog.records[0].levelname == "WARNING"
    write_file(path, {"text": ["", " "], "label": ["x", "y"]})
    with pytest.raises(UserError, match=r"a\.csv: 2 of 2 rows are invalid: .*empty text\)$"):
        load_files(path, skip_bad_rows=True)


def test_rows_of_json_lines_without_a_key_are_bad_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "label": 1}\n{"label": 1}\n' + '{"text": "b", "label": 0}\n' * 20)
    with pytest.raises(
        UserError, match=r"a\.jsonl, line 2: column 'text': empty text; correct the row, or skip it with"
    ):
        load_files(path)
    assert sum(sizes(load_files(path, skip_bad_rows=True)[1]).values()) == 21


def test_bad_rows_of_several_files_are_located(tmp_path: Path) -> None:
    paths = [write_file(tmp_path / f"{name}.csv", {"text": ["a", ""], "label": ["x", "y"]}) for name in ("one", "two")]
    with pytest.raises(UserError, match=r"2 of 4 rows are invalid: .*one\.csv, line 3 \(.*, .*two\.csv, line 3 \("):
        load_files(paths)


def test_delimiters(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text;stars\n" + "".join(f"a, {i};{i}\n" for i in range(20)))
    _, examples = load_files(tmp_path / "a.csv", label_type="regression")
    assert examples.splits["train"][0]["text"].startswith("a, ")
    (tmp_path / "b.csv").write_text("text~label\n" + "".join(f"a, {i}~{i % 2}\n" for i in range(20)))
    assert load_files(tmp_path / "b.csv", delimiter="~")[1].labels == ("0", "1")
    with pytest.raises(UserError, match="--delimiter must be one character, or comma, semicolon, tab"):
        load_files(tmp_path / "b.csv", delimiter="~~")


def test_decimal_commas_are_read_unless_they_may_separate_thousands(tmp_path: Path) -> None:
    rows = "".join(f"a {i};-{i},5\n" for i in range(20))
    (tmp_path / "a.csv").write_text(f"text;stars\n{rows}b;0,125\n")
    _, examples = load_files(tmp_path / "a.csv", label_type="regression")
    ratings = {row["text"]: row["label"] for split in examples.splits.values() for row in split}
    assert (ratings["a 3"], ratings["b"]) == (-3.5, 0.125)
    (tmp_path / "b.csv").write_text("text;stars\na;1,250\nb;4,5\n")
    with pytest.raises(UserError, match="expected a number, got '1,250'; use a decimal point"):
        load_files(tmp_path / "b.csv", label_type="regression")


@pytest.fixture(params=[True, False], ids=["online", "offline"])
def is_online(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "is_hub_reachable", lambda *_: request.param)
    return bool(request.param)


def test_the_hub(monkeypatch: pytest.MonkeyPatch, is_online: bool) -> None:
    def load(path: str, configuration: str | None) -> DatasetDict:
        assert (path, configuration) == ("owner/name", "small")
        assert is_online != datasets.config.HF_HUB_OFFLINE
        rows = Dataset.from_dict(dict(sample_columns(20, (0, 1)))).cast_column("label", ClassLabel(names=["no", "yes"]))
        return DatasetDict(train=rows, validation=rows, test=rows)

    monkeypatch.setattr(datasets, "load_dataset", load)
    _, examples = load_files("hub:owner/name:small")
    assert examples.labels == ("no", "yes")
    assert sizes(examples) == {"train": 20, "dev": 20, "test": 20}
    assert "hub:owner/name:small" in examples.recipe
    assert not datasets.config.HF_HUB_OFFLINE


def test_an_unreachable_hub_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "is_hub_reachable", lambda *_: False)
    with pytest.raises(
        UserError,
        match=r"hub:owner/name: cannot be loaded .*Couldn't reach 'owner/name' on the Hub.*use files: --data PATH",
    ) as raised:
        load_files("hub:owner/name")
    assert "\n" not in str(raised.value)


def test_two_ratings_are_too_few_to_split(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    path.write_text("text,label\na,1\nb,2\n")
    with pytest.raises(UserError, match="2 rows are too few to split"):
        load_files(path, label_type="regression", cache=tmp_path / "cache")
