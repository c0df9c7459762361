from pathlib import Path

import pytest

from headwise.errors import UserError
from headwise.tasks.conll import read_conll

FILE = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

# a comment
Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER
"""


def test_sentences_have_words_tags_and_first_lines(tmp_path: Path) -> None:
    path = tmp_path / "eng.train"
    path.write_text(FILE)
    (batch,) = read_conll(path)
    assert list(batch.columns["words"]) == [["EU", "rejects"], ["Peter", "Blackburn"]]
    assert list(batch.columns["tags"]) == [["B-ORG", "O"], ["B-PER", "I-PER"]]
    assert list(batch.lines) == [3, 7]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("EU B-ORG\nrejects\n", "line 2: expected 2 columns as before, got 1"),
        ("EU\n", "line 1: expected a word and its tag, got only a word"),
    ],
)
def test_a_varying_number_of_columns_raises_an_error(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "a.conll"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        list(read_conll(path))


def test_a_missing_file_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        list(read_conll(tmp_path / "a.conll"))
