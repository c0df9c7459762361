from pathlib import Path

import pytest

from headwise.errors import UserError
from headwise.tasks.conll import batches

FILE = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

# a comment
Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER
"""


def test_sentences_have_words_tags_and_the_line_they_begin_at(tmp_path: Path) -> None:
    path = tmp_path / "eng.train"
    path.write_text(FILE)
    (batch,) = batches(path)
    assert list(batch.columns["words"]) == [["EU", "rejects"], ["Peter", "Blackburn"]]
    assert list(batch.columns["tags"]) == [["B-ORG", "O"], ["B-PER", "I-PER"]]
    assert list(batch.lines) == [3, 7]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("EU B-ORG\nrejects\n", "line 2: 1 columns, expected 2 as in the lines before"),
        ("EU\n", "line 1: 1 columns, expected a word and its tag"),
    ],
)
def test_a_line_with_other_columns_is_told(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "a.conll"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        list(batches(path))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        list(batches(tmp_path / "a.conll"))
