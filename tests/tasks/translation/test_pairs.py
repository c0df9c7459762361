"""Pairs of sentences: every layout gives the same ones, and what is wrong is told with its file and line."""

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
def folder(tmp_path: Path) -> Path:
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


def test_line_aligned_files(folder: Path) -> None:
    pairs = read_pairs(folder, "en", "de", cache=folder / "cache")
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
    assert pairs.place("dev", 3) == f"{folder / 'val.en.gz'}, line 4"


@pytest.mark.parametrize("form", ["tsv", "jsonl", "jsonl-nested", "csv.gz"])
def test_tables(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"pairs.{form.removesuffix('-nested')}"
    both = list(zip(ENGLISH, GERMAN, strict=True))
    if form == "tsv":
        write(path, ["en\tde", *(f"{a}\t{b}" for a, b in both)])
    elif form == "csv.gz":
        quoted = [[text.replace('"', '""') for text in pair] for pair in both]
        write(path, ["id,en,de", *(f'{n},"{a}","{b}"' for n, (a, b) in enumerate(quoted))])
    else:
        rows = [{"en": a, "de": b} for a, b in both]
        write(path, [json.dumps({"translation": row} if form == "jsonl-nested" else row) for row in rows])
    pairs = read_pairs(path, "de", "en", seed=3, cache=tmp_path / "cache")
    assert {split: len(rows) for split, rows in pairs.splits.items()} == {"train": 32, "dev": 4, "test": 4}
    found = {(row["target"], row["source"]) for rows in pairs.splits.values() for row in rows}
    assert found == set(both), "each pair is in one split"
    assert "dev and test drawn from train by seed 3" in pairs.recipe


def test_a_single_pair_of_files_is_a_test_set_when_asked(folder: Path) -> None:
    pairs = read_pairs(folder / "test_a.en.gz", "en", "de", cache=folder / "cache", test_only=True)
    assert [len(rows) for rows in pairs.splits.values()] == [5]


def test_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [{"translation": {"de": b, "en": a}} for a, b in zip(ENGLISH, GERMAN, strict=True)]
    found = DatasetDict({"train": Dataset.from_list(rows[:30]), "validation": Dataset.from_list(rows[30:])})
    asked = []

    def load_dataset(*arguments: str) -> DatasetDict:
        asked.append(arguments)
        return found

    monkeypatch.setattr("headwise.tasks.hub.datasets.load_dataset", load_dataset)
    monkeypatch.setattr("headwise.tasks.hub.answers", lambda path: True)
    pairs = read_pairs("hub:wmt14:de-en", "en", "de", cache=tmp_path)
    assert asked == [("wmt14", "de-en")]
    assert pairs.splits["dev"]["source"][:] == ENGLISH[30:]
    assert len(pairs.splits["train"]) + len(pairs.splits["test"]) == 30


def mistake(folder: Path, source: str = "en", target: str = "de") -> str:
    with pytest.raises(UserError) as told:
        read_pairs(folder, source, target, cache=folder.parent / "cache")
    return str(told.value)


@pytest.mark.parametrize(("english", "german"), [(20, 18), (17, 20), (20, 0)])
def test_files_of_different_length(folder: Path, english: int, german: int) -> None:
    write(folder / "train.en.gz", ENGLISH[:english])
    write(folder / "train.de", GERMAN[:german])
    told = mistake(folder)
    longer, shorter = ("train.en.gz", "train.de") if english > german else ("train.de", "train.en.gz")
    assert f"{longer} has {max(english, german)} lines" in told
    assert f"{shorter} has {min(english, german)}" in told


def test_different_lengths_far_into_a_file(tmp_path: Path) -> None:
    write(tmp_path / "train.en", ["a b"] * 2500)
    write(tmp_path / "train.de", ["c d"] * 1203)
    assert "train.en has 2,500 lines" in mistake(tmp_path)
    assert "train.de has 1,203" in mistake(tmp_path)


def test_empty_lines_of_train_are_left_out_and_told(folder: Path) -> None:
    write(folder / "train.de", [*GERMAN[:4], "  ", *GERMAN[5:19], ""])
    pairs = read_pairs(folder, "en", "de", cache=folder / "cache")
    assert len(pairs.splits["train"]) == 18
    assert ENGLISH[4] not in pairs.splits["train"]["source"][:]
    assert f"2 pairs with an empty side were left out, the first at {folder / 'train.en.gz'}, line 5" in pairs.recipe


def test_an_empty_line_of_dev_or_test_is_a_mistake(folder: Path) -> None:
    write(folder / "test_a.de", [*GERMAN[30:32], "", *GERMAN[33:35]])
    assert mistake(folder) == f"{folder / 'test_a.en.gz'}, line 3: the target is empty"


def test_languages_that_are_not_there(folder: Path, tmp_path: Path) -> None:
    assert "no files in fr (train.fr, train.fr.gz, …)" in mistake(folder, source="fr")
    assert "there is no test_a.fr (or .gz) beside it" in mistake(folder, target="fr")
    table = tmp_path / "table"
    table.mkdir()
    write(table / "pairs.tsv", ["en\tde", "a\tb"])
    assert "no column 'fr'; there: en, de" in mistake(table / "pairs.tsv", target="fr")
    write(table / "pairs.jsonl", [json.dumps({"translation": {"en": "a", "de": "b"}})])
    assert "line 1: column 'translation' has no en and fr" in mistake(table / "pairs.jsonl", target="fr")


def test_nothing_there(tmp_path: Path) -> None:
    assert "no such file or folder" in mistake(tmp_path / "nowhere")
    write(tmp_path / "train.en", [""])
    write(tmp_path / "train.de", ["x"])
    assert "all lines are empty" in mistake(tmp_path)


def test_too_few_to_split(tmp_path: Path) -> None:
    write(tmp_path / "train.en", ENGLISH[:2])
    write(tmp_path / "train.de", GERMAN[:2])
    assert "too few" in mistake(tmp_path)
