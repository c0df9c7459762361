from pathlib import Path

import pytest

from headwise.errors import UserError
from headwise.tasks.columns import Columns, choose_columns
from headwise.tasks.formats import Batch


def first(*names: str) -> Batch:
    """A file with these columns; those whose second letter is n hold numbers."""
    columns = {name: ["1", "2"] if name[1:2] == "n" else ["some words", "other words"] for name in names}
    return Batch(Path("a.csv"), [0, 1], [2, 3], columns)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("text", "label"), Columns("text", None, "label")),
        (("Label", "Review"), Columns("Review", None, "Label")),
        (("id", "title", "text", "label"), Columns("text", None, "label")),
        (("gold_label", "sentence1", "sentence2"), Columns("sentence1", "sentence2", "gold_label")),
        (("label", "premise", "hypothesis", "genre"), Columns("premise", "hypothesis", "label")),
        (("utterance", "purpose"), None),
        (("utterance", "label"), Columns("utterance", None, "label")),
        (("text", "purpose"), Columns("text", None, "purpose")),
        (("utterance", "kn"), Columns("utterance", None, "kn")),
        (("text", "review", "label"), None),
        (("text", "label", "category"), None),
    ],
)
def test_columns_are_found_by_name_or_by_being_the_only_one(names: tuple[str, ...], expected: Columns | None) -> None:
    if expected is None:
        with pytest.raises(UserError, match=r"a\.csv: which column is the (text|label)\? Say --(text|label) NAME"):
            choose_columns(first(*names))
    else:
        assert choose_columns(first(*names)) == expected


def test_named_columns_win() -> None:
    file = first("text", "review", "label", "stars")
    assert choose_columns(file, text="review", label="stars") == Columns("review", None, "stars")
    assert choose_columns(file, text="text", pair="review", label="label") == Columns("text", "review", "label")
    assert choose_columns(file, text="text", labelled=False) == Columns("text", None, None)


def test_a_named_column_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(UserError, match=r"a\.csv: no column 'stars'; there: text, label"):
        choose_columns(first("text", "label"), label="stars")
