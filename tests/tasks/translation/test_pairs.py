"""Sentence pairs: all layouts give the same pairs; errors name file and line."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from headwise.errors import UserError
from headwise.tasks.translation import read_pairs

ENGLISH = [f'sentence {n} , "it\'s" so' for n in range(40)]
GERMAN = [f"Satz {n}; „so“ ist's" for n in range(40)]


def write(path: Path, lines: Sequence[str]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, part in {
        "train": slice(0, 20),
        "val": slice(20, 30),
        "test_a": slice(30, 35),
        "test_b": slice(35, 40),
    }.items():
        write(tmp_path / f"{name}.en.gz", ENGLISH[part])
        write(tmp_path / f"{name}.de", GERMAN[part])
    write(tmp_path / "notes.txt", ["not a split"])
    return tmp_path


def test_line_aligned_files(directory: Path) -> None:
    pairs = read_pairs(directory, "en", "de", cache=directory / "cache")
    assert {split: len(rows) for split, rows in pairs.splits.items()} == {
        "train": 20,
        "dev": 10,
        "test_a": 5,
        "test_b": 5,
    }
    assert pairs.tests == ["test_a", "test_b"]
    assert pairs.splits["test_b"]["source"][:] == ENGLISH[35:]
    assert pairs.splits["test_b"]["target"][:] == GERMAN[35:]
    assert "train 20, dev 10" in pairs.recipe
    assert "split as given" in pairs.recipe
    assert pairs.location("dev", 3) == f"{directory / 'val.en.gz'}, line 4"


@pytest.mark.parametrize("layout", ["tsv", "jsonl", "jsonl-nested", "csv.gz"])
def test_tables(layout: str, tmp_path: Path) -> None:
    path = tmp_path / f"pairs.{layout.removesuffix('-nested')}"
    expected = list(zip(ENGLISH, GERMAN, strict=True))
    if layout == "tsv":
        write(path, ["en\tde", *(f"{a}\t{b}" for a, b in expected)])
    elif layout == "csv.gz":
        quoted = [[text.replace('"', '""') for text in pair] for pair in expected]
        write(path, ["id,en,de", *(f'{n},"{a}","{b}"' for n, (a, b) in enumerate(quoted))])
    else:
        rows = [{"en": a, "de": b} for a, b in expected]
        write(path, [json.dumps({"translation": row} if layout == "jsonl-nested" else row) for row in rows])
    pairs = read_pairs(path, "de", "en", seed=3, cache=tmp_path / "cache")
    assert {split: len(rows) for split, rows in pairs.splits.items()} == {"train": 32, "dev": 4, "test": 4}
    values = {(row["target"], row["source"]) for rows in pairs.splits.values() for row in rows}
    assert values == set(expected)
    assert "dev and test drawn from train by seed 3" in pairs.recipe


def test_a_pair_of_files_can_be_a_test_set(directory: Path) -> None:
    pairs = read_pairs(directory / "test_a.en.gz", "en", "de", cache=directory / "cache", test_only=True)
    assert [len(rows) for rows in pairs.splits.values()] == [5]


def test_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [{"translation": {"de": b, "en": a}} for a, b in zip(ENGLISH, GERMAN, strict=True)]
    splits = DatasetDict({"train": Dataset.from_list(rows[:30]), "validation": Dataset.from_list(rows[30:])})
    calls = []

    def load_dataset(*arguments: str) -> DatasetDict:
        calls.append(arguments)
        return splits

    monkeypatch.setattr("headwise.tasks.hub.datasets.load_dataset", load_dataset)
    monkeypatch.setattr("headwise.tasks.hub.is_hub_reachable", lambda *_: True)
    pairs = read_pairs("hub:wmt14:de-en", "en", "de", cache=tmp_path)
    assert calls == [("wmt14", "de-en")]
    assert pairs.splits["dev"]["source"][:] == ENGLISH[30:]
    assert len(pairs.splits["train"]) + len(pairs.splits["test"]) == 30


def error_message(directory: Path, source: str = "en", target: str = "de") -> str:
    with pytest.raises(UserError) as raised:
        read_pairs(directory, source, target, cache=directory.parent / "cache")
    return str(raised.value)


@pytest.mark.parametrize(("english", "german"), [(20, 18), (17, 20), (20, 0)])
def test_different_numbers_of_lines_raise_an_error(directory: Path, english: int, german: int) -> None:
    write(directory / "train.en.gz", ENGLISH[:english])
    write(directory / "train.de", GERMAN[:german])
    message = error_message(directory)
    longer, shorter = ("train.en.gz", "train.de") if english > german else ("train.de", "train.en.gz")
    assert f"{longer} has {max(english, german)} lines" in message
    assert f"{shorter} has {min(english, german)}" in message


def test_different_numbers_of_lines_in_a_later_batch(tmp_path: Path) -> None:
    write(tmp_path / "train.en", ["a b"] * 2500)
    write(tmp_path / "train.de", ["c d"] * 1203)
    assert "train.en has 2,500 lines" in error_message(tmp_path)
    assert "train.de has 1,203" in error_message(tmp_path)


def test_pairs_with_an_empty_side_are_dropped_from_train(directory: Path) -> None:
    write(directory / "train.de", [*GERMAN[:4], "  ", *GERMAN[5:20]])
    pairs = read_pairs(directory, "en", "de", cache=directory / "cache")
    assert f"1 pair with an empty side was left out, the first at {directory / 'train.en.gz'}, line 5" in pairs.recipe
    write(directory / "train.de", [*GERMAN[:4], "  ", *GERMAN[5:19], ""])
    pairs = read_pairs(directory, "en", "de", cache=directory / "cache")
    assert len(pairs.splits["train"]) == 18
    assert ENGLISH[4] not in pairs.splits["train"]["source"][:]
    assert f"2 pairs with an empty side were left out, the first at {directory / 'train.en.gz'}, line 5" in pairs.recipe


def test_an_empty_line_of_dev_or_test_raises_an_error(directory: Path) -> None:
    write(directory / "test_a.de", [*GERMAN[30:32], "", *GERMAN[33:35]])
    assert error_message(directory) == f"{directory / 'test_a.en.gz'}, line 3: the target is empty"


def test_missing_languages_raise_errors(directory: Path, tmp_path: Path) -> None:
    assert "no files in fr (train.fr, train.fr.gz, …)" in error_message(directory, source="fr")
    assert "test_a.fr (or .gz) with the same lines in fr is missing" in error_message(directory, target="fr")
    table = tmp_path / "table"
    table.mkdir()
    write(table / "pairs.tsv", ["en\tde", "a\tb"])
    assert "no column 'fr'; the columns are en, de" in error_message(table / "pairs.tsv", target="fr")
    write(table / "pairs.jsonl", [json.dumps({"translation": {"en": "a", "de": "b"}})])
    assert "line 1: column 'translation' must have en and fr, but has en" in error_message(
        table / "pairs.jsonl", target="fr"
    )


def test_missing_and_empty_files_raise_errors(tmp_path: Path) -> None:
    assert "no such file or directory" in error_message(tmp_path / "nowhere")
    write(tmp_path / "train.en", [""])
    write(tmp_path / "train.de", ["x"])
    assert "all lines are empty" in error_message(tmp_path)


def test_too_few_pairs_raise_an_error(tmp_path: Path) -> None:
    write(tmp_path / "train.en", ENGLISH[:2])
    write(tmp_path / "train.de", GERMAN[:2])
    assert "too few" in error_message(tmp_path)
